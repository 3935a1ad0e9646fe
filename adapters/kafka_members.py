"""Membership on Kafka: who holds which partition of a topic; reads nothing.

Cooperative sharing in the classic protocol (under the newer one, a second instance of the same
name does not take over). Partitions are assigned at their end and paused. The client swallows
what a callback raises and assigns all the same, so a failing callback is kept and ends the
membership at the next `poll`.
"""

import time
from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from adapters.kafka_client import UNAVAILABLE, Settings, error_of, meaning
from schemas.log import Change, FencedError, LogError

#: Longest wait inside of the client: it doesn't come back early when the assignment changes.
SLICE_S = 0.01

#: Longest wait until a leaving member has said so: brokers that are away are not waited for.
LEAVE_S = 1.0

#: A consumer's fatal error names its cause in the text alone.
_FENCED_TEXT = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()

#: What the client reports and gets over by itself: brokers that come back, a group that is
#: joined anew.
_PASSING = UNAVAILABLE | {
    KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001 - the client's own name for it
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
}

_Callback = Callable[[Consumer, list[TopicPartition]], None]


class KafkaMembership:
    """One member of a group that shares out the partitions of one topic."""

    def __init__(self, settings: Settings, group: str, topic: str, instance: str | None) -> None:
        self._place = f"group {group}" + (f", instance {instance}" if instance else "")
        self._failure: LogError | None = None
        self._held: set[int] = set()
        self._told: set[int] = set()
        self._lost: set[int] = set()
        self._client = Consumer(settings.member(group, instance))
        self._client.subscribe(
            [topic],
            on_assign=self._guarded(self._assign),
            on_revoke=self._guarded(self._unassign),
            on_lost=self._guarded(self._unassign),
        )

    def poll(self, timeout_s: float) -> Change | None:
        """What changed since the last call; None when nothing did.

        A partition that was lost and came back meanwhile is in both: it is lost first.

        Raises:
            FencedError: another member joined as the same instance.
            LogError: the membership can't go on; make a new one.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._serve(min(SLICE_S, max(0.0, deadline - time.monotonic())))
            if self._failure is not None:
                raise self._failure
            change = self._change()
            if change is not None or time.monotonic() >= deadline:
                return change

    def close(self) -> None:
        """Leave the group at once; a static instance is kept for until the session times out."""
        self._client.close()

    def leave(self) -> None:
        """Leave the group at once, also as a static instance; waits until that is said."""
        deadline = time.monotonic() + LEAVE_S
        self._client.unsubscribe()
        while self._client.memberid() and time.monotonic() < deadline:
            self._serve(SLICE_S)

    def _serve(self, wait_s: float) -> None:
        try:
            message = self._client.poll(wait_s)
            error = None if message is None else message.error()
        except KafkaException as raised:
            error = error_of(raised)
        if error is None:
            return
        if error.fatal() or not (error.retriable() or error.code() in _PASSING):
            self._fail(error)

    def _change(self) -> Change | None:
        lost = self._lost & self._told
        gained = self._held - (self._told - lost)
        self._told, self._lost = set(self._held), set()
        return Change(tuple(sorted(gained)), tuple(sorted(lost))) if gained or lost else None

    def _assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        at_end = [TopicPartition(item.topic, item.partition, OFFSET_END) for item in partitions]
        client.incremental_assign(at_end)
        client.pause(at_end)
        self._held |= {item.partition for item in partitions}

    def _unassign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {item.partition for item in partitions}
        self._held -= numbers
        self._lost |= numbers
        client.incremental_unassign(partitions)

    def _fail(self, error: KafkaError) -> None:
        failure = meaning(error, self._place)
        if error.code() == KafkaError._FATAL and _FENCED_TEXT in error.str():  # noqa: SLF001
            failure = FencedError(str(failure))
        self._failure = failure

    def _guarded(self, callback: _Callback) -> _Callback:
        def call(client: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                callback(client, partitions)
            except Exception as raised:  # noqa: BLE001 - kept, and raised by `poll`
                failure = LogError(f"{self._place}: the assignment could not be taken: {raised}")
                failure.__cause__ = raised
                self._failure = failure

        return call
