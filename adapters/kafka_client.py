"""What every Kafka client of the adapter shares: settings, and what an error means.

The rules for errors: a *fenced* code means that another holder has the id; what says that the
same call may be repeated is repeated for a bounded time; everything else is fatal for the
client that met it.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from schemas.log import (
    TRANSACTION_TIMEOUT_MS,
    FencedError,
    InDoubtError,
    LogError,
    TooLargeError,
    UnavailableError,
)

Setting = str | int | float | bool
Result = TypeVar("Result")

#: Longest wait for one answer of the brokers; the longest stall after one of them dies.
REQUEST_TIMEOUT_S = 10.0
#: Pause before a call is repeated; brokers settle a transaction within a few milliseconds.
RETRY_PAUSE_S = 0.01
#: When a record of a plain producer counts as undeliverable.
DELIVERY_TIMEOUT_MS = 10_000
#: Above RECORD_BYTES_MAX with room for framing, below the brokers' 1,048,588: the port refuses
#: first, so that the client never has to.
MESSAGE_BYTES_MAX = 1_048_000
#: A parked fetch delays a new assignment on the same connection by as much: at 250 ms a take-over
#: takes a third of a second longer. Ten empty fetches a second and client cost a small broker 1 %.
FETCH_WAIT_MS = 100

FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - the client's own name for it
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
IN_DOUBT = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - sent, perhaps, and never acknowledged
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - sent, perhaps, and given up
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
UNAVAILABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - dropped before it was sent
        KafkaError._QUEUE_FULL,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
SIZE = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)


def error_of(raised: KafkaException) -> KafkaError:
    """The client's error inside of an exception."""
    found: KafkaError = raised.args[0]
    return found


def meaning(error: KafkaError, place: str) -> LogError:
    """The port's error for a client's; `place` says where and what was being done."""
    code = error.code()
    text = f"{place}: {error.name()}: {error.str()}"
    if code in FENCED:
        return FencedError(text)
    if code in SIZE:
        return TooLargeError(text)
    if code in IN_DOUBT:
        return InDoubtError(text)
    if code in UNAVAILABLE or error.retriable():
        return UnavailableError(text)
    if code in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}:  # noqa: SLF001
        return LogError(f"{text}; create the topic with ensure_topics")
    return LogError(text)


def patiently(place: str, call: Callable[[], Result], timeout_s: float) -> Result:
    """Repeat a call that changes nothing, or the same thing again, until the brokers answer.

    Raises:
        UnavailableError: they didn't within `timeout_s`.
        LogError: they refused.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except KafkaException as raised:
            error = meaning(error_of(raised), place)
            if not isinstance(error, UnavailableError) or time.monotonic() > deadline:
                raise error from raised
        time.sleep(RETRY_PAUSE_S)


class Settings:
    """Client settings by role: fixed ones first, then the user's for every client."""

    def __init__(
        self,
        bootstrap: str,
        session_timeout_ms: int,
        heartbeat_ms: int,
        overrides: Mapping[str, Setting],
    ) -> None:
        self.bootstrap = bootstrap
        self._session = {
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": heartbeat_ms,
        }
        self._overrides = dict(overrides)

    def admin(self) -> dict[str, Setting]:
        """Settings of the admin client, and what all clients share."""
        return {
            "bootstrap.servers": self.bootstrap,
            "retry.backoff.ms": 10,
            "socket.nagle.disable": True,
            "log.connection.close": False,
            **self._overrides,
        }

    def producer(self) -> dict[str, Setting]:
        """Settings of the idempotent producer."""
        return {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "partitioner": "murmur2_random",
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            **self.admin(),
        }

    def transactional(self, transactional_id: str) -> dict[str, Setting]:
        """Settings of a transactional producer."""
        return {
            **self.producer(),
            # A commit flushes: nothing waits for so long. At 0 the first records of a transaction
            # leave one by one, and once five requests of a partition are away the client's thread
            # looks for room without a pause until one comes back.
            "linger.ms": 100,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "delivery.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }

    def group(self, group: str) -> dict[str, Setting]:
        """Settings of a client that reads and writes a group's positions and nothing else."""
        return {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **self.admin(),
        }

    def reader(self, *, committed_only: bool, ahead: bool) -> dict[str, Setting]:
        """Settings of a client that fetches and never joins; its group stays unused."""
        return {
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # How long after it was taken the next fetch starts at the latest.
            "fetch.queue.backoff.ms": 5 if ahead else 1,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            # 1: the next fetch starts when all was taken, and brings what has come meanwhile; with
            # more, each record that is appended anywhere makes a fetch of its own.
            "queued.min.messages": 20_000 if ahead else 1,
            **self.group("fairlane-reader"),
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        }

    def member(self, group: str, instance: str | None) -> dict[str, Setting]:
        """Settings of a client that joins and never fetches."""
        static = {} if instance is None else {"group.instance.id": instance}
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "group.protocol": "classic",
            "auto.offset.reset": "latest",
            **self._session,
            **self.group(group),
            **static,
        }
