"""Month counters that were lost, again from what the accounting summed up."""

import asyncio
from typing import Any

import pytest

from adapters.memory import MemoryLog
from adapters.redis import EMBEDDED, connect
from adapters.redis_limits import RedisLimits
from fairlane import limits as restoring
from fairlane.limits import LimitsError, month_uses, restore
from fairlane.usage_read import Row
from producers.core.local import month_end_ms
from schemas.front import Charge, MonthUse
from schemas.policy import Allowance, Endpoint, Policy, Pool, Tenant, Tier
from schemas.topics import Topics
from schemas.usage import Used
from tests.support.door import Clock
from tests.support.limits import START_MS

POLICY = Policy(
    tiers=(Tier(name="gold"),),
    pools=(Pool(name="chat"),),
    endpoints=(Endpoint(name="chat", pool="chat", weight=2),),
    tenants=(
        Tenant(name="root", tiers=("gold",)),
        Tenant(name="alpha", tiers=("gold",), parent="root"),
        Tenant(name="beta", tiers=("gold",), parent="root"),
    ),
)
END_MS = month_end_ms(START_MS)


def row(tenant: str, requests: int, tokens: int, endpoint: str = "chat") -> Row:
    used = Used(succeeded=requests, input_tokens=tokens, output_tokens=1)
    return Row(tenant, endpoint, 0, END_MS, used, 1, 0)


def test_a_parent_holds_its_childrens_use_and_its_own() -> None:
    rows = [row("alpha", 3, 9), row("beta", 1, 4), row("root", 1, 0), row("gone", 5, 5)]
    assert month_uses([*rows, row("alpha", 1, 1, "gone")], POLICY) == [
        MonthUse("alpha", "chat", END_MS, 6, 20, "root"),
        MonthUse("beta", "chat", END_MS, 2, 10, "root"),
        MonthUse("root", "chat", END_MS, 10, 32, ""),
    ]


def test_counters_are_raised_and_never_lowered() -> None:
    async def scenario() -> None:
        client = connect(EMBEDDED)
        limits = RedisLimits(client, "test", str(START_MS), timeout_s=10.0)
        allowance = Allowance(requests_per_month=50, tokens_per_month=500)

        async def used(charge_id: str) -> tuple[int, ...]:
            charge = Charge("alpha", "chat", charge_id, 1, 10, allowance, "root", allowance)
            return tuple(state.used for state in (await limits.charge(charge)).states)

        assert await used("a") == (1, 10)
        uses = [
            MonthUse("alpha", "chat", END_MS, 6, 5, "root"),
            MonthUse("root", "chat", END_MS, 10, 32),
        ]
        assert await limits.restore(uses) == 2
        assert await limits.restore(uses) == 0
        assert await limits.restore([uses[0]._replace(month_end_ms=1, requests=90)]) == 0
        assert await used("b") == (11, 42)  # the parent's, which has less left
        assert await client.pttl("test:{root}:limit:root:chat") > 0
        await client.aclose()

    asyncio.run(scenario())


def test_without_a_policy_or_sums_there_is_nothing_to_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, topics = MemoryLog(Clock()), Topics("fairlane")
    log.ensure_topics(topics.of(POLICY))
    with pytest.raises(LimitsError, match="policy apply"):
        restore(log, topics, EMBEDDED, START_MS)

    def published(*_: Any) -> Policy:
        return POLICY

    monkeypatch.setattr(restoring, "published_policy", published)
    with pytest.raises(LimitsError, match="fairlane accounting"):
        restore(log, topics, EMBEDDED, START_MS)
