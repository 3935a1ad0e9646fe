"""Pages of a tenant's requests, newest first.

Time and x-request-id are looked up, the other filters are applied to what is found there. A
page looks at a bounded number of requests: with a filter that few of them pass it may have
less than it was asked for, even nothing, and still say where to go on.
"""

from collections.abc import Sequence

from producers.core import ids
from producers.core.listing import Page, Query
from producers.ports import Index
from schemas.front import WAITING_TTL_MS, Entry, RequestName, Window

#: Requests that are looked up together: about 2 ms of Redis's time.
LOOK_MAX = 256
#: Requests that one page looks at: some dozens of milliseconds, and nobody waits long for nothing.
SCAN_MAX = 4_096


class Listing:
    """Lists requests of an index."""

    def __init__(self, index: Index) -> None:
        """Nothing is kept between two pages."""
        self._index = index

    async def page(self, tenant: str, query: Query, now_ms: int) -> Page:
        """One page; raises StoreDownError."""
        keyed = [ids.request_id(tenant, ids.ROUTE, query.key)] if query.key else []
        if ids.is_request_id(query.call):  # what a call without an x-request-id was told
            both = [name for name in keyed or [query.call] if name == query.call]
            return await self._of(both, tenant, query._replace(call=""))
        if keyed:
            return await self._of(keyed, tenant, query)
        return await self._scan(tenant, query, now_ms)

    async def _of(self, names: Sequence[str], tenant: str, query: Query) -> Page:
        found = zip(names, await self._heads(tenant, names), strict=True)
        page = [(name, e) for name, e in found if e and query.has(e) and query.has_placed(e)]
        return Page(page, None)

    async def _scan(self, tenant: str, query: Query, now_ms: int) -> Page:
        page: list[tuple[str, Entry]] = []
        after, since_ms = query.after, max(query.since_ms, now_ms - WAITING_TTL_MS)
        size, scanned = query.limit + 1, 0  # one more: whether there is a next page
        while scanned < SCAN_MAX:
            window = Window(tenant, size, after, since_ms, query.until_ms, query.call)
            places = await self._index.listed(window)
            entries = await self._heads(tenant, [place.id for place in places])
            for place, entry in zip(places, entries, strict=True):
                if len(page) == query.limit:
                    return Page(page, after)
                after = place
                if entry and query.has(entry):
                    page.append((place.id, entry))
            if len(places) < size:
                return Page(page, None)
            scanned += size
            size = min(LOOK_MAX, SCAN_MAX - scanned)
        return Page(page, after)

    async def _heads(self, tenant: str, request_ids: Sequence[str]) -> list[Entry | None]:
        if not request_ids:
            return []
        return await self._index.heads([RequestName(tenant, name) for name in request_ids])
