"""Long polls: who waits is told at once, and a long wait costs few look-ups."""

import asyncio
from collections.abc import Sequence

import pytest

from producers import waiting as waiting_room
from producers.waiting import PERIOD_S, PERIOD_S_MAX, WaitRoom
from schemas.front import Entry, RequestName, StoreDownError, Terminal
from schemas.records import End
from tests.support import virtual_time

NAME = RequestName("acme", "req_1")
OTHER = RequestName("acme", "req_2")
ENDED = Entry(None, Terminal("chat", End.SUCCEEDED, "results", 0, 0), b"1")


class Index:
    """An index that counts how often it is asked for what."""

    def __init__(self) -> None:
        self.entries: dict[RequestName, Entry] = {}
        self.asked: list[list[RequestName]] = []
        self.is_down = False

    async def lookup_all(self, names: Sequence[RequestName]) -> list[Entry | None]:
        self.asked.append(list(names))
        if self.is_down:
            raise StoreDownError("no answer")
        return [self.entries.get(name) for name in names]


def room() -> tuple[Index, WaitRoom]:
    index = Index()
    return index, WaitRoom(index)  # type: ignore[arg-type] # of the index one method is used


def test_what_this_ingress_indexed_is_told_without_waiting_for_the_next_look() -> None:
    async def story() -> float:
        index, waiting = room()
        loop = asyncio.get_running_loop()
        waiter = asyncio.create_task(waiting.wait(NAME, 30.0))
        await asyncio.sleep(10.0)
        index.entries[NAME] = ENDED
        waiting.ended([OTHER, NAME])
        before_s = loop.time()
        assert await waiter == ENDED
        return loop.time() - before_s

    assert virtual_time.run(story()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("ends_s", [0.0, 0.3, 5.0, 20.0])
def test_what_another_ingress_indexed_is_found_soon(ends_s: float) -> None:
    async def story() -> float:
        index, waiting = room()
        loop = asyncio.get_running_loop()
        waiter = asyncio.create_task(waiting.wait(NAME, 30.0))
        await asyncio.sleep(ends_s)
        index.entries[NAME] = ENDED
        ended_s = loop.time()
        assert await waiter == ENDED
        return loop.time() - ended_s

    late_s = virtual_time.run(story())
    assert late_s <= min(PERIOD_S_MAX, PERIOD_S + ends_s / 10) + 2 * PERIOD_S


def test_a_long_wait_costs_few_looks_and_ends_in_time() -> None:
    async def story() -> int:
        index, waiting = room()
        assert await waiting.wait(NAME, 30.0) is None
        return len(index.asked)

    assert virtual_time.run(story()) < 30.0 / PERIOD_S_MAX + 60


def test_a_store_that_is_down_ends_no_wait() -> None:
    async def story() -> Entry | None:
        index, waiting = room()
        index.is_down = True
        waiter = asyncio.create_task(waiting.wait(NAME, 30.0))
        await asyncio.sleep(1.0)
        index.is_down = False
        index.entries[NAME] = ENDED
        return await waiter

    assert virtual_time.run(story()) == ENDED


def test_many_waiters_of_one_request_are_all_told_and_one_that_leaves_harms_none() -> None:
    async def story() -> list[Entry | None]:
        index, waiting = room()
        waiters = [asyncio.create_task(waiting.wait(NAME, 30.0)) for _ in range(5)]
        await asyncio.sleep(0.1)
        waiters.pop().cancel()
        index.entries[NAME] = ENDED
        waiting.ended([NAME])
        return await asyncio.gather(*waiters)

    assert virtual_time.run(story()) == [ENDED] * 4


def test_closing_sends_everybody_home() -> None:
    async def story() -> Entry | None:
        _, waiting = room()
        waiter = asyncio.create_task(waiting.wait(NAME, 30.0))
        await asyncio.sleep(0)
        waiting.close()
        return await waiter

    assert virtual_time.run(story()) is None


def test_one_tenant_does_not_take_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "WAITERS_MAX", 3)
    monkeypatch.setattr(waiting_room, "WAITERS_PER_TENANT_MAX", 2)

    async def story() -> None:
        _, waiting = room()
        held = [asyncio.create_task(waiting.wait(NAME, 5.0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert (waiting.is_closed("acme"), waiting.is_closed("bolt")) == (True, False)
        assert await waiting.wait(OTHER, 5.0) is None  # at once: nothing is waited for
        held.append(asyncio.create_task(waiting.wait(RequestName("bolt", "req_3"), 5.0)))
        await asyncio.sleep(0)
        assert waiting.is_closed("bolt")
        assert await asyncio.gather(*held) == [None] * 3
        assert not waiting.is_closed("acme")
        assert len(waiting) == 0

    virtual_time.run(story())
