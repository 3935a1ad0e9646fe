"""Ways to charge: the script and its in-process twin, on a clock that the test sets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from redis.asyncio import Redis

from adapters.redis import EMBEDDED, connect
from adapters.redis_limits import RedisLimits
from producers.core.local import LocalLimits
from schemas.front import Charge, Settlement, Verdict
from schemas.policy import Allowance

T = TypeVar("T")

#: A time that is not on a counter's edge.
START_MS = 1_800_000_001_234


class Limiter(Protocol):
    """What is tested: the script or its twin, at a time that the test names."""

    async def charge(self, charge: Charge, now_ms: int) -> Verdict: ...

    async def refund(self, charge: Charge, now_ms: int) -> bool: ...

    async def settle(self, settlement: Settlement, now_ms: int) -> bool: ...


class Counter:
    """Charges of requests a minute, the simplest limit; ids are numbered unless named."""

    def __init__(self, limiter: Limiter, redis: "Redis") -> None:
        self.limiter, self.redis = limiter, redis
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
        allowance = Allowance(requests_per_minute=limit)
        return await self.limiter.charge(
            Charge(tenant, endpoint, name, cost, 10 * cost, allowance), now_ms
        )


class _Script:
    def __init__(self, redis: "Redis", prefix: str, *, is_cluster: bool) -> None:
        self._limits = RedisLimits(redis, prefix, timeout_s=10.0, is_cluster=is_cluster)

    async def charge(self, charge: Charge, now_ms: int) -> Verdict:
        self._limits.now_override_ms = str(now_ms)
        return await self._limits.charge(charge)

    async def refund(self, charge: Charge, now_ms: int) -> bool:
        self._limits.now_override_ms = str(now_ms)
        return await self._limits.refund(charge)

    async def settle(self, settlement: Settlement, now_ms: int) -> bool:
        self._limits.now_override_ms = str(now_ms)
        return bool(await self._limits.settle([settlement]))


class _Local:
    def __init__(self) -> None:
        self._limits = LocalLimits()

    async def charge(self, charge: Charge, now_ms: int) -> Verdict:
        return self._limits.charge(charge, now_ms)

    async def refund(self, charge: Charge, now_ms: int) -> bool:
        return self._limits.refund(charge, now_ms)

    async def settle(self, settlement: Settlement, now_ms: int) -> bool:
        return self._limits.settle(settlement, now_ms)


def with_script(
    scenario: Callable[[Counter], Awaitable[T]],
    url: str = EMBEDDED,
    prefix: str = "test",
    *,
    is_cluster: bool = False,
) -> T:
    """Run a scenario on the Lua script; `url` names another Redis than the in-process one."""

    async def run() -> T:
        # A real one is given all the time it wants: what is tested is what it says.
        redis = connect(url) if url == EMBEDDED else Redis.from_url(url)
        try:
            return await scenario(Counter(_Script(redis, prefix, is_cluster=is_cluster), redis))
        finally:
            await redis.aclose()

    return asyncio.run(run())


def with_local(scenario: Callable[[Counter], Awaitable[T]]) -> T:
    """Run a scenario on the in-process twin."""

    async def run() -> T:
        return await scenario(Counter(_Local(), connect(EMBEDDED)))

    return asyncio.run(run())
