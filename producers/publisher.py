"""Publishing from the event loop: a record goes out, its offset or its error comes back.

The producer reports from its own thread, many records at once when many are on their way;
the event loop is woken once for all that were reported meanwhile. A report that comes after
its caller gave up is not lost: `on_late` gets its offset, `on_lost` its error.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from schemas.log import Headers, InDoubtError, LogError, Producer, UnavailableError

#: Longest wait of a caller for the log's confirmation; after it the fate is in doubt.
PUBLISH_TIMEOUT_S = 5.0
#: How long a record waits for others, to go to the log together: a request to the log costs both
#: sides as much as dozens of records. Nothing to a caller, for whom the log writes to its disks.
LINGER_MS = 2
#: Records sent and not yet reported. Far below the room in a client's queue (100,000), where
#: a further record would block the event loop; above what a healthy log ever has open.
OPEN_MAX = 20_000
#: And their bytes, a quarter of that room (1 GiB).
OPEN_BYTES_MAX = 256 << 20


class _Sent:
    """A record on its way, and who waits for it: nobody once its future is done."""

    __slots__ = ("error", "future", "offset", "on_late", "on_lost", "reports", "size")

    def __init__(
        self, reports: "_Reports", size: int, future: "asyncio.Future[int] | None" = None
    ) -> None:
        self.reports, self.size, self.future = reports, size, future
        self.on_late: Callable[[int], None] | None = None
        self.on_lost: Callable[[LogError], None] | None = None
        self.offset: int | None = None
        self.error: LogError | None = None

    def __call__(self, offset: int | None, error: LogError | None) -> None:
        """The log's report, from any thread."""
        self.offset, self.error = offset, error
        self.reports.add(self)

    def settle(self) -> None:
        """Hand the report on, in the event loop."""
        future, error = self.future, self.error
        if future is None:
            return
        if future.done():
            if self.on_lost and error is not None:
                self.on_lost(error)
            if self.on_late and error is None and self.offset is not None:
                self.on_late(self.offset)
        elif error is not None:
            future.set_exception(error)
        elif self.offset is None:
            future.set_exception(InDoubtError("the log reported neither an offset nor an error"))
        else:
            future.set_result(self.offset)


class _Reports:
    """Reports on their way from the producer's thread into the event loop."""

    def __init__(self, settle: Callable[[_Sent], None]) -> None:
        self._settle = settle
        self._come: deque[_Sent] = deque()
        self._is_woken = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def add(self, sent: _Sent) -> None:
        """From any thread; whoever comes after the loop began to look wakes it again."""
        self._come.append(sent)
        if not self._is_woken and self.loop is not None:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_woken = False  # first: what comes from here on may be too late to be seen
        while self._come:
            self._settle(self._come.popleft())


class Publisher:
    """One idempotent producer, shared by all requests of the process."""

    def __init__(self, producer: Producer, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """`timeout_s` is for tests."""
        self._producer, self._timeout_s = producer, timeout_s
        self._open = self._open_bytes = 0
        self._reports = _Reports(self._settled)

    async def publish(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_late: Callable[[int], None] | None = None,
        on_lost: Callable[[LogError], None] | None = None,
    ) -> int:
        """Publish one record and return its offset.

        Raises TooLargeError or UnavailableError when it certainly is not in the log, and
        InDoubtError when no report came in time; of one that comes later `on_late` is told the
        offset, `on_lost` the error.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        sent = self._send(topic, partition, value, key, headers, future)
        sent.on_late, sent.on_lost = on_late, on_lost
        timer = loop.call_later(
            self._timeout_s, _give_up, future, f"{topic}[{partition}]", self._timeout_s
        )
        try:
            return await future  # a caller that goes away cancels it, which makes it late
        finally:
            timer.cancel()

    def post(self, topic: str, partition: int, value: bytes) -> None:
        """Publish without waiting; what the log does not take is dropped."""
        with suppress(LogError):
            self._send(topic, partition, value, None, (), None)

    def _send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: Headers,
        future: "asyncio.Future[int] | None",
    ) -> _Sent:
        size = len(value) + len(key or b"") + sum(len(content) for _, content in headers)
        if self._open >= OPEN_MAX or self._open_bytes + size > OPEN_BYTES_MAX:
            waiting = f"{self._open} records of {self._open_bytes} bytes"
            raise UnavailableError(f"{waiting} wait for the log already")
        if self._reports.loop is None:
            self._reports.loop = asyncio.get_running_loop()
        sent = _Sent(self._reports, size, future)
        self._producer.send(topic, partition, value, key=key, headers=headers, on_delivery=sent)
        self._open += 1
        self._open_bytes += size
        return sent

    def _settled(self, sent: _Sent) -> None:
        self._open -= 1
        self._open_bytes -= sent.size
        sent.settle()

    def flush(self, timeout_s: float) -> int:
        """Wait (blocking) until all is reported; returns how many records are not."""
        return self._producer.flush(timeout_s)

    def close(self) -> None:
        """Free the producer."""
        self._producer.close()


def _give_up(future: "asyncio.Future[int]", place: str, timeout_s: float) -> None:
    if not future.done():
        future.set_exception(InDoubtError(f"{place}: not confirmed within {timeout_s:g} s"))
