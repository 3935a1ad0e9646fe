"""Clients of several tenants over the same connections."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import httpx

from fairlane import AsyncClient, Outcome, Submission
from fairlane.client_calls import BULKS_MAX
from tests.support import virtual_time
from tests.support.fake_service import Direct, FakeService


class Slow(Direct):
    """Bulk calls take a while; counts those at once, and keys."""

    def __init__(self, service: FakeService) -> None:
        super().__init__(service)
        self.bulks = self.bulks_max = 0
        self.keys = Counter[str]()
        self.is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith(":bulk"):
            return await super().handle_async_request(request)
        self.keys[request.headers["authorization"]] += 1
        self.bulks += 1
        self.bulks_max = max(self.bulks_max, self.bulks)
        await asyncio.sleep(1)
        self.bulks -= 1
        return await super().handle_async_request(request)

    async def aclose(self) -> None:
        self.is_closed = True


def submissions(count: int) -> Iterator[Submission]:
    return (Submission("embed", n) for n in range(count))


def test_many_tenants_make_no_more_bulk_calls_at_once_than_one() -> None:
    async def story() -> None:
        transport = Slow(FakeService())
        first = AsyncClient("http://door", "k0", transport=transport)
        clients = [first, *(first.for_key(f"k{n}") for n in range(1, 64))]

        async def run(client: AsyncClient) -> list[object]:
            return [ended async for _, ended in client.run_many(submissions(5))]

        ended = await asyncio.gather(*map(run, clients))
        assert all(len(of) == 5 for of in ended)
        assert all(isinstance(outcome, Outcome) for of in ended for outcome in of)
        assert transport.bulks_max == BULKS_MAX
        assert transport.keys.keys() == {f"Bearer k{n}" for n in range(64)}
        await clients[1].aclose()
        assert not transport.is_closed
        await first.submit("embed", 1)
        await first.aclose()
        assert transport.is_closed

    virtual_time.run(story())


def test_a_limit_is_its_tenants_own_and_is_told() -> None:
    async def story() -> None:
        service = FakeService()
        limit = {"status": 429, "reason": "rate_limit", "retry": "later", "retry_after_s": 60}
        service.judge = lambda _: limit if asyncio.get_running_loop().time() < 1_030 else None
        client = AsyncClient("http://door", "k0", transport=Direct(service))
        other = client.for_key("k1")
        assert client.limited_s("embed") == 0

        async def run() -> None:
            async for _ in client.run_many(submissions(1)):
                pass

        running = asyncio.create_task(run())
        await asyncio.sleep(10)
        assert 40 < client.limited_s("embed") < 60
        assert other.limited_s("embed") == client.limited_s("another") == 0
        await running
        assert client.limited_s("embed") == 0
        await client.aclose()

    virtual_time.run(story())
