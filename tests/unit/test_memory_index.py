"""The index in memory: the same answers as the one in Redis, within a budget."""

import asyncio

from adapters.memory_index import ENTRY_BYTES, MemoryIndex
from schemas.front import Acceptance, Ending, Entry, RequestName, Terminal
from schemas.records import End

PLACE = Acceptance("embed", "standard", "requests", 0, 7, 1)
TERMINAL = Terminal("embed", End.SUCCEEDED, "results", 0, 3)


def name(number: int) -> RequestName:
    return RequestName("acme", f"r{number}")


def test_each_half_is_written_once_whichever_comes_first() -> None:
    async def story() -> list[Entry | None]:
        index = MemoryIndex()
        await index.finish([Ending(name(1), TERMINAL, b"first")])
        await index.accept(name(1), PLACE)
        await index.accept(name(1), Acceptance("other", "t", "x", 1, 8, 2))
        await index.finish([Ending(name(1), TERMINAL, b"second")])
        await index.accept(name(2), PLACE)
        return await index.lookup_all([name(1), name(2), name(3)])

    assert asyncio.run(story()) == [
        Entry(PLACE, TERMINAL, b"first"),
        Entry(PLACE, None, None),
        None,
    ]


def test_the_oldest_that_ended_go_and_what_waits_stays() -> None:
    async def story() -> None:
        index = MemoryIndex(bytes_max=10 * (ENTRY_BYTES + 100))
        await index.accept(name(0), PLACE)
        for number in range(1, 1_001):
            await index.accept(name(number), PLACE)
            await index.finish([Ending(name(number), TERMINAL, b"x" * 100)])
        assert len(index) == 11
        assert await index.lookup(name(0)) == Entry(PLACE, None, None)
        assert await index.lookup(name(990)) is None
        assert await index.lookup(name(991)) == Entry(PLACE, TERMINAL, b"x" * 100)

    asyncio.run(story())


def test_one_entry_above_the_budget_stays_until_the_next() -> None:
    async def story() -> None:
        index = MemoryIndex(bytes_max=10)
        await index.finish([Ending(name(1), TERMINAL, b"x" * 100)])
        assert await index.lookup(name(1))
        await index.finish([Ending(name(2), TERMINAL, b"x" * 100)])
        assert await index.lookup(name(1)) is None
        assert await index.lookup(name(2))

    asyncio.run(story())
