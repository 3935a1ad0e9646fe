"""The log, as every service sees it: values, errors and the port that adapters fill.

What belongs here: the few operations of a partitioned, transactional log that the
exactly-once protocol (docs/spec) stands on. Two adapters implement them,
`adapters.kafka` and `adapters.memory`; one contract suite (tests/contract) runs on both.
What does not: anything of a client library, and any policy about when to call what.

Words: a *partition* is (topic, number). A *position* is the next offset to read. Offsets
grow but are not contiguous: transaction markers and aborted records leave gaps. The *end*
of a partition is its last stable offset: everything below it is decided.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

Partition = tuple[str, int]
Headers = Sequence[tuple[str, bytes]]

#: Largest record (value and headers, bytes) that producers accept; the brokers' default.
RECORD_BYTES_MAX = 1_000_000
#: Name of the only header of a record whose own can't be read: their names are no UTF-8 text.
UNREADABLE_HEADER = "\N{REPLACEMENT CHARACTER}"
#: Longest commit metadata that passes through the client (FACTS: 4,096 is refused).
METADATA_CHARS_MAX = 4_095
#: transaction.timeout.ms of every transactional producer.
TRANSACTION_TIMEOUT_MS = 5_000


class Record(NamedTuple):
    """One record as read. `timestamp_ms` is epoch milliseconds, set by the log on append."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def place(self) -> str:
        """Where the record stands, for messages: `topic[partition]@offset`."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Bounds(NamedTuple):
    """First offset still kept, and the end (last stable offset) of a partition."""

    low: int
    end: int


class Commit(NamedTuple):
    """What a group committed for a partition: next offset and up to 4,095 characters."""

    offset: int
    metadata: str


class Change(NamedTuple):
    """What a membership gained and lost; a lost partition must not be written for any more."""

    gained: tuple[int, ...]
    lost: tuple[int, ...]


class TopicSpec(NamedTuple):
    """A topic to create: `config` holds broker settings by their Kafka names."""

    name: str
    partitions: int
    config: Mapping[str, str]


class LogError(Exception):
    """The log could not do what was asked."""


class FencedError(LogError):
    """Another holder initialised the same transactional id. Stop; rejoin; never retry."""


class InDoubtError(LogError):
    """The transaction may or may not be committed. Initialise again and re-read."""


class AbortedError(LogError):
    """The transaction is certainly aborted; the epoch is still ours: the same may be sent again."""


class TooLargeError(LogError):
    """The record is above the size limit; it alone is refused, the transaction goes on."""


class UnavailableError(LogError):
    """The log does not answer. Nothing was written by this call."""


class PositionLostError(LogError):
    """A reader's position is outside of what the log still holds."""

    def __init__(self, partition: Partition, position: int, bounds: Bounds) -> None:
        """Name the place: which partition, which position, and what the log holds now."""
        self.partition, self.position, self.bounds = partition, position, bounds
        super().__init__(
            f"{partition[0]}[{partition[1]}]: position {position} is outside of the log, "
            f"which holds {bounds.low}..{bounds.end}"
        )


def check_record(
    topic: str, partition: int, value: bytes, key: bytes | None, headers: Headers
) -> None:
    """Refuse a record above RECORD_BYTES_MAX (value, key and headers together).

    Raises:
        TooLargeError: names the partition, the size and the limit.
    """
    size = len(value) + (len(key) if key else 0)
    for name, content in headers:
        size += len(name) + len(content)
    if size > RECORD_BYTES_MAX:
        raise TooLargeError(
            f"{topic}[{partition}]: a record of {size} bytes is above the limit of "
            f"{RECORD_BYTES_MAX}; send less, or send it in parts"
        )


def check_commits(group: str, commits: Mapping[Partition, Commit]) -> None:
    """Refuse commit metadata above METADATA_CHARS_MAX.

    Raises:
        TooLargeError: names the group, the partition, the length and the limit.
    """
    for (topic, partition), commit in commits.items():
        if len(commit.metadata) > METADATA_CHARS_MAX:
            raise TooLargeError(
                f"group {group}, {topic}[{partition}]: commit metadata of "
                f"{len(commit.metadata)} characters is above the limit of {METADATA_CHARS_MAX}"
            )


