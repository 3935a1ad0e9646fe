"""Ways to charge: the script and its in-process twin, on a clock that the test sets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis

from adapters.redis import EMBEDDED, connect
from adapters.redis_limits import RedisLimits
from producers.core.local import LocalLimits
from schemas.front import Charge, Verdict

T = TypeVar("T")

#: A time that is not on a counter's edge.
START_MS = 1_800_000_001_234


class Counter:
    """Charges at times that the test names; ids are numbered unless named."""

    def __init__(self, charge: Callable[[Charge, int], Awaitable[Verdict]], redis: "Redis") -> None:
        self._charge, self.redis = charge, redis
        self._number = 0

    async def take(
        self,
        now_ms: int,
        cost: int = 1,
        limit: int = 100,
        *,
        charge_id: str = "",
        tenant: str = "acme",
        endpoint: str = "chat",
    ) -> Verdict:
        self._number += 1
        name = charge_id or f"req_{self._number}"
        return await self._charge(Charge(tenant, endpoint, name, cost, limit), now_ms)


def with_script(scenario: Callable[[Counter], Awaitable[T]], url: str = EMBEDDED) -> T:
    """Run a scenario on the Lua script; `url` names another Redis than the in-process one."""

    async def run() -> T:
        redis = connect(url)
        limits = RedisLimits(redis, "test", timeout_s=10.0)

        async def charge(charge: Charge, now_ms: int) -> Verdict:
            limits.now_override_ms = str(now_ms)
            return await limits.charge(charge)

        try:
            return await scenario(Counter(charge, redis))
        finally:
            await redis.aclose()

    return asyncio.run(run())


def with_local(scenario: Callable[[Counter], Awaitable[T]]) -> T:
    """Run a scenario on the in-process twin."""
    limits = LocalLimits()

    async def charge(charge: Charge, now_ms: int) -> Verdict:
        return limits.charge(charge, now_ms)

    async def run() -> T:
        return await scenario(Counter(charge, connect(EMBEDDED)))

    return asyncio.run(run())
