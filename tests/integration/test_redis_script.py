"""Scripts on a connection of their own, on a real Redis: whatever happens to it, answers hold."""

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_hex

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from adapters.redis_script import PackedConnection, Script

ECHO = "return {ARGV[1], redis.call('INCR', KEYS[1])}"


def play(scenario: Callable[["Redis", Script, str], Awaitable[None]], url: str) -> None:
    async def with_client() -> None:
        client = Redis.from_url(url, connection_class=PackedConnection)
        # The id makes it a script that no other test has loaded.
        await scenario(client, Script(client, f"{ECHO} -- {token_hex(8)}"), f"t{token_hex(8)}")
        await client.aclose()

    asyncio.run(with_client())


def test_it_loads_itself_and_again_when_the_server_forgot_it(redis_url: str) -> None:
    async def scenario(client: "Redis", script: Script, key: str) -> None:
        assert await script(keys=[key], args=["a"]) == [b"a", 1]
        assert await script(keys=[key], args=["b"]) == [b"b", 2]
        await client.script_flush()
        assert await script(keys=[key], args=["c"]) == [b"c", 3]

    play(scenario, redis_url)


def test_a_connection_that_the_server_closed_is_opened_again(redis_url: str) -> None:
    async def scenario(client: "Redis", script: Script, key: str) -> None:
        for number in (1, 2, 3):
            assert await script(keys=[key], args=["a"]) == [b"a", number]
            assert script._connection is not None
            writer = script._connection._writer
            assert writer is not None
            host, port = writer.get_extra_info("sockname")
            await client.client_kill(f"{host}:{port}")

    play(scenario, redis_url)


def test_calls_at_once_have_their_own_answers(redis_url: str) -> None:
    async def scenario(_: "Redis", script: Script, key: str) -> None:
        answers = await asyncio.gather(*(script(keys=[key], args=[n]) for n in range(20)))
        assert [int(said) for said, _ in answers] == list(range(20))
        assert sorted(count for _, count in answers) == list(range(1, 21))

    play(scenario, redis_url)


def test_a_call_that_was_given_up_leaves_no_answer_to_the_next_one(redis_url: str) -> None:
    async def scenario(client: "Redis", script: Script, key: str) -> None:
        await script(keys=[key], args=["first"])
        await client.client_pause(100)
        call = asyncio.create_task(script(keys=[key], args=["given up"]))
        done, _ = await asyncio.wait((call,), timeout=0.01)
        assert not done
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        assert (await script(keys=[key], args=["next"]))[0] == b"next"

    play(scenario, redis_url)


def test_an_error_of_the_script_is_told_and_harms_nothing(redis_url: str) -> None:
    async def scenario(client: "Redis", script: Script, key: str) -> None:
        await client.set(key, "no number")
        with pytest.raises(ResponseError, match="not an integer"):
            await script(keys=[key], args=["a"])
        await client.delete(key)
        assert await script(keys=[key], args=["b"]) == [b"b", 1]

    play(scenario, redis_url)