#: Called once per record, from a thread that drives the client (Kafka) or at once (memory):
#: the record's offset, or the error that kept it out of the log.
OnDelivery = Callable[[int | None, LogError | None], None]


class Producer(Protocol):
    """Idempotent producer outside of transactions (acks=all)."""

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
        """Enqueue one record. Raises TooLargeError for this record, UnavailableError if full."""

    def flush(self, timeout_s: float) -> int:
        """Wait until every record is delivered; returns how many are still outstanding."""

    def close(self) -> None:
        """Flush for a short while and free the client."""


class TransactionalProducer(Protocol):
    """One transactional id: whoever called `init` last owns it, every other is fenced."""

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """Take the id over; the predecessor's open transaction is ended when this returns.

        `meanwhile` is called again and again while brokers take their time, a slice of other
        work each; it returns False when there is none at the moment. It may be cut off at any
        slice. Its time is not the brokers': how long they may take is counted without it.
        May be called again: after InDoubtError, and after FencedError with a new assignment.
        """

    def begin(self) -> None:
        """Open a transaction."""

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

    def send_offsets(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions of a group without members, with the transaction or not at all.

        Raises TooLargeError for metadata (the transaction goes on), else like `commit`.
        """

    def commit(self) -> None:
        """End the transaction. Raises FencedError, AbortedError or InDoubtError.

        Any other LogError: nothing was committed, and the same would be refused again.
        """

    def abort(self) -> None:
        """Abort the open transaction; its records stay invisible. Raises like `commit`."""

    def close(self) -> None:
        """Free the client; an open transaction is left to the next `init`."""


class Reader(Protocol):
    """Reads assigned partitions in offset order; never joins a group, never commits."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions from these offsets on (replaces what was assigned)."""

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        """Return up to `limit` records; waits up to `timeout_s` for the first one only.

        Raises PositionLostError when a position is below the log start or beyond its end.
        """

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no records of exactly these assigned partitions until the next call.

        Their positions stay; `assign` ends every pause.
        """

    def reached(self, partition: Partition, end: int) -> bool:
        """Tell whether `poll` has returned every record of the partition below `end`."""

    def bounds(self, partition: Partition) -> Bounds:
        """Ask the log (no cache) for the first offset and the end of a partition."""

    def offset_at(self, partition: Partition, time_ms: int) -> int | None:
        """First offset whose timestamp is at least `time_ms`; None when there is none."""

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What the group committed; waits for open transactions that hold such commits."""

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions of a group without members outside of a transaction."""

    def close(self) -> None:
        """Free the client."""


class Membership(Protocol):
    """One member of a group that shares out the partitions of one topic; reads no record."""

    def poll(self, timeout_s: float) -> Change | None:
        """What changed since the last call; None when nothing did. Raises LogError when fenced."""

    def close(self) -> None:
        """Leave the group; a static instance may come back to what it held, for a while."""

    def leave(self) -> None:
        """Leave the group for good: what is held goes to others at once. Then `close`."""


class Log(Protocol):
    """A log: the factory of the above."""

    def producer(self, *, linger_ms: int = 0) -> Producer:
        """Make an idempotent producer; a record waits up to `linger_ms` for others to go along."""

    def transactional(self, transactional_id: str) -> TransactionalProducer:
        """Make a transactional producer; nothing is taken over before `init`."""

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> Reader:
        """Make a reader. With `committed_only` False it also shows open and aborted records.

        `ahead` False is for one that goes on for ever, over several partitions: little is fetched
        before it is asked for, so that what comes in one partition is not behind the others'.
        """

    def membership(self, group: str, topic: str, instance: str | None = None) -> Membership:
        """Join `group` on `topic`; `instance` names a static member that survives a restart."""

    def ensure_topics(self, topics: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing; returns the names created. Raises LogError on another shape."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; 0 when it does not exist."""

    def topic_id(self, topic: str) -> str:
        """The topic's identity: a recreated topic of the same name has another one."""

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Drop everything below the given offsets."""

    def close(self) -> None:
        """Free the admin client."""
