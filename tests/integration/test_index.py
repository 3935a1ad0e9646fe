"""The index of requests on a real Redis, which takes less than its look-alike."""

import asyncio
from secrets import token_hex

from adapters.redis import RedisIndex, connect
from producers.core import ids
from schemas.front import Acceptance, Ending, Listed, RequestName, Terminal, Window
from schemas.records import End
from tests.support.door import REDIS_S

#: Longer than a page, and with many at one moment.
COUNT = 500


def name(number: int, tenant: str = "acme") -> RequestName:
    return RequestName(tenant, ids.request_id(tenant, ids.ROUTE, str(number)))


def test_pages_cover_a_list_and_endings_enter_it_where_no_acceptance_did(redis_url: str) -> None:
    async def story() -> None:
        client, prefix = connect(redis_url), f"t{token_hex(4)}"
        index = RedisIndex(client, prefix, REDIS_S)
        try:
            accepted = [
                (name(n), Acceptance("chat", "gold", "t", 0, n, 1_000 + n // 50, call="c-1"))
                for n in range(COUNT)
            ]
            await asyncio.gather(*(index.accept(*one) for one in accepted))
            await index.accept(name(0, "bolt"), Acceptance("chat", "gold", "t", 0, 0, 1))
            ended = Terminal("chat", End.SUCCEEDED, "r", 0, 0, arrived_ms=2_000)
            endings = [Ending(name(n), ended, b"{}") for n in (3, COUNT)]
            await index.finish(endings)
            expected = sorted(
                [Listed(one.accepted_ms, n.id) for n, one in accepted]
                + [Listed(2_000, name(COUNT).id)],
                reverse=True,
            )
            for size in (7, 101, COUNT + 2):
                found: list[Listed] = []
                while len(found) % size == 0:
                    after = found[-1] if found else None
                    page = await index.listed(Window("acme", size, after))
                    if not page:
                        break
                    found += page
                assert found == expected
            within = await index.listed(Window("acme", COUNT, since_ms=1_002, until_ms=1_003))
            assert within == [place for place in expected if 1_002 <= place.accepted_ms <= 1_003]
            of_call = await index.listed(Window("acme", COUNT, call="c-1"))
            assert of_call == [place for place in expected if place.id != name(COUNT).id]
            assert await index.listed(Window("bolt", 9, call="c-1")) == []

            heads = await index.heads([name(3), name(COUNT), name(COUNT + 1)])
            assert [(h.terminal is not None, h.body) if h else None for h in heads] == [
                (True, None), (True, None), None,
            ]  # fmt: skip
            assert await index.was_listed(name(COUNT))
            assert not await index.was_listed(name(COUNT + 1))
            keys = [key async for key in client.scan_iter(f"{prefix}:*")]
            assert all([await client.pttl(key) > 0 for key in keys])
        finally:
            await client.aclose()

    asyncio.run(story())
