"""The index in the in-process Redis: how long entries live, and which outcome stays."""

import asyncio

from adapters.redis import EMBEDDED, RedisIndex, connect
from schemas.front import (
    INDEX_TTL_MS,
    WAITING_TTL_MS,
    Acceptance,
    Ending,
    RequestName,
    Terminal,
)
from schemas.policy_check import WAIT_MS_MAX
from schemas.records import End

NAME = RequestName("acme", "req_1")
KEY = "t:{acme}:request:req_1"
PLACE = Acceptance("chat", "gold", "requests.gold", 0, 7, 1)
BIG = Terminal("chat", End.SUCCEEDED, "results", 0, 3, size=100_000)
SMALL = Terminal("chat", End.FAILED, "results", 0, 9, size=4)


def test_a_waiting_requests_entry_outlives_the_longest_wait_and_a_day() -> None:
    async def scenario() -> None:
        redis = connect(EMBEDDED)
        index = RedisIndex(redis, "t", 10.0)
        await index.accept(NAME, PLACE)
        assert WAITING_TTL_MS - 60_000 < await redis.pttl(KEY) <= WAITING_TTL_MS
        assert WAITING_TTL_MS >= WAIT_MS_MAX + INDEX_TTL_MS
        await index.finish([Ending(NAME, SMALL, b"1234")])
        assert INDEX_TTL_MS - 60_000 < await redis.pttl(KEY) <= INDEX_TTL_MS
        await index.accept(NAME, PLACE)
        assert await redis.pttl(KEY) <= INDEX_TTL_MS
        await redis.aclose()

    asyncio.run(scenario())


def test_the_first_outcome_wins_with_its_body_or_without_one() -> None:
    async def scenario() -> None:
        redis = connect(EMBEDDED)
        index = RedisIndex(redis, "t", 10.0)
        await index.finish([Ending(NAME, BIG, None), Ending(NAME, SMALL, b"1234")])
        await index.finish([Ending(NAME, SMALL, b"1234")])
        entry = await index.lookup(NAME)
        assert entry is not None
        assert (entry.terminal, entry.body) == (BIG, None)
        empty = RequestName("acme", "req_2")
        await index.finish([Ending(empty, SMALL, b""), Ending(empty, SMALL, b"\xff\x00")])
        found = await index.lookup(empty)
        assert found is not None
        assert found.body == b""
        await redis.aclose()

    asyncio.run(scenario())
