"""The plain producer on Kafka: a thread of its own drives it, and outlives its client.

A fatal error is the end of a client, not of the producer: what the client still holds is
reported (in doubt, or never sent), and a new client takes the next records. Until then `send`
raises UnavailableError.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from adapters.kafka_client import RETRY_PAUSE_S, Settings, error_of, meaning
from schemas.log import Headers, LogError, OnDelivery, UnavailableError, check_record

#: How often an idle driving thread looks whether it shall stop.
DRIVE_S = 0.1
#: How long `send` waits for room in the client's queue.
ROOM_S = 2.0
#: How long `close` waits for records on their way.
CLOSE_S = 2.0
#: Pause before a failed client is renewed: what failed it may fail the next one at once.
RENEW_PAUSE_S = 0.5

log = logging.getLogger(__name__)


def enqueue(
    client: Producer,
    topic: str,
    partition: int,
    value: bytes,
    key: bytes | None,
    headers: Headers,
    report: Callable[[KafkaError | None, Message], None],
) -> None:
    """Hand a record to the client; waits a bounded time for room in its queue.

    Raises UnavailableError when there is none, or KafkaException.
    """
    deadline = time.monotonic() + ROOM_S
    while True:
        try:
            client.produce(
                topic,
                value=value,
                key=key,
                partition=partition,
                headers=list(headers),
                on_delivery=report,
            )
        except BufferError as raised:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{topic}[{partition}]: the client's queue is full for {ROOM_S} s; the "
                    "brokers take records more slowly than they are sent"
                ) from raised
            client.poll(RETRY_PAUSE_S)
        else:
            return


class KafkaProducer:
    """Idempotent producer; a thread of its own calls `on_delivery`."""

    def __init__(self, settings: Settings, linger_ms: int = 0) -> None:
        self._settings, self._linger_ms = settings, linger_ms
        self._client = self._new_client()
        self._has_failed = False
        self._failure: LogError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._drive, name="fairlane-producer", daemon=True)
        self._thread.start()

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
        """Enqueue one record. Raises TooLargeError for this record, UnavailableError if full.

        UnavailableError as well while a client that failed is being renewed.
        """
        check_record(topic, partition, value, key, headers)

        def report(error: KafkaError | None, message: Message) -> None:
            failure = delivery_failure(error, message)
            if on_delivery is not None:
                on_delivery(None if failure else message.offset(), failure)
            elif failure is not None:
                self._failure = failure

        place, client = f"{topic}[{partition}]: send", self._client
        if self._has_failed:
            raise UnavailableError(f"{place}: the client failed and is being renewed")
        try:
            enqueue(client, topic, partition, value, key, headers, report)
        except KafkaException as raised:
            error = error_of(raised)
            if not _is_fatal(error):
                raise meaning(error, place) from raised
            self._has_failed = self._has_failed or client is self._client
            raise UnavailableError(f"{place}: the client failed: {error.str()}") from raised

    def flush(self, timeout_s: float) -> int:
        """Wait until every record is delivered; returns how many are still outstanding.

        Raises:
            LogError: a record that was sent without `on_delivery` was not delivered.
        """
        outstanding = self._client.flush(timeout_s)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return outstanding

    def close(self) -> None:
        """Flush for a short while and free the client."""
        if self._stopped.is_set():
            return
        with suppress(KafkaException):
            self._client.flush(CLOSE_S)
        self._stopped.set()
        self._thread.join()
        self._client.purge(in_queue=True, in_flight=True, blocking=False)
        with suppress(KafkaException):  # of a client that failed: there is nothing left of it
            self._client.close()

    def _drive(self) -> None:
        while not self._stopped.is_set():
            try:
                self._client.poll(DRIVE_S)
            except Exception as raised:  # a thread that ended would leave every record unreported
                log.exception("the producer's client failed")
                if isinstance(raised, KafkaException) and _is_fatal(error_of(raised)):
                    self._has_failed = True
            if self._has_failed and not self._stopped.wait(RENEW_PAUSE_S):
                self._renew()

    def _new_client(self) -> Producer:
        return Producer(self._settings.producer() | {"linger.ms": self._linger_ms})

    def _renew(self) -> None:
        try:
            client = self._new_client()
        except KafkaException:
            log.exception("no new client for the producer; it is tried again")
            return
        failed, self._client = self._client, client
        self._has_failed = False
        with suppress(KafkaException):
            failed.purge(in_queue=True, in_flight=True, blocking=False)
            failed.flush(CLOSE_S)


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - the client's own name


def delivery_failure(error: KafkaError | None, message: Message) -> LogError | None:
    """What a delivery report means; None for a delivered record."""
    if error is None:
        return None
    return meaning(error, f"{message.topic()}[{message.partition()}]: delivery")
