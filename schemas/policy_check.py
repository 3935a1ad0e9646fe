"""What makes a policy valid, as pure rules over the value; every fault is reported at once.

`check` is for whoever reads a published policy; `faults` gives the same with the path of
each fault (`endpoints[2].pool`), so that a reader of files can merge them with its own.
Not here: syntax and types of a document (`fairlane.policy_file`), and whether a policy
may follow another (`fairlane.policy_plan`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from schemas.log import RECORD_BYTES_MAX
from schemas.policy import (
    NAME_PATTERN,
    NAME_RULE,
    Endpoint,
    Policy,
    Pool,
    Tenant,
    Tier,
    encode_policy,
)
from schemas.topics import HOUR_MS, RETENTION_MS

#: A batch record also carries metadata of each request: bodies get half of a record.
BATCH_BYTES_MAX = RECORD_BYTES_MAX // 2
#: Metadata of this many requests (about 200 bytes each) fits in the other half.
BATCH_REQUESTS_MAX = 2_000
#: A request must end before the log forgets it, with time to look at what happened.
WAIT_MS_MAX = RETENTION_MS // 2
#: The whole policy is one record; what the framing takes stays free.
POLICY_BYTES_MAX = RECORD_BYTES_MAX - 10_000
#: Partitions of a topic: a broker serves thousands, a process reads this many with ease.
PARTITIONS_MAX = 1_024
#: Sums of costs stay far inside 64 bits, which other languages read.
COST_MAX = 1_000_000_000
#: Shares of 1000:1 are tested; more is a tier's job.
WEIGHT_MAX = 1_000
#: Batches sent ahead of a free slot are bound to a lane too early: keep it small.
PREFETCH_MAX = 64
#: A request that failed so often will fail again.
ATTEMPTS_MAX = 100
#: Waiting for company longer than this is no batching any more.
BATCH_WAIT_MS_MAX = 60_000
#: Inputs of one request, as many as clients of embeddings send at once; with more, one request
#: would be a job of its own.
INPUTS_MAX = 2_048
#: Names shown in a message when one is not defined.
_NAMES_SHOWN = 10

_NAME = re.compile(NAME_PATTERN)

_Range = tuple[str, int, int]

_TOPOLOGY: tuple[_Range, ...] = (
    ("shards", 1, PARTITIONS_MAX),
    ("spread", 1, PARTITIONS_MAX),
    ("buckets", 1, PARTITIONS_MAX),
)
_POOL: tuple[_Range, ...] = (("lanes", 1, PARTITIONS_MAX), ("prefetch", 0, PREFETCH_MAX))
_ENDPOINT: tuple[_Range, ...] = (
    ("quantum", 1, COST_MAX),
    ("batch_requests", 1, BATCH_REQUESTS_MAX),
    ("batch_tokens", 1, COST_MAX),
    ("batch_bytes", 1, BATCH_BYTES_MAX),
    ("batch_wait_ms", 0, BATCH_WAIT_MS_MAX),
    ("body_bytes_max", 1, BATCH_BYTES_MAX),
    ("tokens_max", 1, COST_MAX),
    ("service_ms", 0, HOUR_MS),
    ("wait_ms_max", 1, WAIT_MS_MAX),
    ("attempts_max", 1, ATTEMPTS_MAX),
    ("weight", 1, WEIGHT_MAX),
    ("inputs_max", 0, INPUTS_MAX),
)


class Fault(NamedTuple):
    """One fault: `path` of the field, and the message, which names the place itself."""

    path: str
    text: str


class _Place(NamedTuple):
    """A table of the document: `endpoints[2]`, and its name if it has one."""

    path: str
    name: str = ""

    def fault(self, field: str, text: str) -> Fault:
        return Fault(f"{self.path}.{field}", f"{label(self.path, self.name)}: {text}")


def label(path: str, name: str) -> str:
    """Place for messages: `endpoints[2] "embed"`."""
    return f'{path} "{name}"' if name else path


def check(policy: Policy) -> list[str]:
    """Every fault of a policy, each naming its place and what would be right; empty if none."""
    return [fault.text for fault in faults(policy)]


def faults(policy: Policy) -> list[Fault]:
    """Every fault of a policy with its path."""
    return list(_all(policy))


def undefined(kind: str, name: str, defined: Iterable[str]) -> str:
    """Message for a name that is not defined, with the ones that are."""
    names = sorted(filter(None, defined))
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f'{kind} "{name}" is not defined; defined are: {shown}{more}'


def _all(policy: Policy) -> Iterator[Fault]:
    yield from _sections(policy)
    yield from _ranges(policy.topology, _Place("topology"), _TOPOLOGY)
    partitions = policy.topology.shards * policy.topology.spread
    if partitions > PARTITIONS_MAX:
        yield Fault(
            "topology.spread",
            f"topology: shards x spread is {partitions}, at most {PARTITIONS_MAX} is served",
        )
    for index, pool in enumerate(policy.pools):
        yield from _ranges(pool, _Place(f"pools[{index}]", pool.name), _POOL)
    yield from _endpoints(policy)
    tiers = {tier.name for tier in policy.tiers}
    endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
    for index, tenant in enumerate(policy.tenants):
        yield from _tenant(_Place(f"tenants[{index}]", tenant.name), tenant, tiers, endpoints)
    size = len(encode_policy(policy))
    if size > POLICY_BYTES_MAX:
        yield Fault(
            "",
            f"policy: takes {size} bytes, one record holds {POLICY_BYTES_MAX}: fewer tenants, "
            "or fewer limits of their own",
        )


def _sections(policy: Policy) -> Iterator[Fault]:
    """Each section's names: their form, that there are some, that each is there once."""
    for section, items in _items(policy).items():
        if not items and section != "tenants":
            yield Fault(section, f"{section}: at least one is needed: [[{section}]] with a name")
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            place = _Place(f"{section}[{index}]", item.name)
            if not _NAME.fullmatch(item.name):
                yield Fault(
                    f"{place.path}.name",
                    f"{place.path}: name {item.name!r} is not valid: {NAME_RULE}",
                )
            elif item.name in first:
                text = f"the name is already taken by {section}[{first[item.name]}]"
                yield place.fault("name", text)
            first.setdefault(item.name, index)


