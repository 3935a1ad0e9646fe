"""Reader on Kafka: assigned partitions, never a group.

How far a partition is read: control records and aborted ones are not delivered, so the offset
of the last record says nothing about what follows it. The client's end-of-partition event
carries the offset up to which it has looked; `reached` counts records and those events.

Questions to the log (bounds, positions) go over connections of their own: on the reader's, an
answer would wait behind a parked fetch.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from adapters.kafka_client import Settings, meaning
from schemas.log import (
    UNREADABLE_HEADER,
    Bounds,
    Commit,
    LogError,
    Partition,
    PositionLostError,
    Record,
)

#: How long to collect what is on its way when several records came at once: without it cycles
#: get tiny under load. One alone does not wait for company.
COLLECT_S = 0.002
_LOST = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - the client's own name for it
        KafkaError._LOG_TRUNCATION,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)


class Questions(Protocol):
    """What a reader asks the log about, answered by the log's own clients."""

    def bounds(self, partition: Partition, *, committed_only: bool) -> Bounds:
        """First offset and end."""

    def offset_at(self, partition: Partition, time_ms: int, *, committed_only: bool) -> int | None:
        """First offset at or after a time."""

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What a group committed."""

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit for a group."""


class KafkaReader:
    """Reads assigned partitions in offset order. Not for several threads at once."""

    def __init__(
        self, settings: Settings, questions: Questions, *, committed_only: bool, ahead: bool
    ) -> None:
        self._settings = settings.reader(committed_only=committed_only, ahead=ahead)
        self._client: Consumer | None = None
        self._questions = questions
        self._committed_only = committed_only
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._failures: dict[Partition | None, LogError] = {}

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        self.close()
        self._positions = dict(positions)
        self._paused = set()
        self._failures = {}
        # A client asks for its topics when it connects. One that is connected already looks for
        # topics that it doesn't know once a second only, so each assignment has its own.
        self._client = Consumer(self._settings)
        self._client.assign(
            [TopicPartition(topic, number, at) for (topic, number), at in positions.items()]
        )

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no records of exactly these partitions until the next call.

        What the client had fetched of them is fetched again afterwards.
        """
        wanted = set(partitions)
        if self._client is None or wanted == self._paused:
            return
        stopped, going = wanted - self._paused, self._paused - wanted
        if stopped:
            self._client.pause([TopicPartition(*partition) for partition in stopped])
        if going:
            self._client.resume([TopicPartition(*partition) for partition in going])
        self._paused = wanted

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        """Up to `limit` records; waits up to `timeout_s` for the first record or the end.

        Raises:
            PositionLostError: a position is outside of the log, at each call until `assign`.
            LogError: a partition can't be read (unknown topic, not allowed), likewise.
        """
        deadline = time.monotonic() + timeout_s
        if self._client is None:
            time.sleep(timeout_s)
            return []
        messages = self._client.consume(1, max(0.0, timeout_s))
        if messages and limit > 1:
            messages += self._client.consume(limit - 1, 0)
            missing = limit - len(messages)
            if len(messages) > 1 and missing:
                collect_s = min(COLLECT_S, max(0.0, deadline - time.monotonic()))
                messages += self._client.consume(missing, collect_s)
        found = self._taken(messages)
        if not found and self._failures:
            raise self._first_failure()
        return found

    def _taken(self, messages: list[Message]) -> list[Record]:
        """Records among what the client returned; positions move on, events are noted."""
        found: list[Record] = []
        new = tuple.__new__  # a named tuple's own constructor costs a call of Python more
        positions = self._positions
        topic, number, partition, position = "", -1, ("", -1), 0
        for message in messages:
            error = message.error()
            if error is not None:
                if number >= 0:
                    positions[partition] = position
                self._note(error, message)
                number = -1
                continue
            if message.partition() != number or message.topic() != topic:
                if number >= 0:
                    positions[partition] = position
                topic, number = message.topic() or "", message.partition() or 0
                partition = topic, number
                if partition not in positions:  # of an assignment that is over
                    number = -1
                    continue
                position = positions[partition]
            offset = message.offset() or 0
            if offset < position:
                continue
            position = offset + 1
            value, at = message.value() or b"", message.timestamp()[1]
            headers: Any
            try:
                headers = message.headers()
            except (SystemError, UnicodeError):  # names that are no text: the client fails at them
                headers = ((UNREADABLE_HEADER, b""),)
            if headers is None:
                headers = ()
            elif len(headers) == 1 and headers[0][1] is not None:
                headers = (headers[0],)  # the usual ones without a call of their own
            else:
                headers = _headers(headers)
            found.append(new(Record, (topic, number, offset, at, message.key(), value, headers)))
        if number >= 0:
            positions[partition] = position
        return found

    def reached(self, partition: Partition, end: int) -> bool:
        """Tell whether `poll` has returned every record of the partition below `end`."""
        if partition not in self._positions:
            raise LogError(f"{partition[0]}[{partition[1]}] is not assigned to this reader")
        return self._positions[partition] >= end

    def bounds(self, partition: Partition) -> Bounds:
        """Ask the log for the first offset and the end (what this reader may see)."""
        return self._questions.bounds(partition, committed_only=self._committed_only)

    def offset_at(self, partition: Partition, time_ms: int) -> int | None:
        """First offset whose timestamp is at least `time_ms`; None when there is none."""
        return self._questions.offset_at(partition, time_ms, committed_only=self._committed_only)

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What the group committed.

        Raises:
            UnavailableError: an open transaction that holds such commits did not end in time.
        """
        return self._questions.committed(group, partitions)

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions outside of a transaction. Raises TooLargeError for metadata."""
        self._questions.commit(group, commits)

    def close(self) -> None:
        """Free the client."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _note(self, error: KafkaError, message: Message) -> None:
        """Keep what an event says: an end reached, or a failure to raise."""
        topic, number = message.topic(), message.partition()
        partition = None if topic is None or number is None else (topic, number)
        if partition is not None and partition not in self._positions:
            return
        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own name
            place = "reading" if partition is None else f"{topic}[{number}]: reading"
            failure = meaning(error, place)
            if partition is not None and error.code() in _LOST:
                failure = _OutsideError(str(failure))
            self._failures[partition] = failure
        elif partition is not None:
            self._positions[partition] = max(self._positions[partition], message.offset() or 0)

    def _first_failure(self) -> LogError:
        """The first failure kept: one of a partition stays until `assign`, others go."""
        partition, failure = next(iter(self._failures.items()))
        if partition is None:
            del self._failures[None]
        elif isinstance(failure, _OutsideError):
            lost = PositionLostError(partition, self._positions[partition], self.bounds(partition))
            lost.__cause__ = failure
            return lost
        return failure


class _OutsideError(LogError):
    """The client's report that a position is outside of the log; bounds are asked when raised."""


def _headers(found: Any) -> tuple[tuple[str, bytes], ...]:
    """Headers as the client returns them: None for none, and for an empty content."""
    if not found:
        return ()
    for _, content in found:
        if content is None:
            return tuple([(name, content or b"") for name, content in found])
    return tuple(found)
