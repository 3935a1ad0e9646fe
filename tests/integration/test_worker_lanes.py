"""The rules of the lane's protocol on a real Kafka: fences, doubt, open cycles, limits.

A broker writes a transaction's end to one partition after the other, after the commit has
returned: what is committed is awaited, partition by partition, before it is judged.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from adapters.clock import SystemClock
from adapters.kafka import KafkaLog
from schemas.log import InDoubtError, TransactionalProducer
from schemas.records import End, Finished, HandedBack, Seen
from schemas.topics import Topics
from tests.support.lanes import POOL, Holder, Lanes, numbers, read_all
from workers.phase import Phase

GIVE_UP_S = 30


@pytest.fixture
def lanes(kafka_bootstrap: str) -> Iterator[Lanes]:
    log = KafkaLog(kafka_bootstrap)
    found = Lanes(log, Topics(f"lanes-{uuid4().hex[:8]}"), SystemClock(), 1)
    yield found
    found.close()
    log.close()


def until(is_so: Callable[[], bool], *holders: Holder) -> None:
    """Turn the holders until something is so."""
    give_up = time.monotonic() + GIVE_UP_S
    while not is_so():
        assert time.monotonic() < give_up, "it never came to be"
        for holder in holders:
            holder.lane.turn(0.02)


def serving(holder: Holder) -> Callable[[], bool]:
    """Tell whether the holder has taken the lane and said so."""
    return lambda: holder.lane.phase is Phase.SERVE and holder.lane.is_idle


def running(holder: Holder, *numbers_: int) -> Callable[[], bool]:
    return lambda: holder.slots.started == list(numbers_)


def said(
    lanes: Lanes, *, finished: Sequence[int] = (), handed_back: Sequence[int] = (), holders: int
) -> Callable[[], bool]:
    """Tell whether the lane's holders said exactly this by now."""

    def is_said() -> bool:
        records = lanes.said()
        return (
            numbers(records, Finished) == list(finished)
            and numbers(records, HandedBack) == list(handed_back)
            and sum(isinstance(record, Seen) for record in records) == holders
        )

    return is_said


def visible(lanes: Lanes, count: int) -> Callable[[], bool]:
    """Tell whether so many records of the lane are committed for everybody to see."""
    return lambda: len(read_all(lanes._log, lanes.topics.batches(POOL), 1)) == count


def open_end(lanes: Lanes) -> int:
    """End of the lane with open transactions counted in."""
    reader = lanes._log.reader(committed_only=False)
    try:
        return reader.bounds(lanes.names().batches).end
    finally:
        reader.close()


def test_a_zombie_commits_nothing_and_its_batch_is_handed_back_once(lanes: Lanes) -> None:
    zombie = lanes.holder()
    until(serving(zombie), zombie)
    lanes.dispatch("a")
    until(running(zombie, 1), zombie)
    until(visible(lanes, 1))
    holder = lanes.holder()
    until(serving(holder), holder)
    zombie.slots.release()
    until(lambda: zombie.lane.phase is Phase.GONE, zombie)
    assert zombie.lane.is_fenced
    lanes.dispatch("a", attempt=1)
    until(running(holder, 2), holder)
    holder.slots.release()
    until(lambda: bool(lanes.results()), holder)
    until(said(lanes, finished=[2], handed_back=[1], holders=2))
    ((result, value),) = lanes.results()
    assert (result.id, result.attempt, value) == ("a", 1, b"body of a")


def test_progress_is_read_after_the_init(lanes: Lanes) -> None:
    first = lanes.holder()
    until(serving(first), first)
    lanes.dispatch("a")
    until(running(first, 1), first)
    second = lanes.holder()
    first.slots.release()
    until(lambda: bool(lanes.results()), first)
    until(serving(second), second)
    until(said(lanes, finished=[1], holders=2))
    assert lanes.ends() == {"a": End.SUCCEEDED}


