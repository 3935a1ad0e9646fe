"""One test's view of a log: names of its own, waiting for what a broker does a little later."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

from schemas.log import (
    Commit,
    Log,
    Membership,
    Partition,
    Producer,
    Reader,
    Record,
    TopicSpec,
    TransactionalProducer,
)

#: Longest wait for anything; far above what a slow machine needs.
PATIENCE_S = 30.0
PAUSE_S = 0.005
POLL_S = 0.05


class LogUnderTest(Log, Protocol):
    """The port, and what both adapters offer to tests."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""


class Closable(Protocol):
    def close(self) -> None:
        """Free it."""


def until(is_met: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_met():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(PAUSE_S)


class Harness:
    """Makes topics, ids and clients under names that no other test uses, and closes them."""

    def __init__(
        self, log: LogUnderTest, impatient: LogUnderTest, filler: Producer | None = None
    ) -> None:
        self.log = log
        self._filler = filler or log.producer()
        self._impatient = impatient
        self.name = f"contract-{uuid.uuid4().hex[:10]}"
        self._made: list[Closable] = []
        self._names = 0

    def fresh(self, kind: str) -> str:
        """A name for a group, a topic or a transactional id."""
        self._names += 1
        return f"{self.name}.{kind}-{self._names}"

    def topic(self, partitions: int = 1) -> str:
        name = self.fresh("topic")
        self.log.ensure_topics([TopicSpec(name, partitions, {})])
        return name

    def producer(self) -> Producer:
        made = self.log.producer()
        self._made.append(made)
        return made

    def transactional(self, transactional_id: str) -> TransactionalProducer:
        """A holder of the id that has taken it over."""
        made = self.log.transactional(transactional_id)
        self._made.append(made)
        made.init()
        return made

    def reader(
        self, positions: Mapping[Partition, int] | None = None, *, committed_only: bool = True
    ) -> Reader:
        made = self.log.reader(committed_only=committed_only)
        self._made.append(made)
        if positions:
            made.assign(positions)
        return made

    def impatient_reader(self) -> Reader:
        """A reader that doesn't wait for the end of transactions."""
        made = self._impatient.reader()
        self._made.append(made)
        return made

    def membership(self, group: str, topic: str, instance: str | None = None) -> Membership:
        made = self.log.membership(group, topic, instance)
        self._made.append(made)
        return made

    def fill(self, partition: Partition, values: list[bytes]) -> None:
        """Deliver plain records, by one producer for all tests: a new one is slow to start."""
        for value in values:
            self._filler.send(*partition, value)
        assert self._filler.flush(PATIENCE_S) == 0

    def stable_end(self, partition: Partition) -> int:
        """The end once no transaction holds it back."""
        committed, everything = self.reader(), self.reader(committed_only=False)
        until(
            lambda: committed.bounds(partition).end == everything.bounds(partition).end,
            f"{partition}: the last stable offset reaches the end",
        )
        return committed.bounds(partition).end

    def committed(self, group: str, partition: Partition) -> Commit | None:
        return self.reader().committed(group, [partition])[partition]

    def read(self, partition: Partition, *, committed_only: bool = True) -> list[Record]:
        """Everything that is in a partition once it is stable."""
        end = self.stable_end(partition)
        low = self.reader().bounds(partition).low
        reader = self.reader({partition: low}, committed_only=committed_only)
        return drain(reader, partition, end)

    def values(self, partition: Partition, *, committed_only: bool = True) -> list[bytes]:
        found = self.read(partition, committed_only=committed_only)
        return [record.value for record in found]

    def close(self) -> None:
        for made in reversed(self._made):
            made.close()


def drain(reader: Reader, partition: Partition, end: int, limit: int = 1000) -> list[Record]:
    """Poll until the partition is read up to `end`."""
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while not reader.reached(partition, end):
        assert time.monotonic() < deadline, f"{partition}: {end} not reached, got {len(found)}"
        found += reader.poll(limit, POLL_S)
    return found


def settle(members: Mapping[str, Membership], held: dict[str, set[int]]) -> None:
    """Poll every member once and note what it holds."""
    for name, member in members.items():
        change = member.poll(POLL_S)
        if change is not None:
            held[name] = (held[name] - set(change.lost)) | set(change.gained)
