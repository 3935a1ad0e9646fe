"""The log in one process: the twin of adapters.kafka for simulation, demo and tests.

What belongs here: the port's objects over `memory_store`. What does not: threads, waiting,
chance. Everything happens in the caller's thread under one lock, so the same calls under the
same clock give the same log; `timeout_s` never waits, and what a broker would make the caller
wait for raises UnavailableError, because the one who could end the wait is the caller itself.

Kept as on a broker: offsets with gaps, last stable offset, fencing by epoch, the transaction
timeout (on the clock), static instances; retention and compaction when `clean` is called.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from threading import RLock

from adapters.memory_groups import Group, MemoryMembership
from adapters.memory_retention import POSITIONS_MS, clean
from adapters.memory_store import Clock, Store
from schemas.log import (
    AbortedError,
    Bounds,
    Commit,
    FencedError,
    Headers,
    InDoubtError,
    LogError,
    OnDelivery,
    Partition,
    PositionLostError,
    Record,
    TopicSpec,
    check_commits,
    check_record,
)


class CommitFault(Enum):
    """What a simulation may do to a commit."""

    ABORTED = "aborted"
    IN_DOUBT_LANDED = "in doubt, landed"
    IN_DOUBT_LOST = "in doubt, still open"


#: Asked at each commit with the transactional id; None lets the commit be.
CommitFaults = Callable[[str], CommitFault | None]


class MemoryProducer:
    """Idempotent producer: every record is delivered before `send` returns."""

    def __init__(self, store: Store, lock: RLock) -> None:
        self._store = store
        self._lock = lock

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Append one record. Raises TooLargeError, or LogError for an unknown partition."""
        check_record(topic, partition, value, key, headers)
        with self._lock:
            offset = self._store.append((topic, partition), key, value, headers)
        if on_delivery is not None:
            on_delivery(offset, None)

    def flush(self, timeout_s: float) -> int:  # noqa: ARG002 - nothing is ever outstanding
        """Nothing is ever outstanding: 0."""
        return 0

    def close(self) -> None:
        """Nothing to free."""


class MemoryTransactional:
    """Holder of a transactional id; like a client, it learns of a fence from the coordinator only.

    So a fenced holder may begin and send (its records go nowhere) until it commits.
    """

    def __init__(self, log: "MemoryLog", store: Store, lock: RLock, transactional_id: str) -> None:
        self._log = log
        self._store = store
        self._lock = lock
        self._id = transactional_id
        self._epoch: int | None = None
        self._is_open = False

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """Take the id over after all of `meanwhile`; aborts the predecessor's transaction."""
        while meanwhile is not None and meanwhile():
            pass
        with self._lock:
            self._epoch = self._store.init(self._id)
            self._is_open = False

    def begin(self) -> None:
        """Open a transaction. Raises LogError before `init`, in doubt, or inside of another."""
        if self._epoch is None:
            raise LogError(f"transactional id {self._id}: init comes before begin")
        if self._is_open:
            raise LogError(f"transactional id {self._id}: a transaction is open already")
        self._is_open = True

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Add a record to the open transaction. Raises TooLargeError for this record alone."""
        self._open_epoch()
        check_record(topic, partition, value, key, headers)
        offset, error = None, None
        with self._lock:
            if self._epoch == self._store.epochs[self._id]:
                offset = self._store.append((topic, partition), key, value, headers, self._id)
            else:
                error = FencedError(f"transactional id {self._id}: fenced; the record is dropped")
        if on_delivery is not None:
            on_delivery(offset, error)

    def send_offsets(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions with the transaction. Raises FencedError; TooLargeError for metadata."""
        check_commits(group, commits)
        with self._lock:
            self._store.check_epoch(self._id, self._open_epoch())
            for partition in commits:
                self._store.part(partition)
            self._store.add_commits(self._id, group, commits)

    def commit(self) -> None:
        """End the transaction. Raises FencedError, AbortedError or InDoubtError."""
        with self._lock:
            epoch = self._open_epoch()
            self._is_open = False
            self._store.check_epoch(self._id, epoch)
            faults = self._log.faults
            match faults(self._id) if faults is not None else None:
                case None:
                    self._store.end(self._id, commit=True)
                case CommitFault.ABORTED:
                    self._store.end(self._id, commit=False)
                    raise AbortedError(f"transactional id {self._id}: aborted by an injected fault")
                case CommitFault.IN_DOUBT_LANDED:
                    self._store.end(self._id, commit=True)
                    self._fall_in_doubt()
                case CommitFault.IN_DOUBT_LOST:
                    self._fall_in_doubt()

    def abort(self) -> None:
        """Abort the open transaction. Raises FencedError."""
        with self._lock:
            epoch = self._open_epoch()
            self._is_open = False
            self._store.check_epoch(self._id, epoch)
            self._store.end(self._id, commit=False)

    def close(self) -> None:
        """An open transaction is left to the next `init`, or to its timeout."""
        self._epoch = None
        self._is_open = False

    def _open_epoch(self) -> int:
        if self._epoch is None or not self._is_open:
            raise LogError(f"transactional id {self._id}: no transaction is open; begin one")
        return self._epoch

    def _fall_in_doubt(self) -> None:
        self._epoch = None
        raise InDoubtError(
            f"transactional id {self._id}: the commit may or may not have landed (injected "
            "fault); initialise again and read what is committed"
        )


