"""A full cycle's commit is waited for aside: nothing overtakes it, an abort repeats it."""

import threading
from collections.abc import Callable

import pytest

from adapters.aside import ThreadAside
from adapters.memory import CommitFault, MemoryLog
from scheduler.ports import Aside
from scheduler.publish import Outgoing
from scheduler.transactions import ABORTS_MAX, AtOnce, Transactions
from schemas.log import FencedError, InDoubtError, Record, TopicSpec
from simulation.process import Late
from simulation.world import Silence
from tests.support.lanes import ManualClock

TOPIC, ID = "out", "shard.0"
ASIDES: list[Callable[[], Aside]] = [AtOnce, Late, ThreadAside]


class Bench:
    """Transactions on a log in memory, whose commits end as a test says."""

    def __init__(self, aside: Aside) -> None:
        self.log = MemoryLog(ManualClock(1_000))
        self.log.ensure_topics([TopicSpec(TOPIC, 1, {})])
        self.log.faults = lambda _: self.ends.pop(0) if self.ends else None
        self.ends: list[CommitFault | None] = []
        self.transactions = Transactions("shard 0", aside, Silence(), Silence())
        self.take_over()

    def take_over(self) -> None:
        self.transactions.drop()
        producer = self.log.transactional(ID)
        self.transactions.use(producer)
        producer.init()

    def read(self, *, committed_only: bool = True) -> list[bytes]:
        reader = self.log.reader(committed_only=committed_only)
        reader.assign({(TOPIC, 0): 0})
        records: list[Record] = reader.poll(100, 0)
        return [record.value for record in records]


@pytest.fixture(params=ASIDES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param())


def records(*values: bytes) -> list[Outgoing]:
    return [Outgoing(TOPIC, 0, value, None, ()) for value in values]


def test_one_after_the_other(bench: Bench) -> None:
    bench.transactions.send_aside(records(b"1a", b"1b"))
    bench.transactions.send_aside(records(b"2"))
    bench.transactions.send(records(b"3"))
    assert bench.read() == [b"1a", b"1b", b"2", b"3"]
    bench.transactions.settle()
    bench.transactions.close()


def test_what_was_aborted_is_sent_again_before_the_next(bench: Bench) -> None:
    bench.ends = [CommitFault.ABORTED, CommitFault.ABORTED]
    bench.transactions.send_aside(records(b"1a", b"1b"))
    bench.transactions.send(records(b"2"))
    assert bench.read() == [b"1a", b"1b", b"2"]
    assert bench.read(committed_only=False) == [b"1a", b"1b"] * 3 + [b"2"]
    bench.transactions.close()


def test_aborts_come_to_an_end(bench: Bench) -> None:
    bench.ends = [CommitFault.ABORTED] * (1 + ABORTS_MAX)
    bench.transactions.send_aside(records(b"1"))
    with pytest.raises(InDoubtError, match="in a row"):
        bench.transactions.settle()
    bench.transactions.close()


@pytest.mark.parametrize("fault", [CommitFault.IN_DOUBT_LANDED, CommitFault.IN_DOUBT_LOST])
def test_after_a_doubt_nothing_of_the_next_is_sent(bench: Bench, fault: CommitFault) -> None:
    bench.ends = [fault]
    bench.transactions.send_aside(records(b"1"))
    with pytest.raises(InDoubtError):
        bench.transactions.send_aside(records(b"2"))
    assert bench.read(committed_only=False) == [b"1"]
    bench.take_over()
    bench.transactions.send(records(b"3"))
    is_committed = fault is CommitFault.IN_DOUBT_LANDED
    assert bench.read() == [b"1", b"3"][not is_committed :]
    bench.transactions.close()


def test_a_fence_is_told_by_the_next(bench: Bench) -> None:
    bench.transactions.send(records(b"1"))
    bench.log.transactional(ID).init()
    bench.transactions.send_aside(records(b"2"))
    with pytest.raises(FencedError):
        bench.transactions.send(records(b"3"))
    assert bench.read(committed_only=False) == [b"1"]
    bench.transactions.close()


def test_a_fence_is_told_when_the_producer_is_dropped(bench: Bench) -> None:
    """Or the id would be taken again by who lost it."""
    bench.transactions.send(records(b"1"))
    bench.log.transactional(ID).init()
    bench.transactions.send_aside(records(b"2"))
    with pytest.raises(FencedError):
        bench.transactions.drop()
    bench.transactions.close()


def test_what_is_in_flight_ends_before_the_producer_is_freed(bench: Bench) -> None:
    bench.transactions.send_aside(records(b"1"))
    bench.transactions.close()
    assert bench.read() == [b"1"]


def test_the_owner_goes_on_while_a_thread_commits() -> None:
    aside, go = ThreadAside(), threading.Event()
    seen: list[str] = []

    def call() -> None:
        assert go.wait(10)
        seen.append(threading.current_thread().name)

    aside.start(call)
    assert not seen
    go.set()
    aside.wait()
    assert seen
    assert seen[0].startswith("fairlane-commit")
    aside.wait()
    aside.close()
