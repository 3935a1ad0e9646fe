"""Long polls: one task looks waited requests up together, while anybody waits.

A waiter costs an entry in a table, not a poll of its own. What this ingress indexes itself is
looked up at once (`ended`); the results of another are found by looking again, the later the
longer somebody waits anyway: after a tenth of the time so far, within bounds. So a short wait
ends promptly and a long one costs next to nothing. Looking up takes at most a fifth of the
time: with many waiters the period grows instead of the load.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable

from producers.ports import Index
from schemas.front import Entry, RequestName, StoreDownError

#: The first look, and the least time between two: far below what a person notices.
PERIOD_S = 0.025
#: The most: what another ingress indexed is found this late at worst.
PERIOD_S_MAX = 0.5
#: A request that was waited for so long is looked up again after a tenth of it.
PATIENCE = 10
#: After a look-up that took t, the next one begins 4 t later at the earliest.
REST_FACTOR = 4
#: Long polls of one ingress; a further one is answered at once, with the state as it is.
WAITERS_MAX = 5_000
#: And of one tenant, so that nobody takes all of them.
WAITERS_PER_TENANT_MAX = 2_500

_Waiter = asyncio.Future[Entry | None]


class _Waited:
    """A request that somebody waits for; times are those of the event loop, in seconds."""

    __slots__ = ("due_s", "since_s", "waiters")

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.due_s = now_s + PERIOD_S
        self.waiters: list[_Waiter] = []

    def looked_up(self, now_s: float) -> None:
        """Plan the next look."""
        pause_s = (now_s - self.since_s) / PATIENCE
        self.due_s = now_s + min(max(pause_s, PERIOD_S), PERIOD_S_MAX)

    def tell(self, entry: Entry | None) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(entry)


class WaitRoom:
    """Everybody who waits for a request of theirs to end."""

    def __init__(self, index: Index) -> None:
        """Nothing runs before somebody waits."""
        self._index = index
        self._waiting: dict[RequestName, _Waited] = {}
        self._count = 0
        self._of: Counter[str] = Counter()
        self._is_closed = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    def is_closed(self, tenant: str) -> bool:
        """Whether nobody of a tenant may wait any more, or not just now."""
        is_full = self._count >= WAITERS_MAX or self._of[tenant] >= WAITERS_PER_TENANT_MAX
        return self._is_closed or is_full

    async def wait(self, name: RequestName, timeout_s: float | None) -> Entry | None:
        """Wait until the request has ended and return its entry; None when it has not."""
        if self.is_closed(name.tenant):
            return None
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop.create_future()
        waited = self._waiting.setdefault(name, _Waited(loop.time()))
        waited.waiters.append(waiter)
        waited.due_s = min(waited.due_s, loop.time() + PERIOD_S)  # it may have ended just now
        self._count += 1
        self._of[name.tenant] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            return None
        finally:
            self._leave(name, waiter)

    def ended(self, names: Iterable[RequestName]) -> None:
        """These stand in the index as ended now: look those up that are waited for."""
        for name in names:
            waited = self._waiting.get(name)
            if waited:
                waited.due_s = 0.0
                self._news.set()

    def close(self) -> None:
        """Send everybody home with the state as it is: the process is about to stop."""
        self._is_closed = True
        for waited in self._waiting.values():
            waited.tell(None)

    def _leave(self, name: RequestName, waiter: _Waiter) -> None:
        self._count -= 1
        self._of[name.tenant] -= 1
        if not self._of[name.tenant]:
            del self._of[name.tenant]
        waited = self._waiting[name]
        waited.waiters.remove(waiter)
        if not waited.waiters:
            del self._waiting[name]

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        rest_s = PERIOD_S
        while self._waiting:
            await self._rest(rest_s)
            started_s = loop.time()
            due = [name for name, waited in self._waiting.items() if waited.due_s <= started_s]
            if due:
                await self._look_up(due)
            now_s = loop.time()
            rest_s = max(PERIOD_S, REST_FACTOR * (now_s - started_s))

    async def _rest(self, rest_s: float) -> None:
        """Until it is time to look again, or something ended."""
        try:
            async with asyncio.timeout(rest_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    async def _look_up(self, names: list[RequestName]) -> None:
        now_s = asyncio.get_running_loop().time()
        for name in names:
            self._waiting[name].looked_up(now_s)
        try:
            entries = await self._index.lookup_all(names)
        except StoreDownError:
            return  # they wait on; at worst until their time is over
        for name, entry in zip(names, entries, strict=False):
            waited = self._waiting.get(name)
            if waited and entry and entry.terminal:
                waited.tell(entry)