class MemoryReader:
    """Reads assigned partitions; takes turns at which partition comes first."""

    def __init__(self, store: Store, lock: RLock, *, committed_only: bool) -> None:
        self._store = store
        self._lock = lock
        self._committed_only = committed_only
        self._positions: dict[Partition, int] = {}
        self._order: list[Partition] = []
        self._paused: frozenset[Partition] = frozenset()
        self._turn = 0

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        self._positions = dict(positions)
        self._order = list(positions)
        self._paused = frozenset()
        self._turn = 0

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no records of exactly these partitions until the next call."""
        self._paused = frozenset(partitions)

    def poll(self, limit: int, timeout_s: float) -> list[Record]:  # noqa: ARG002 - never waits
        """Up to `limit` records, without waiting. Raises PositionLostError, LogError."""
        found: list[Record] = []
        with self._lock:
            self._store.expire()
            order = self._order[self._turn :] + self._order[: self._turn]
            self._turn = (self._turn + 1) % max(1, len(order))
            for partition in order:
                if len(found) >= limit:
                    break
                if partition in self._paused:
                    continue
                position = self._positions[partition]
                part = self._store.part(partition)
                if not part.low <= position <= part.next:
                    if found:
                        break
                    raise PositionLostError(partition, position, Bounds(part.low, part.end))
                records, self._positions[partition] = part.read(
                    position, limit - len(found), committed_only=self._committed_only
                )
                found += records
        return found

    def reached(self, partition: Partition, end: int) -> bool:
        """Tell whether `poll` has returned every record of the partition below `end`."""
        if partition not in self._positions:
            raise LogError(f"{partition[0]}[{partition[1]}] is not assigned to this reader")
        return self._positions[partition] >= end

    def bounds(self, partition: Partition) -> Bounds:
        """First offset, and the end (what this reader may see). Raises LogError if unknown."""
        with self._lock:
            return self._store.bounds(partition, committed_only=self._committed_only)

    def offset_at(self, partition: Partition, time_ms: int) -> int | None:
        """First offset whose timestamp is at least `time_ms`; None when there is none."""
        with self._lock:
            offset = self._store.part(partition).offset_at(time_ms)
            end = self._store.bounds(partition, committed_only=self._committed_only).end
        return offset if offset < end else None

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What the group committed. Raises UnavailableError while an open transaction holds any."""
        with self._lock:
            self._store.expire()
            return {name: self._store.position(group, name) for name in partitions}

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions outside of a transaction. Raises TooLargeError for metadata."""
        check_commits(group, commits)
        with self._lock:
            for partition in commits:
                self._store.part(partition)
            self._store.commit(group, commits)

    def close(self) -> None:
        """Forget the assignment."""
        self.assign({})


class MemoryLog:
    """The log in one process, on a clock that is handed in.

    `faults`, if set, is asked at each commit with the transactional id; see CommitFault.
    """

    def __init__(self, clock: Clock) -> None:
        self.faults: CommitFaults | None = None
        self._clock = clock
        self._lock = RLock()
        self._store = Store(clock)
        self._groups: dict[str, Group] = {}

    def producer(self, *, linger_ms: int = 0) -> MemoryProducer:  # noqa: ARG002 - nothing waits here
        """Make an idempotent producer."""
        return MemoryProducer(self._store, self._lock)

    def transactional(self, transactional_id: str) -> MemoryTransactional:
        """Make a transactional producer; nothing is taken over before `init`."""
        return MemoryTransactional(self, self._store, self._lock, transactional_id)

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> MemoryReader:
        """Make a reader. With `committed_only` False it also shows open and aborted records."""
        del ahead  # nothing is fetched here
        return MemoryReader(self._store, self._lock, committed_only=committed_only)

    def membership(self, group: str, topic: str, instance: str | None = None) -> MemoryMembership:
        """Join `group` on `topic`. Raises LogError if the group shares out another topic."""
        with self._lock:
            found = self._groups.get(group)
            if found is None or not found.members:
                found = Group(group, topic, self._clock, lambda: self.partitions(topic))
                self._groups[group] = found
            if found.topic != topic:
                raise LogError(
                    f"group {group} shares out topic {found.topic}, not {topic}; name another group"
                )
            return MemoryMembership(found, self._lock, self._clock, instance)

    def ensure_topics(self, topics: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing; returns the names created. Raises LogError on another shape."""
        with self._lock:
            for spec in topics:
                has = self.partitions(spec.name)
                if has not in {0, spec.partitions}:
                    raise LogError(
                        f"topic {spec.name} has {has} partitions and needs {spec.partitions}; "
                        "use another prefix, or the topology that it was created with"
                    )
            missing = [spec for spec in topics if not self.partitions(spec.name)]
            for spec in missing:
                self._store.create(spec.name, spec.partitions, spec.config)
            return [spec.name for spec in missing]

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; 0 when it does not exist."""
        return self._store.counts.get(topic, 0)

    def topic_id(self, topic: str) -> str:
        """The topic's identity; a recreated topic has another one. Raises LogError if unknown."""
        with self._lock:
            self._store.part((topic, 0))
            return self._store.ids[topic]

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        with self._lock:
            return sorted(self._store.counts)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with everything in it; nothing happens when there is none."""
        with self._lock:
            self._store.delete(topic)

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Drop everything below the given offsets. Raises LogError beyond the end."""
        with self._lock:
            for partition, offset in before.items():
                end = self._store.bounds(partition, committed_only=False).end
                if offset > end:
                    raise LogError(
                        f"{partition[0]}[{partition[1]}]: can't delete up to {offset}; "
                        f"the log ends at {end}"
                    )
            for partition, offset in before.items():
                self._store.part(partition).delete_before(offset)

    def clean(self, positions_ms: int = POSITIONS_MS) -> None:
        """Do what brokers do every few minutes: delete and compact what is due.

        Positions that were committed `positions_ms` ago are forgotten.
        """
        with self._lock:
            self._store.expire()
            clean(self._store, self._clock.now_ms(), positions_ms)

    def tail(self, partition: Partition, bytes_max: int) -> int:
        """First offset from which the values up to the end have at most so many bytes."""
        with self._lock:
            return self._store.part(partition).tail(bytes_max)

    def close(self) -> None:
        """Nothing to free: the records stay for whoever holds this object."""
