"""`fairlane limits restore`: this month's counters of the limits, again from what was used.

For a Redis that lost its data: it starts the month anew. What the accounting has summed up raises
the counters to what was used at least; what was admitted and has not ended, or not been summed up,
is missing, and of requests with several inputs each counts once.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from accounting.core.windows import bounds
from fairlane.errors import FairlaneError
from fairlane.publish import published_policy
from fairlane.usage_read import Row, read, rows
from schemas.codec import DecodeError
from schemas.front import MonthUse
from schemas.log import Log
from schemas.policy import Policy
from schemas.topics import Topics
from schemas.usage import Window


class LimitsError(FairlaneError):
    """The counters can't be restored; the message says what to do."""


class Restored(NamedTuple):
    """Counters of tenants at endpoints: all that were used, and how many had held less."""

    all: int
    raised: int
    is_behind: bool


def month_uses(rows: Sequence[Row], policy: Policy) -> list[MonthUse]:
    """What each tenant of a policy took, and each parent with its children; weighted."""
    requests, tokens = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    ends: dict[tuple[str, str], int] = {}
    for row in rows:
        tenant, endpoint = policy.tenant(row.tenant), policy.endpoint(row.endpoint)
        if tenant is None or endpoint is None:
            continue
        for name in {row.tenant, tenant.parent} - {""}:
            key = name, row.endpoint
            ends[key] = row.end_ms
            requests[key] += endpoint.weight * row.used.requests
            tokens[key] += endpoint.weight * (row.used.input_tokens + row.used.output_tokens)
    return [
        MonthUse(name, endpoint, end_ms, requests[key], tokens[key], _parent(policy, name))
        for key, end_ms in sorted(ends.items())
        for name, endpoint in [key]
    ]


def _parent(policy: Policy, name: str) -> str:
    tenant = policy.tenant(name)
    return tenant.parent if tenant else ""


def restore(log: Log, topics: Topics, redis_url: str, now_ms: int) -> Restored:
    """Raise this month's counters to what was used.

    Raises LimitsError, and LogError when the log does not answer.
    """
    month, policy = bounds(Window.MONTH, now_ms), published_policy(log, topics)
    if policy is None:
        raise LimitsError("no policy is published: fairlane policy apply FILE")
    try:
        counted = read(log, topics)
    except DecodeError as error:
        raise LimitsError(str(error)) from error
    if not counted.is_begun:
        raise LimitsError("nothing is counted yet, so nothing can be restored: fairlane accounting")
    found = rows(counted.sums, Window.MONTH, month.start_ms, month.end_ms)
    uses = month_uses(found, policy)
    raised = asyncio.run(_restore(redis_url, topics.prefix, uses))
    return Restored(len(uses), raised, bool(counted.behind))


async def _restore(url: str, prefix: str, uses: Sequence[MonthUse]) -> int:
    from adapters.redis import connect
    from adapters.redis_limits import RedisLimits
    from schemas.front import StoreDownError

    client = connect(url)
    try:
        return await RedisLimits(client, prefix).restore(uses)
    except StoreDownError as error:
        raise LimitsError(f"{error}; check FAIRLANE_REDIS, then run this again") from error
    finally:
        await client.aclose()
