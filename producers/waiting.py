"""Long polls: one task looks all waited requests up together, while anybody waits.

A waiter costs an entry in a table, not a poll of its own. Looking up takes at most a
fifth of the time: with many waiters the period grows instead of the load.
"""

import asyncio

from producers.ports import Index
from schemas.front import Entry, RequestName, StoreDownError

#: How often the waited requests are looked up; far below what a person or a model notices.
PERIOD_S = 0.025
#: After a look-up that took t, the next one begins 4 t later at the earliest.
REST_FACTOR = 4
#: Long polls of one ingress; a further one is answered at once, with the state as it is.
WAITERS_MAX = 5_000

_Waiter = asyncio.Future[Entry | None]


class WaitRoom:
    """Everybody who waits for a request of theirs to end."""

    def __init__(self, index: Index) -> None:
        """Nothing runs before somebody waits."""
        self._index = index
        self._waiting: dict[RequestName, list[_Waiter]] = {}
        self._count = 0
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def wait(self, name: RequestName, timeout_s: float) -> Entry | None:
        """Wait until the request has ended and return its entry; None when it has not."""
        if self._is_closed or self._count >= WAITERS_MAX:
            return None
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(waiter)
        self._count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            return None
        finally:
            self._leave(name, waiter)

    def close(self) -> None:
        """Send everybody home with the state as it is: the process is about to stop."""
        self._is_closed = True
        for waiters in self._waiting.values():
            _tell(waiters, None)

    def _leave(self, name: RequestName, waiter: _Waiter) -> None:
        self._count -= 1
        waiters = self._waiting[name]
        waiters.remove(waiter)
        if not waiters:
            del self._waiting[name]

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        rest_s = PERIOD_S
        while self._waiting:
            await asyncio.sleep(rest_s)
            started = loop.time()
            names = list(self._waiting)
            try:
                entries = await self._index.lookup_all(names)
            except StoreDownError:
                entries = []  # they wait on; at worst until their time is over
            for name, entry in zip(names, entries, strict=False):
                if entry and entry.terminal:
                    _tell(self._waiting.get(name, ()), entry)
            rest_s = max(PERIOD_S, REST_FACTOR * (loop.time() - started))


def _tell(waiters: "list[_Waiter] | tuple[()]", entry: Entry | None) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(entry)
