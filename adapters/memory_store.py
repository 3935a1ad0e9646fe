"""What the in-process log holds: partitions with their gaps, transactions, committed positions.

What belongs here: the state that a broker would keep, and the rules by which it changes.
What does not: the port's objects (adapters.memory), groups' members (adapters.memory_groups),
locks: the caller holds the log's one lock around everything here.

A slot is one offset. A transaction's end takes one slot in every partition it wrote to (None
in `slots`); aborted records keep theirs, and committed readers skip both. A partition's end
(last stable offset) is the first offset of its oldest open transaction.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

from schemas.log import (
    TRANSACTION_TIMEOUT_MS,
    Bounds,
    Commit,
    FencedError,
    Headers,
    LogError,
    Partition,
    Record,
    UnavailableError,
)


class Clock(Protocol):
    """Where timestamps come from."""

    def now_ms(self) -> int:
        """Epoch time in milliseconds; never goes back."""


class PartitionLog:
    """The records of one partition. Offsets grow by one a slot; slots below `low` are gone."""

    __slots__ = ("aborted", "low", "name", "open", "slots", "times")

    def __init__(self, name: Partition) -> None:
        self.name = name
        self.low = 0
        self.slots: list[Record | None] = []
        self.times = array("q")
        self.aborted: set[int] = set()
        self.open: dict[str, int] = {}

    @property
    def next(self) -> int:
        """The offset that the next append takes."""
        return self.low + len(self.slots)

    @property
    def end(self) -> int:
        """Last stable offset: everything below it is decided."""
        return min(self.open.values()) if self.open else self.low + len(self.slots)

    def append(self, now_ms: int, key: bytes | None, value: bytes, headers: Headers) -> int:
        """Add a record; returns its offset."""
        offset = self.low + len(self.slots)
        topic, partition = self.name
        self.slots.append(
            Record(topic, partition, offset, now_ms, key, value, tuple(headers)),
        )
        self.times.append(now_ms)
        return offset

    def mark(self, now_ms: int) -> None:
        """Spend one offset on a transaction's end."""
        self.slots.append(None)
        self.times.append(now_ms)

    def read(self, position: int, limit: int, *, committed_only: bool) -> tuple[list[Record], int]:
        """Up to `limit` visible records from `position` on, and the next position.

        The position moves over markers and aborted records, trailing ones included.
        """
        slots, aborted = self.slots, self.aborted if committed_only else ()
        at = position - self.low
        stop = (self.end - self.low) if committed_only else len(slots)
        found: list[Record] = []
        while at < stop and len(found) < limit:
            upto = min(stop, at + limit - len(found))
            if aborted:
                found += [r for r in slots[at:upto] if r is not None and r.offset not in aborted]
            else:
                found += [r for r in slots[at:upto] if r is not None]
            at = upto
        while at < stop:
            record = slots[at]
            if record is not None and record.offset not in aborted:
                break
            at += 1
        return found, max(position, self.low + at)

    def offset_at(self, time_ms: int) -> int:
        """First offset (of a record or a marker) not older than `time_ms`, or `next`."""
        return self.low + bisect_left(self.times, time_ms)

    def tail(self, bytes_max: int) -> int:
        """First offset from which the values up to the end have at most so many bytes."""
        left = bytes_max
        for at in range(len(self.slots) - 1, -1, -1):
            record = self.slots[at]
            left -= len(record.value) if record is not None else 0
            if left < 0:
                return self.low + at + 1
        return self.low

    def delete_before(self, offset: int) -> None:
        """Drop the slots below `offset`; nothing happens when they are gone already."""
        count = offset - self.low
        if count > 0:
            del self.slots[:count]
            del self.times[:count]
            self.low = offset
            self.aborted = {kept for kept in self.aborted if kept >= offset}


class Transaction:
    """What one open transaction wrote: offsets by partition, and positions by group."""

    __slots__ = ("commits", "records", "started_ms")

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.records: dict[PartitionLog, list[int]] = {}
        self.commits: dict[str, dict[Partition, Commit]] = {}


