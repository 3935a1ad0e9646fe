"""Whose a key is, after POSTs that ended in one way or another."""

import asyncio
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from adapters.redis import EMBEDDED, connect
from adapters.redis_claims import RedisClaims
from schemas.front import Claim, RequestName

NAME = RequestName("acme", "req_x")
KEY = "t:{acme}:request:req_x"


def claim(digest: str, owner: str = "one") -> Claim:
    return Claim(NAME, digest, owner)


def play(scenario: Callable[[RedisClaims, "Redis"], Awaitable[None]]) -> None:
    async def run() -> None:
        client = connect(EMBEDDED)
        await scenario(RedisClaims(client, "t", 10.0), client)
        await client.aclose()

    asyncio.run(run())


def test_a_key_in_doubt_stays_its_bodys_however_often_that_is_refused() -> None:
    async def scenario(claims: RedisClaims, _: "Redis") -> None:
        await claims.claim(claim("a"))
        await claims.hold(claim("a"))
        for owner in ("one", "two", "one"):
            again = await claims.claim(claim("a", owner))
            assert (again.digest, again.is_held) == ("a", False)
            await claims.release(claim("a", owner))
            assert (await claims.claim(claim("b", owner))).digest == "a"

    play(scenario)


def test_a_key_that_was_taken_over_stays_its_bodys_when_that_is_refused() -> None:
    """Who held it first has not said how it ended."""

    async def scenario(claims: RedisClaims, client: "Redis") -> None:
        await claims.claim(claim("a"))
        await client.hset(KEY, "claim", "1 a one")  # its time is over
        assert not (await claims.claim(claim("a", "two"))).is_held
        await claims.release(claim("a", "two"))
        assert (await claims.claim(claim("b", "two"))).digest == "a"

    play(scenario)


def test_a_key_that_was_refused_at_once_is_free_for_any_body() -> None:
    async def scenario(claims: RedisClaims, client: "Redis") -> None:
        await claims.claim(claim("a"))
        await claims.release(claim("a"))
        assert not await client.exists(KEY)
        assert (await claims.claim(claim("b"))).digest == "b"

    play(scenario)