def _items(policy: Policy) -> dict[str, Sequence[Tier | Pool | Endpoint | Tenant]]:
    return {
        "tiers": policy.tiers,
        "pools": policy.pools,
        "endpoints": policy.endpoints,
        "tenants": policy.tenants,
    }


def _ranges(item: Struct, place: _Place, ranges: tuple[_Range, ...]) -> Iterator[Fault]:
    for field, least, most in ranges:
        value = getattr(item, field)
        if not least <= value <= most:
            yield place.fault(field, f"{field} is {value}; allowed is {least}..{most}")


def _endpoints(policy: Policy) -> Iterator[Fault]:
    pools = {pool.name for pool in policy.pools}
    first: dict[str, str] = {}
    for index, endpoint in enumerate(policy.endpoints):
        place = _Place(f"endpoints[{index}]", endpoint.name)
        if endpoint.pool not in pools:
            yield place.fault("pool", undefined("pool", endpoint.pool, pools))
        elif endpoint.pool in first:
            yield place.fault(
                "pool",
                f'pool "{endpoint.pool}" already serves endpoint "{first[endpoint.pool]}"; '
                "one endpoint a pool: define another pool",
            )
        first.setdefault(endpoint.pool, endpoint.name)
        yield from _ranges(endpoint, place, _ENDPOINT)
        yield from _fits(place, endpoint)
        yield from _limit(place, endpoint, endpoint.requests_per_minute, "requests_per_minute")


def _fits(place: _Place, endpoint: Endpoint) -> Iterator[Fault]:
    """What is let in must fit in a batch, or it would wait for ever."""
    if endpoint.batch_bytes < endpoint.body_bytes_max <= BATCH_BYTES_MAX:
        yield place.fault(
            "body_bytes_max",
            f"body_bytes_max is {endpoint.body_bytes_max}, above batch_bytes "
            f"({endpoint.batch_bytes}): such a body would fit in no batch",
        )
    if endpoint.batch_tokens < endpoint.tokens_max <= COST_MAX:
        yield place.fault(
            "tokens_max",
            f"tokens_max is {endpoint.tokens_max}, above batch_tokens "
            f"({endpoint.batch_tokens}): such a request would fit in no batch",
        )


def _limit(place: _Place, endpoint: Endpoint, limit: int | None, field: str) -> Iterator[Fault]:
    """Zero locks out; below the endpoint's weight nothing would ever be let in."""
    if limit is None or limit == 0:
        return
    if not endpoint.weight <= limit <= COST_MAX:
        yield place.fault(
            field,
            f"{field} is {limit}; allowed is 0 (nobody) or {endpoint.weight} (the endpoint's "
            f"weight: one request) ..{COST_MAX}",
        )


def _tenant(
    place: _Place, tenant: Tenant, tiers: set[str], endpoints: dict[str, Endpoint]
) -> Iterator[Fault]:
    if not tenant.tiers:
        yield place.fault("tiers", "tiers is empty; name at least one, the first is the default")
    for name, count in Counter(tenant.tiers).items():
        if name not in tiers:
            yield place.fault("tiers", undefined("tier", name, tiers))
        elif count > 1:
            yield place.fault("tiers", f'tier "{name}" is listed {count} times; once is enough')
    if not 1 <= tenant.weight <= WEIGHT_MAX:
        yield place.fault("weight", f"weight is {tenant.weight}; allowed is 1..{WEIGHT_MAX}")
    for name, limit in tenant.requests_per_minute.items():
        field = f"requests_per_minute.{name}"
        if name not in endpoints:
            text = undefined("endpoint", name, endpoints)
            yield place.fault(field, f"requests_per_minute: {text}")
        else:
            yield from _limit(place, endpoints[name], limit, field)