class Store:
    """Topics, transactional ids and committed positions of one in-process log."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.parts: dict[Partition, PartitionLog] = {}
        self.counts: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        self.committed: dict[str, dict[Partition, Commit]] = {}
        self.committed_ms: dict[tuple[str, Partition], int] = {}
        self.configs: dict[str, Mapping[str, str]] = {}
        self._created = 0

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; its id is new even if a topic of this name existed before."""
        if partitions < 1:
            raise LogError(f"topic {topic}: {partitions} partitions; at least 1 is needed")
        self._created += 1
        self.counts[topic] = partitions
        self.configs[topic] = config
        self.ids[topic] = f"memory-{self._created}"
        for number in range(partitions):
            self.parts[topic, number] = PartitionLog((topic, number))

    def delete(self, topic: str) -> None:
        """Forget a topic, its records and what groups committed for it."""
        for number in range(self.counts.pop(topic, 0)):
            del self.parts[topic, number]
            for commits in self.committed.values():
                commits.pop((topic, number), None)
        self.ids.pop(topic, None)

    def part(self, partition: Partition) -> PartitionLog:
        """The partition's log. Raises LogError when there is none."""
        found = self.parts.get(partition)
        if found is None:
            topic, number = partition
            raise LogError(
                f"{topic}[{number}] does not exist (the topic has {self.counts.get(topic, 0)} "
                "partitions); create it with ensure_topics"
            )
        return found

    def append(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes,
        headers: Headers,
        transactional_id: str | None = None,
    ) -> int:
        """Add a record, to the id's open transaction if an id is given; returns the offset."""
        part = self.parts.get(partition) or self.part(partition)
        now_ms = self.clock.now_ms()
        if part.times and now_ms < part.times[-1]:
            now_ms = part.times[-1]
        offset = part.append(now_ms, key, value, headers)
        if transactional_id is not None:
            self._transaction(transactional_id).records.setdefault(part, []).append(offset)
            part.open.setdefault(transactional_id, offset)
        return offset

    def add_commits(
        self, transactional_id: str, group: str, commits: Mapping[Partition, Commit]
    ) -> None:
        """Hold positions back until the id's open transaction ends."""
        if commits:
            held = self._transaction(transactional_id).commits.setdefault(group, {})
            held.update(commits)

    def init(self, transactional_id: str) -> int:
        """End the id's open transaction (abort) and return the new epoch."""
        self.end(transactional_id, commit=False)
        epoch = self.epochs.get(transactional_id, 0) + 1
        self.epochs[transactional_id] = epoch
        return epoch

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Raises FencedError unless `epoch` is the id's newest."""
        self.expire()
        newest = self.epochs[transactional_id]
        if newest != epoch:
            raise FencedError(
                f"transactional id {transactional_id}: epoch {epoch} is fenced by {newest} "
                "(another holder took it over, or its transaction was open for too long)"
            )

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """Commit or abort the id's open transaction; does nothing when there is none."""
        transaction = self.open.pop(transactional_id, None)
        if transaction is None:
            return
        now_ms = self.clock.now_ms()
        for part, offsets in transaction.records.items():
            del part.open[transactional_id]
            if not commit:
                part.aborted.update(offsets)
            part.mark(max(now_ms, part.times[-1]))
        if commit:
            for group, commits in transaction.commits.items():
                self.commit(group, commits)

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Keep positions, and since when."""
        self.committed.setdefault(group, {}).update(commits)
        now_ms = self.clock.now_ms()
        for partition in commits:
            self.committed_ms[group, partition] = now_ms

    def expire(self) -> None:
        """Abort transactions that are open for TRANSACTION_TIMEOUT_MS, and fence their holders."""
        if not self.open:
            return
        latest = self.clock.now_ms() - TRANSACTION_TIMEOUT_MS
        for name in [name for name, open_ in self.open.items() if open_.started_ms <= latest]:
            self.init(name)

    def bounds(self, partition: Partition, *, committed_only: bool) -> Bounds:
        """First offset kept, and the end for committed readers or for all."""
        self.expire()
        part = self.part(partition)
        return Bounds(part.low, part.end if committed_only else part.next)

    def position(self, group: str, partition: Partition) -> Commit | None:
        """What the group committed for a partition.

        Raises:
            UnavailableError: an open transaction holds such a commit.
        """
        self.part(partition)
        for name, transaction in self.open.items():
            if partition in transaction.commits.get(group, ()):
                raise UnavailableError(
                    f"group {group}, {partition[0]}[{partition[1]}]: the open transaction of "
                    f"{name} holds a commit; ask again when it has ended"
                )
        return self.committed.get(group, {}).get(partition)

    def _transaction(self, transactional_id: str) -> Transaction:
        transaction = self.open.get(transactional_id)
        if transaction is None:
            transaction = self.open[transactional_id] = Transaction(self.clock.now_ms())
        return transaction
