"""In which order the accounting asks what is committed and what is stored of a lane."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from accounting.core.sums import slot_of
from accounting.ledger import Ledger
from accounting.names import group
from adapters.memory import MemoryLog
from schemas.codec import encode
from schemas.log import Bounds, Commit, Partition, Reader, Record
from schemas.records import VERSION
from schemas.topics import Topics
from schemas.usage import UsageSum, Used, Window
from tests.support.accounting import policy
from tests.support.lanes import ManualClock

TOPICS = Topics("t")
LANE = (TOPICS.workers("gpu"), 1)


class Interrupted:
    """A reader between whose questions the lane's former holder stores and commits."""

    def __init__(self, reader: Reader, former: Callable[[], None]) -> None:
        self._reader, self._former = reader, former

    def bounds(self, partition: Partition) -> Bounds:
        found = self._reader.bounds(partition)
        self._former()
        return found

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        found = self._reader.committed(group, partitions)
        self._former()
        return found

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self._reader.assign(positions)

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        return self._reader.poll(limit, timeout_s)

    def reached(self, partition: Partition, end: int) -> bool:
        return self._reader.reached(partition, end)

    def close(self) -> None:
        self._reader.close()


def made() -> MemoryLog:
    log = MemoryLog(ManualClock())
    log.ensure_topics([*TOPICS.of(policy(gpu=2)), TOPICS.usage_spec("gpu", 2)])
    return log


def store(log: MemoryLog, upto: int) -> None:
    """Store a sum up to an offset, then commit the offset: the order of the accounting."""
    total = UsageSum(VERSION, "acme", "gpu", Window.ALL, 0, "gpu", 1, upto, Used(upto))
    producer = log.producer()
    producer.send(TOPICS.usage("gpu"), 1, encode(total), key=slot_of(total).key)
    producer.close()
    reader = MemoryLog.reader(log)
    reader.commit(group(TOPICS), {LANE: Commit(upto, "")})
    reader.close()


def test_what_is_below_the_position_is_in_the_sums_though_the_former_holder_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, upto = made(), 5
    store(log, upto)
    taken: list[Record] = []

    def former() -> None:
        nonlocal upto
        upto += 3
        store(log, upto)

    reader = Interrupted(log.reader(), former)
    monkeypatch.setattr(log, "reader", lambda: reader)
    ledger = Ledger(log, TOPICS, {"gpu": taken.append})
    assert ledger.open([("gpu", 1)]) == {LANE: 5}
    assert len(taken) >= 2, "the sum that the position stands for, and what came since"


def test_a_lane_that_comes_back_is_read_from_where_it_was_left() -> None:
    log = made()
    taken: list[Record] = []
    ledger = Ledger(log, TOPICS, {"gpu": taken.append})
    assert ledger.open([("gpu", 0), ("gpu", 1)]) == {(LANE[0], 0): 0, LANE: 0}
    store(log, 5)
    assert ledger.open([("gpu", 0)]) == {(LANE[0], 0): 0}
    assert not taken
    store(log, 8)
    assert ledger.open([("gpu", 1)]) == {LANE: 8}
    assert [record.offset for record in taken] == [0, 1]
    assert ledger.open([("gpu", 1)]) == {LANE: 8}
    assert len(taken) == 2
