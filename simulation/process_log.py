"""The log as one process sees it: every call is a step, at which something may go wrong.

Each object of the port is wrapped; `at` is asked before each call (and once more after a
commit has landed) and may raise `Killed` or a LogError, take its time, or name what shall
become of a commit. Nothing else is changed, so a process without faults sees the log itself.

What belongs here: the wrapping, and what the log looks like to somebody who is cut off from
the group (`is_deaf`). What does not: which fault comes when (simulation.faults).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from adapters.memory import (
    CommitFault,
    MemoryLog,
    MemoryProducer,
    MemoryReader,
    MemoryTransactional,
)
from adapters.memory_groups import MemoryMembership
from schemas.log import Bounds, Change, Commit, Headers, OnDelivery, Partition, Record, TopicSpec


class Killed(BaseException):
    """The process is gone. A BaseException, so that no handler of a service mends it."""


class Call(Enum):
    """A step of a process."""

    INIT = "init"
    BEGIN = "begin"
    SEND = "send"
    SEND_OFFSETS = "send_offsets"
    COMMIT = "commit"
    COMMITTED = "committed"  # the commit has landed, and its caller does not know yet
    ABORT = "abort"
    PUBLISH = "publish"
    POLL = "poll"
    LOOK = "look"
    JOIN = "join"
    GROUP = "group"


#: Asked at each step; what it returns matters at COMMIT only.
At = Callable[[Call], CommitFault | None]


class ProcessLog:
    """One process's log. `is_deaf`: its group tells it nothing, and hears nothing of it."""

    def __init__(self, log: MemoryLog, at: At) -> None:
        self.is_deaf = False
        self.changes = 0  #: calls that others may see, in all
        self.inner = log
        self.at = at
        self._memberships: list[MemoryMembership] = []

    def fall_silent(self) -> None:
        """No heartbeat any more: others are given what is held here, after a while."""
        for membership in self._memberships:
            membership.fall_silent()

    def producer(self, *, linger_ms: int = 0) -> "ProcessProducer":
        """Make an idempotent producer."""
        return ProcessProducer(self, self.inner.producer(linger_ms=linger_ms))

    def transactional(self, transactional_id: str) -> "ProcessTransactional":
        """Make a transactional producer."""
        return ProcessTransactional(self, self.inner.transactional(transactional_id))

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> "ProcessReader":
        """Make a reader."""
        return ProcessReader(self, self.inner.reader(committed_only=committed_only, ahead=ahead))

    def membership(self, group: str, topic: str, instance: str | None = None) -> "ProcessMember":
        """Join a group."""
        self.at(Call.JOIN)
        self.changes += 1
        joined = self.inner.membership(group, topic, instance)
        self._memberships.append(joined)
        return ProcessMember(self, joined)

    def ensure_topics(self, topics: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing."""
        return self.inner.ensure_topics(topics)

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self.inner.partitions(topic)

    def topic_id(self, topic: str) -> str:
        """The topic's identity."""
        return self.inner.topic_id(topic)

    def topics(self) -> list[str]:
        """Names of all topics."""
        return self.inner.topics()

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Drop everything below the given offsets."""
        self.inner.delete_records(before)

    def close(self) -> None:
        """Nothing to free."""


class ProcessProducer:
    """A producer of one process."""

    def __init__(self, log: ProcessLog, inner: MemoryProducer) -> None:
        self._log = log
        self._inner = inner

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
        """Append one record."""
        self._log.at(Call.PUBLISH)
        self._log.changes += 1
        self._inner.send(topic, partition, value, key=key, headers=headers, on_delivery=on_delivery)

    def flush(self, timeout_s: float) -> int:
        """Nothing is ever outstanding."""
        return self._inner.flush(timeout_s)

    def close(self) -> None:
        """Nothing to free."""
        self._inner.close()


class ProcessTransactional:
    """A transactional producer of one process."""

    def __init__(self, log: ProcessLog, inner: MemoryTransactional) -> None:
        self._log = log
        self._inner = inner

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """Take the id over."""
        while meanwhile is not None and meanwhile():
            pass
        self._log.at(Call.INIT)
        self._log.changes += 1
        self._inner.init()

    def begin(self) -> None:
        """Open a transaction."""
        self._log.at(Call.BEGIN)
        self._inner.begin()

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
        """Add a record to the open transaction."""
        self._log.at(Call.SEND)
        self._inner.send(topic, partition, value, key=key, headers=headers, on_delivery=on_delivery)

    def send_offsets(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions with the transaction."""
        self._log.at(Call.SEND_OFFSETS)
        self._inner.send_offsets(group, commits)

    def commit(self) -> None:
        """End the transaction, or what `at` makes of it."""
        fault = self._log.at(Call.COMMIT)
        self._log.changes += 1
        memory = self._log.inner
        if fault is None:
            self._inner.commit()
        else:
            memory.faults = lambda _: fault
            try:
                self._inner.commit()
            finally:
                memory.faults = None
        self._log.at(Call.COMMITTED)

    def abort(self) -> None:
        """Abort the open transaction."""
        self._log.at(Call.ABORT)
        self._log.changes += 1
        self._inner.abort()

    def close(self) -> None:
        """Leave an open transaction to the next `init`."""
        self._inner.close()


class ProcessReader:
    """A reader of one process."""

    def __init__(self, log: ProcessLog, inner: MemoryReader) -> None:
        self._log = log
        self._inner = inner
        self.assign = inner.assign
        self.pause = inner.pause
        self.reached = inner.reached

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        """Up to `limit` records."""
        self._log.at(Call.POLL)
        return self._inner.poll(limit, timeout_s)

    def bounds(self, partition: Partition) -> Bounds:
        """First offset and end of a partition."""
        self._log.at(Call.LOOK)
        return self._inner.bounds(partition)

    def offset_at(self, partition: Partition, time_ms: int) -> int | None:
        """First offset whose timestamp is at least `time_ms`."""
        self._log.at(Call.LOOK)
        return self._inner.offset_at(partition, time_ms)

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What the group committed."""
        self._log.at(Call.LOOK)
        return self._inner.committed(group, partitions)

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions outside of a transaction."""
        self._log.at(Call.LOOK)
        self._inner.commit(group, commits)

    def close(self) -> None:
        """Forget the assignment."""
        self._inner.close()


class ProcessMember:
    """A membership of one process."""

    def __init__(self, log: ProcessLog, inner: MemoryMembership) -> None:
        self._log = log
        self._inner = inner

    def poll(self, timeout_s: float) -> Change | None:
        """What changed; nothing for who is deaf."""
        self._log.at(Call.GROUP)
        if self._log.is_deaf:
            return None
        change = self._inner.poll(timeout_s)
        self._log.changes += change is not None
        return change

    def leave(self) -> None:
        """Leave the group for good."""
        self._log.changes += 1
        self._inner.leave()

    def close(self) -> None:
        """Leave the group."""
        self._log.changes += 1
        self._inner.close()
