"""The board of the backlog on a real Redis, and without one."""

import asyncio
import socket
import time
from secrets import token_hex

import pytest

from adapters.redis import connect
from adapters.redis_backlog import RedisBacklog
from adapters.redis_board import RedisBoard
from schemas.backlog import KEPT_MS
from schemas.front import StoreDownError
from tests.support.door import until

#: A post hands a value over; what a wait for Redis would take is a multiple of this.
AT_ONCE_S = 0.25


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_what_is_posted_is_read_by_an_ingress_the_newest_alone(redis_url: str) -> None:
    async def scenario() -> None:
        prefix = f"t{token_hex(4)}"
        board, client = RedisBoard(redis_url, prefix), connect(redis_url)
        reader = RedisBacklog(client, prefix, 10.0)
        for number in range(100):
            board.post("chat", b"%d" % number)
        board.post("chat:0", b"slice")

        async def is_there() -> bool:
            return await reader.fetch(["chat", "free", "chat:0"]) == [b"99", None, b"slice"]

        await until(is_there)
        assert 0 < await client.pttl(f"{prefix}:{{backlog}}:chat") <= KEPT_MS
        assert await reader.fetch([]) == []
        board.close()
        board.post("chat", b"after the end")
        assert await reader.fetch(["chat"]) == [b"99"]
        await client.aclose()

    asyncio.run(scenario())


def test_while_redis_is_away_the_scheduler_goes_on() -> None:
    board = RedisBoard(f"redis://127.0.0.1:{free_port()}", "t")
    longest_s = 0.0
    for number in range(2_000):
        begun_s = time.monotonic()
        board.post(f"pool-{number % 7}", bytes(10_000))
        longest_s = max(longest_s, time.monotonic() - begun_s)
    board.close()
    assert longest_s < 10 * AT_ONCE_S


def test_an_ingress_is_told_that_redis_is_away() -> None:
    async def scenario() -> None:
        client = connect(f"redis://127.0.0.1:{free_port()}")
        with pytest.raises(StoreDownError, match="Redis"):
            await RedisBacklog(client, "t").fetch(["chat"])
        await client.aclose()

    asyncio.run(scenario())
