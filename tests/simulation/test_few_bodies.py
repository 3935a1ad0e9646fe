"""Schedulers that hold next to no bodies decide and serve as those that hold all."""

from functools import partial

import pytest

from scheduler.bodies import Limits
from scheduler.core.snapshot import dump
from scheduler.service import Scheduler
from simulation import process
from simulation.many import play
from tests.support.backlog import Backlog, Sent

LARGE = Limits()
TINY = Limits(3_000)


def with_restarts(limits: Limits) -> tuple[list[Sent], bytes]:
    """What was sent, and the state at the end; another scheduler takes over every few turns."""
    backlog = Backlog({"a": 3, "b": 1, "c": 1}, limits=limits, batch=4)
    for number in range(900):
        body = f"{number}".encode().ljust(number % 700, b".")
        backlog.submit(f"r{number}", "abc"[number % 7 % 3], body, priority=number % 5)
    backlog.open_lane(3)
    turns = 0
    while backlog.turn() or backlog.shard.state.ids:
        received = backlog.receive()
        assert all(one.body == backlog.bodies[one.id] for one in received)
        if turns % 10 == 3:
            backlog.hand_back(received)
        else:
            backlog.finish(received)
        turns += 1
        if turns % 15 == 0:
            backlog.restarted(limits)
    assert set(backlog.bodies) == {one.id for one in backlog.sent}
    assert turns > 45
    assert bool(backlog.meter.counts["scheduler_bodies_read_again"]) == (limits is TINY)
    return backlog.sent, dump(backlog.shard.state)


def test_recovered_runs_decide_the_same_whatever_is_in_memory() -> None:
    assert with_restarts(TINY) == with_restarts(LARGE)


@pytest.mark.parametrize("seed", range(12))
def test_every_rule_holds_with_next_to_no_bodies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "Scheduler", partial(Scheduler, limits=Limits(2_000, 6)))
    assert not play(seed).fault
