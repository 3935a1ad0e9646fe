"""Weeks in virtual time: idle weekends, a holiday, retention, compaction, forgotten positions."""

from collections.abc import Callable

import pytest

from scheduler import shard
from scheduler.inputs import InputReader
from scheduler.shard import Shard
from schemas.records import End
from simulation.rules import InvariantError
from simulation.week import MATES, REQUESTS_A_DAY, Weeks
from workers import lane, takeover


@pytest.mark.parametrize("is_cut", [False, True])
def test_weeks_lose_nothing_and_run_nothing_again(*, is_cut: bool) -> None:
    weeks = Weeks(is_cut=is_cut)
    weeks.run()
    log, topics = weeks.fleet.log, weeks.fleet.topics
    assert {result.end for result in weeks.judge.results.values()} == {End.SUCCEEDED}
    assert weeks.compared >= 20
    # Ids of the day before are forgotten: what is remembered is of an hour or so.
    assert 0 < weeks.remembered_max < REQUESTS_A_DAY
    # Brokers did what they do: everything of the weeks before the holiday is gone, ...
    gone = log.reader()
    for topic in (topics.requests("gold"), topics.batches("embed"), topics.decisions):
        assert max(gone.bounds((topic, number)).low for number in (0, 1)) > 50
    # ... compaction took policies, ...
    gone.assign({(topics.policy, 0): 0})
    assert [record.offset for record in gone.poll(10, 0.0)] == [3, 4]
    # ... and what was said last to nobody.
    warned = {event for event, _ in weeks.fleet.silence.warnings}
    assert ("gone unread, and not missed" in warned) is not is_cut
    assert ("lane_progress_missing" in warned) is is_cut
    assert len(weeks.fleet.workers) == len(MATES)


def never(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("is_cut", "broken", "name", "instead", "message"),
    [
        (False, Shard, "conclude", never, "HALTED.*requests that were accepted are lost"),
        (False, InputReader, "pass_over", never, "HALTED.*not read yet are gone"),
        (False, lane, "REFRESH_MS", 600_000, "IDLE.*a busy loop: .* commits in 48 h"),
        (True, takeover, "_ended_numbers", lambda *_: frozenset(), "ONE_HAND.*is not there"),
        (True, shard, "SNAPSHOT_MS", 10 * 86_400_000, "HALTED.*accepted are lost"),
    ],
)
def test_without_what_makes_them_last_weeks_break(
    *,
    is_cut: bool,
    broken: object,
    name: str,
    instead: Callable[..., object],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broken, name, instead)
    with pytest.raises(InvariantError, match=message):
        Weeks(is_cut=is_cut).run()
