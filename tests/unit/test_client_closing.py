"""A client that is closed, or a source that gives up, while others wait: all are told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from fairlane import AsyncClient, Submission
from fairlane.client_values import ClosedError
from tests.support import virtual_time
from tests.support.fake_service import Direct, FakeService, Taken

Use = Callable[[AsyncClient], Awaitable[object]]


async def never(_: Taken) -> None:
    await asyncio.Event().wait()


async def submit(opened: AsyncClient) -> object:
    return await opened.submit("embed", 1)


async def wait(opened: AsyncClient) -> object:
    return await opened.wait("req_0")


async def wait_for_long(opened: AsyncClient) -> object:
    return await opened.wait("req_0", timeout_s=1e6)


async def look(opened: AsyncClient) -> object:
    return await opened.wait("req_0", timeout_s=0)


async def cancel(opened: AsyncClient) -> object:
    return await opened.cancel("req_0")


async def submit_many(opened: AsyncClient) -> object:
    return [pair async for pair in opened.submit_many([Submission("embed", 1)])]


async def run_many(opened: AsyncClient) -> object:
    return [pair async for pair in opened.run_many([Submission("embed", 1)])]


USES: list[Use] = [submit, wait, wait_for_long, look, cancel, submit_many, run_many]


class Closing(Direct):
    """Counts what is asked of it when it is closed already."""

    late = 0
    is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.late += self.is_closed
        return await super().handle_async_request(request)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_down", [False, True])
def test_who_waits_for_a_client_that_is_closed_is_told_at_once(use: Use, is_down: bool) -> None:
    """Down: calls are in the middle of their patience."""

    async def scenario() -> None:
        service = FakeService(never)
        transport = Closing(service)
        opened = AsyncClient("http://door", "k", transport=transport)
        await opened.submit("embed", 0)
        if is_down:
            service.answer_first = lambda _: (503, {"detail": "down"}, {})
        elif use in {look, cancel, submit, submit_many}:  # they don't wait by themselves
            service.answer_first = lambda _: (503, {"detail": "wait"}, {"Retry-After": "200"})
        task = asyncio.ensure_future(use(opened))
        await asyncio.sleep(10)
        assert not task.done()
        before = asyncio.get_running_loop().time()
        await opened.aclose()
        with pytest.raises(ClosedError, match="the client is closed"):
            await task
        assert asyncio.get_running_loop().time() == before
        await asyncio.sleep(1_000)
        assert transport.late == 0
        await opened.aclose()

    virtual_time.run(scenario())


@pytest.mark.parametrize("use", USES)
def test_a_closed_client_says_so_and_calls_nobody(use: Use) -> None:
    async def scenario() -> None:
        service = FakeService()
        opened = client = AsyncClient("http://door", "k", transport=Direct(service))
        await client.aclose()
        with pytest.raises(ClosedError):
            await use(opened)
        assert service.calls == []

    virtual_time.run(scenario())


def test_a_call_that_is_cancelled_by_its_own_task_is_cancelled_and_not_closed() -> None:
    async def scenario() -> None:
        async with AsyncClient("http://door", "k", transport=Direct(FakeService(never))) as opened:
            await opened.submit("embed", 0)
            task = asyncio.ensure_future(wait(opened))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    virtual_time.run(scenario())


@pytest.mark.parametrize("many", [AsyncClient.submit_many, AsyncClient.run_many])
def test_a_source_that_is_cancelled_ends_the_loop_over_it(many: Any) -> None:
    async def source() -> AsyncIterator[Submission]:
        yield Submission("embed", 1)
        await asyncio.sleep(1)
        raise asyncio.CancelledError

    async def scenario() -> None:
        async with AsyncClient("http://door", "k", transport=Direct(FakeService())) as opened:

            async def use() -> None:
                async for _ in many(opened, source()):
                    pass

            task = asyncio.ensure_future(use())
            await asyncio.wait([task], timeout=1_000)
            assert task.cancelled()

    virtual_time.run(scenario())
