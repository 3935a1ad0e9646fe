"""Bodies of calls as they come in: bounded in size, in time, and those of bulk calls in sum."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

#: A caller that sends nothing for so long is gone, or might as well be: networks that lose
#: packets send them again within a few seconds.
CHUNK_S = 10.0
#: A whole body comes within this: the largest at 1 Mbit/s.
BODY_S = 64.0
#: Bytes of bulk bodies that are on their way in: as many as the calls under way may hold. Who
#: sends little holds little, however many connections it has.
READ_BYTES_MAX = 64_000_000
#: And of one tenant, so that nobody takes all of them.
READ_BYTES_PER_TENANT_MAX = 32_000_000


class NoRoomError(Exception):
    """Too many bytes of bodies are on their way in already."""


class Reads:
    """The bytes of bodies that are being read, by tenant."""

    def __init__(self) -> None:
        """Nothing is being read."""
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def of(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """One body: gives what counts its bytes, which raises NoRoomError; gone at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            mine, all_of_them = self._bytes[tenant] + size, self._bytes.total() + size
            if mine > READ_BYTES_PER_TENANT_MAX or all_of_them > READ_BYTES_MAX:
                raise NoRoomError("too many bytes of bulk calls are on their way in; come back")
            self._bytes[tenant] += size
            taken += size

        try:
            yield take
        finally:
            self._bytes[tenant] -= taken
            if not self._bytes[tenant]:
                del self._bytes[tenant]


async def read_body(
    chunks: AsyncIterator[bytes], bytes_max: int, take: Callable[[int], None] = lambda _: None
) -> tuple[bytes, bool]:
    """The body, read no further than the limit, and whether there is more of it.

    Raises TimeoutError when it comes too slowly, and what `take` raises of the bytes to come.
    """
    body = bytearray()
    now = asyncio.get_running_loop().time
    end_s = now() + BODY_S
    async with asyncio.timeout(min(CHUNK_S, BODY_S)) as patience:
        async for chunk in chunks:
            room = bytes_max - len(body)
            take(min(room, len(chunk)))
            body += chunk[:room]
            if len(chunk) > room:
                return bytes(body), True
            patience.reschedule(min(end_s, now() + CHUNK_S))
    return bytes(body), False
