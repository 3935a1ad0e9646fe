"""Publishing from the event loop: a record goes out, its offset or its error comes back.

The producer reports from its own thread; the report is carried into the loop. A report that
comes after its caller gave up is not lost: `on_late` gets it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from schemas.log import Headers, InDoubtError, LogError, Producer, UnavailableError

#: Longest wait of a caller for the log's confirmation; after it the fate is in doubt.
PUBLISH_TIMEOUT_S = 5.0
#: Records sent and not yet reported. Far below the room in a client's queue (100,000), where
#: a further record would block the event loop; above what a healthy log ever has open.
OPEN_MAX = 20_000
#: And their bytes, a quarter of that room (1 GiB).
OPEN_BYTES_MAX = 256 << 20


class Publisher:
    """One idempotent producer, shared by all requests of the process."""

    def __init__(self, producer: Producer, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """`timeout_s` is for tests."""
        self._producer, self._timeout_s = producer, timeout_s
        self._open = self._open_bytes = 0

    async def publish(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_late: Callable[[int], None] | None = None,
    ) -> int:
        """Publish one record and return its offset.

        Raises TooLargeError or UnavailableError when it certainly is not in the log, and
        InDoubtError when no report came in time (`on_late` is called if it comes later).
        """
        report = self._send(topic, partition, value, key, headers)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(report)
        except (TimeoutError, asyncio.CancelledError) as error:
            report.add_done_callback(lambda future: _late(future, on_late))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise InDoubtError(
                f"{topic}[{partition}]: not confirmed within {self._timeout_s:g} s"
            ) from error

    def post(self, topic: str, partition: int, value: bytes) -> None:
        """Publish without waiting; what the log does not take is dropped."""
        with suppress(LogError):
            self._send(topic, partition, value, None, ()).add_done_callback(_forget)

    def _send(
        self, topic: str, partition: int, value: bytes, key: bytes | None, headers: Headers
    ) -> "asyncio.Future[int]":
        size = len(value) + len(key or b"") + sum(len(content) for _, content in headers)
        if self._open >= OPEN_MAX or self._open_bytes + size > OPEN_BYTES_MAX:
            waiting = f"{self._open} records of {self._open_bytes} bytes"
            raise UnavailableError(f"{waiting} wait for the log already")
        loop = asyncio.get_running_loop()
        report: asyncio.Future[int] = loop.create_future()

        def settle(offset: int | None, error: LogError | None) -> None:
            self._open -= 1
            self._open_bytes -= size
            _settle(report, offset, error)

        def delivered(offset: int | None, error: LogError | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, offset, error)

        self._producer.send(
            topic, partition, value, key=key, headers=headers, on_delivery=delivered
        )
        self._open += 1
        self._open_bytes += size
        return report

    def flush(self, timeout_s: float) -> int:
        """Wait (blocking) until all is reported; returns how many records are not."""
        return self._producer.flush(timeout_s)

    def close(self) -> None:
        """Free the producer."""
        self._producer.close()


def _settle(report: "asyncio.Future[int]", offset: int | None, error: LogError | None) -> None:
    if report.done():
        return
    if error is not None:
        report.set_exception(error)
    elif offset is None:
        report.set_exception(InDoubtError("the log reported neither an offset nor an error"))
    else:
        report.set_result(offset)


def _forget(report: "asyncio.Future[int]") -> None:
    report.exception()  # looked at, so that nobody complains that it was not


def _late(report: "asyncio.Future[int]", on_late: Callable[[int], None] | None) -> None:
    if report.exception() is None and on_late:
        on_late(report.result())