def test_a_batch_whose_cycle_commits_while_the_lane_changes_hands_runs_once(lanes: Lanes) -> None:
    first = lanes.holder()
    until(serving(first), first)
    _, commit = lanes.open_dispatch("a")
    until(lambda: open_end(lanes) > 0)  # the broker has it
    second = lanes.holder()
    until(lambda: second.lane.phase is not Phase.TAKE, second)
    commit()
    until(running(second, 1), second, first)
    second.slots.release()
    until(lambda: bool(lanes.results()), second)
    first.slots.release()
    until(lambda: first.lane.phase is Phase.GONE or not first.slots.started, first)
    until(said(lanes, finished=[1], holders=2))
    assert lanes.ends() == {"a": End.SUCCEEDED}


class InDoubt:
    """A transactional producer whose next commit is in doubt, landed or not."""

    def __init__(self, inner: TransactionalProducer, doubts: list[bool]) -> None:
        self._inner = inner
        self._doubts = doubts

    def commit(self) -> None:
        if not self._doubts:
            self._inner.commit()
            return
        if self._doubts.pop():
            self._inner.commit()
        raise InDoubtError("injected")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class DoubtfulLog:
    def __init__(self, inner: Any, doubts: list[bool]) -> None:
        self._inner = inner
        self._doubts = doubts

    def transactional(self, transactional_id: str) -> InDoubt:
        return InDoubt(self._inner.transactional(transactional_id), self._doubts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("landed", [True, False])
def test_a_result_in_doubt_is_not_written_twice(lanes: Lanes, landed: bool) -> None:
    doubts: list[bool] = []
    holder = lanes.holder(log=DoubtfulLog(lanes._log, doubts))
    until(serving(holder), holder)
    lanes.dispatch("a")
    lanes.dispatch("b")
    until(running(holder, 1, 2), holder)
    doubts.append(landed)
    holder.slots.release(1)
    until(lambda: not doubts, holder)
    until(lambda: holder.lane.phase is Phase.SERVE and not holder.lane._pending(), holder)
    until(lambda: lanes.ends() == {"a": End.SUCCEEDED})
    holder.slots.release(2)
    until(serving(holder), holder)
    until(said(lanes, finished=[1, 2], holders=2))
    until(lambda: lanes.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED})
    assert holder.slots.started == [1, 2]


def test_ended_batches_above_a_running_one_stay_ended(lanes: Lanes) -> None:
    first = lanes.holder(slots=3)
    until(serving(first), first)
    for id_ in "abc":
        lanes.dispatch(id_)
    until(running(first, 1, 2, 3), first)
    first.slots.release(2)
    until(lambda: bool(lanes.results()), first)
    until(visible(lanes, 3))
    second = lanes.holder(slots=4)
    until(serving(second), second)
    until(said(lanes, finished=[2], handed_back=[1, 3], holders=2))
    seen = [record for record in lanes.said() if isinstance(record, Seen)]
    assert [record.slots for record in seen] == [3, 4]


def test_a_first_holder_starts_at_the_beginning(lanes: Lanes) -> None:
    lanes.dispatch("a")
    lanes.dispatch("b")
    until(visible(lanes, 2))
    holder = lanes.holder()
    until(serving(holder), holder)
    until(said(lanes, handed_back=[1, 2], holders=1))


def test_a_cancel_and_an_unreadable_record_pass_the_lane(lanes: Lanes) -> None:
    holder = lanes.holder(slots=1)
    until(serving(holder), holder)
    lanes.dispatch("long")
    until(running(holder, 1), holder)
    batch = lanes.dispatch("a")
    lanes.cancel(batch, 0)
    lanes.send(b"what", [("fairlane", b"\xff")])
    until(lambda: bool(lanes.dead() and lanes.results()), holder)
    assert lanes.ends() == {"a": End.CANCELLED}
    holder.slots.release()
    until(lambda: lanes.ends() == {"a": End.CANCELLED, "long": End.SUCCEEDED}, holder)
