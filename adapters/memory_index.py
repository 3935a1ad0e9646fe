"""The index of requests in this process, for an ingress that is embedded in it.

As the one in Redis (`adapters.redis`): both halves of an entry are written once, whichever
comes first. Instead of a time to live, the oldest ended entries go when all of them together
take more than a budget: whoever waits for a request has to have asked by then.
"""

from collections import deque
from collections.abc import Sequence
from heapq import nlargest

from schemas.front import Acceptance, Ending, Entry, Listed, RequestName, Terminal, Window

#: Ended entries together, as far as not told otherwise; an output in it has up to 64 kB.
BYTES_MAX = 64 << 20
#: An entry without its body: two names, two values, a dictionary's place.
ENTRY_BYTES = 1_000


class _Held:
    __slots__ = ("acceptance", "body", "terminal")

    def __init__(self) -> None:
        self.acceptance: Acceptance | None = None
        self.terminal: Terminal | None = None
        self.body: bytes | None = None

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.body or b"")


class MemoryIndex:
    """What became of each request, by tenant and id; for one event loop."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        """Ended entries take at most `bytes_max` together, the newest always stays."""
        self._bytes_max = bytes_max
        self._held: dict[RequestName, _Held] = {}
        self._ended: deque[RequestName] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    async def generation(self) -> str:
        """One name for ever: it is lost with the process, and the log with it."""
        return "memory"

    async def accept(self, name: RequestName, acceptance: Acceptance) -> None:
        """Note where an accepted request stands; the first place stays."""
        held = self._held.setdefault(name, _Held())
        if held.acceptance is None:
            held.acceptance = acceptance

    async def finish(self, endings: Sequence[Ending]) -> None:
        """Write terminal outcomes; the first one of a request stays."""
        for name, terminal, body in endings:
            held = self._held.setdefault(name, _Held())
            if held.terminal is None:
                held.terminal, held.body = terminal, body
                self._ended.append(name)
                self._bytes += held.size
        while self._bytes > self._bytes_max and len(self._ended) > 1:
            self._bytes -= self._held.pop(self._ended.popleft()).size

    async def lookup(self, name: RequestName) -> Entry | None:
        """What is known of a request; None when nothing is."""
        held = self._held.get(name)
        return Entry(held.acceptance, held.terminal, held.body) if held else None

    async def heads(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """The same; nothing is saved by leaving the outputs out."""
        return await self.lookup_all(names)

    async def listed(self, window: Window) -> list[Listed]:
        """A piece of a tenant's list, newest first."""
        bound = window.after or Listed(window.until_ms + 1, "")
        places = (
            _place(name, held)
            for name, held in self._held.items()
            if name.tenant == window.tenant and _is_of(held, window.call)
        )
        found = [p for p in places if window.since_ms <= p.accepted_ms <= window.until_ms]
        return nlargest(window.size, (place for place in found if place < bound))

    async def was_listed(self, _: RequestName) -> bool:
        """Nothing is remembered of what was let go."""
        return False

    async def lookup_all(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """Look many up, answers in their order."""
        return [await self.lookup(name) for name in names]


def _place(name: RequestName, held: _Held) -> Listed:
    if held.acceptance:
        return Listed(held.acceptance.accepted_ms, name.id)
    return Listed(held.terminal.arrived_ms if held.terminal else 0, name.id)


def _is_of(held: _Held, call: str) -> bool:
    return not call or (held.acceptance is not None and held.acceptance.call == call)
