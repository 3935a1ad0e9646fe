"""The board of the backlog in Redis, as an ingress reads it; see `adapters.redis_board`."""

import asyncio
from collections.abc import Sequence
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from schemas.front import StoreDownError

#: Redis that does not answer for so long is away; nobody waits for it here.
TIMEOUT_S = 0.5


class RedisBacklog:
    """What stands under names; the client is the caller's, who closes it."""

    def __init__(self, client: "Redis", prefix: str, timeout_s: float = TIMEOUT_S) -> None:
        """Names stand under `prefix`, as the scheduler writes them."""
        self._client, self._prefix, self._timeout_s = client, prefix, timeout_s

    async def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """What stands under each name now, None where nothing does; raises StoreDownError."""
        if not names:
            return []
        keys = [f"{self._prefix}:{{backlog}}:{name}" for name in names]
        try:
            async with asyncio.timeout(self._timeout_s):
                return cast("list[bytes | None]", await self._client.mget(keys))
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreDownError(f"Redis: {error or type(error).__name__}") from error
