"""What a lane does when its reader fails, loses its place, or the clock is set back."""

from collections.abc import Callable, Mapping
from typing import Any

from adapters.memory import MemoryLog
from schemas.log import Bounds, LogError, Partition, PositionLostError, Reader, Record
from schemas.records import End, HandedBack
from tests.support.lanes import LaneWorld, numbers
from workers.phase import Phase
from workers.waiting import BACKOFF_MAX_MS, BackOff, is_held


class Sick:
    """A reader whose failure stays until it is assigned anew, as the one of Kafka."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self.failure: LogError | None = None
        self.assigned: list[Mapping[Partition, int]] = []

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self.failure = None
        self.assigned.append(positions)
        self._inner.assign(positions)

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        if self.failure is not None:
            raise self.failure
        return self._inner.poll(limit, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SickLog:
    """The world's log; the first reader that is made can be made to fail."""

    def __init__(self, inner: MemoryLog) -> None:
        self._inner = inner
        self.reader_made: Sick | None = None
        self.inits = 0

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> Any:
        inner = self._inner.reader(committed_only=committed_only, ahead=ahead)
        if self.reader_made is not None:
            return inner
        self.reader_made = Sick(inner)
        return self.reader_made

    def transactional(self, transactional_id: str) -> Any:
        self.inits += 1
        return self._inner.transactional(transactional_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def sick(world: LaneWorld) -> tuple[SickLog, Callable[[], Sick]]:
    log = SickLog(world.log)

    def reader() -> Sick:
        assert log.reader_made is not None
        return log.reader_made

    return log, reader


def test_a_failed_partition_is_assigned_anew_and_holds_no_result_back() -> None:
    world = LaneWorld()
    log, reader = sick(world)
    holder = world.holder(log=log)
    holder.settle()
    world.dispatch("a")
    holder.settle()
    holder.slots.release()
    world.dispatch("b")
    reader().failure = LogError("the partition can't be read")
    assert holder.lane.turn()
    assert world.ends() == {"a": End.SUCCEEDED}
    world.clock.advance(BACKOFF_MAX_MS)
    holder.settle()
    holder.slots.release()
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED}
    assert "lane_log_failed" in world.notes.names()


def test_a_failure_while_it_takes_over_is_read_again_without_another_init() -> None:
    world = LaneWorld()
    world.dispatch("a")
    log, reader = sick(world)
    holder = world.holder(log=log)
    holder.lane.turn()
    before = holder.lane.phase
    reader().failure = LogError("the partition can't be read")
    holder.lane.turn()
    world.clock.advance(BACKOFF_MAX_MS)
    holder.settle()
    assert (before, holder.lane.phase) == (Phase.READ, Phase.SERVE)
    assert numbers(world.said(), HandedBack) == [1]
    assert log.inits == 1


def test_a_place_lost_within_the_log_runs_nothing_twice() -> None:
    world = LaneWorld()
    log, reader = sick(world)
    holder = world.holder(log=log)
    holder.settle()
    world.dispatch("a")
    holder.settle()
    holder.slots.release()
    holder.settle()
    part = world.names().batches
    position = holder.lane._upto
    reader().failure = PositionLostError(part, position, Bounds(0, position + 5))
    holder.settle()
    assert reader().assigned[-1] == {part: position}
    reader().assign({part: 0})
    world.dispatch("b")
    holder.settle()
    assert holder.slots.started == [1, 2]


def test_a_clock_that_is_set_back_ends_a_wait() -> None:
    back_off = BackOff()
    back_off.fail(1_000_000)
    assert back_off.holds(1_000_049)
    assert not back_off.holds(1_000_050)
    assert not back_off.holds(1_000_000 - BACKOFF_MAX_MS)
    assert [is_held(100, now, 50) for now in (49, 50, 99, 100)] == [False, True, True, False]


def test_waits_double_up_to_a_limit_until_something_goes_well() -> None:
    back_off = BackOff()
    for _ in range(30):
        back_off.fail(0)
    assert back_off.holds(BACKOFF_MAX_MS - 1)
    assert not back_off.holds(BACKOFF_MAX_MS)
    back_off.reset()
    back_off.fail(0)
    assert not back_off.holds(50)
