"""Outputs too large for the index, read back from their results record."""

import asyncio

from producers.ports import Offload
from schemas.front import Terminal
from schemas.log import Log, PositionLostError, Reader, UnavailableError

#: A record that stands in the log comes within a few polls.
POLLS_MAX = 50
POLL_S = 0.1
#: A caller waits so long for others' outputs to be read; then it may come back.
TURN_WAIT_S = 2.0


class Bodies:
    """Reads single records of `results`; one at a time, off the event loop."""

    def __init__(self, log: Log, offload: Offload) -> None:
        """The reader is made when the first large output is asked for."""
        self._log, self._offload = log, offload
        self._reader: Reader | None = None
        self._lock = asyncio.Lock()

    async def fetch(self, terminal: Terminal) -> bytes | None:
        """The output of an ended request; None when the log no longer holds it.

        Raises UnavailableError when the log does not answer, or too many ask.
        """
        try:
            async with asyncio.timeout(TURN_WAIT_S):
                await self._lock.acquire()
        except TimeoutError as error:
            raise UnavailableError("other outputs are being read; come back") from error
        # Held until the thread is done with the reader, even if its caller has gone away.
        reading = asyncio.ensure_future(self._offload(lambda: self._read(terminal)))
        reading.add_done_callback(self._done)
        return await asyncio.shield(reading)

    def _done(self, reading: "asyncio.Future[bytes | None]") -> None:
        self._lock.release()
        if not reading.cancelled():
            reading.exception()  # looked at, so that nobody complains that it was not

    def _read(self, terminal: Terminal) -> bytes | None:
        part = (terminal.topic, terminal.partition)
        reader = self._reader = self._reader or self._log.reader()
        try:
            reader.assign({part: terminal.offset})
            for _ in range(POLLS_MAX):
                for record in reader.poll(1, POLL_S):
                    return record.value if record.offset == terminal.offset else None
        except PositionLostError:
            return None
        finally:
            reader.assign({})
        raise UnavailableError(f"{part[0]}[{part[1]}]@{terminal.offset}: the log does not answer")

    def close(self) -> None:
        """Free the reader."""
        if self._reader:
            self._reader.close()
