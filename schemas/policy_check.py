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
    LIMITS,
    NAME_PATTERN,
    NAME_RULE,
    TEXT_BYTES_MAX,
    CostModel,
    Endpoint,
    Policy,
    Pool,
    Tenant,
    Tier,
    encode_policy,
    policy_json,
)
from schemas.topics import DAY_MS, HOUR_MS, RETENTION_MS

#: A batch record also carries metadata of each request: bodies get half of a record.
BATCH_BYTES_MAX = RECORD_BYTES_MAX // 2
#: Metadata of this many requests (about 200 bytes each) fits in the other half.
BATCH_REQUESTS_MAX = 2_000
#: A request must end before the log forgets it, with time to look at what happened.
WAIT_MS_MAX = RETENTION_MS // 2
#: The whole policy is one record, packed when it is long, and stands by value in a decision of
#: each shard, beside what else a cycle read. Packed, 100,000 tenants with short names fit.
POLICY_BYTES_MAX = 400_000
#: Partitions of a topic: a broker serves thousands, a process reads this many with ease.
PARTITIONS_MAX = 1_024
#: Sums of costs stay far inside 64 bits, which other languages read.
COST_MAX = 1_000_000_000
#: And those of a month, which the limiter counts exactly in doubles, stay far inside 53.
QUOTA_MAX = 1_000_000_000_000_000
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
#: A tenth of a pool is left for the tiers that have no floor, or rank would mean nothing.
FLOORS_MAX = 90
#: Each is looked at while a batch is filled.
OVERTAKE_MAX = 256
#: A debt that halves faster is none; one that lasts longer than a day was made by other traffic.
HALF_LIFE_MS_MIN = 1_000
HALF_LIFE_MS_MAX = DAY_MS
#: A minute a token: slower ones are no service.
TOKEN_US_MAX = 60_000_000
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
    ("token_us", 0, TOKEN_US_MAX),
    ("service_ms_max", 1, HOUR_MS),
    ("overtake_max", 0, OVERTAKE_MAX),
    ("burst", 0, COST_MAX),
    ("output_tokens_default", 0, COST_MAX),
)
_TENANT: tuple[_Range, ...] = (("weight", 1, WEIGHT_MAX), ("aging_ms", 0, WAIT_MS_MAX))

#: What one unit of `quantum` is.
UNITS = {
    CostModel.REQUEST: "requests",
    CostModel.TOKEN: "tokens",
    CostModel.ADAPTIVE: "milliseconds of service",
}


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
    yield from _floors(policy)
    for index, pool in enumerate(policy.pools):
        yield from _ranges(pool, _Place(f"pools[{index}]", pool.name), _POOL)
    tiers = {tier.name for tier in policy.tiers}
    yield from _endpoints(policy, tiers)
    endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
    for index, tenant in enumerate(policy.tenants):
        place = _Place(f"tenants[{index}]", tenant.name)
        yield from _tenant(place, tenant, tiers, endpoints)
        yield from _parent(place, tenant, policy)
    yield from _size(policy)


def _size(policy: Policy) -> Iterator[Fault]:
    try:
        length = len(policy_json(policy))
        size = len(encode_policy(policy))
    except (OverflowError, UnicodeEncodeError):
        return  # a figure beyond 64 bits, or text that is none: its field has a fault already
    if size > POLICY_BYTES_MAX or length > TEXT_BYTES_MAX:
        yield Fault(
            "",
            f"policy: takes {size} bytes packed and {length} unpacked, {POLICY_BYTES_MAX} and "
            f"{TEXT_BYTES_MAX} are read: fewer tenants, or fewer limits of their own",
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
            unit = (
                f" {UNITS[item.cost]}" if isinstance(item, Endpoint) and field == "quantum" else ""
            )
            yield place.fault(field, f"{field} is {value}; allowed is {least}..{most}{unit}")


def _floors(policy: Policy) -> Iterator[Fault]:
    """Each is a percentage; together they leave something to rank."""
    for index, tier in enumerate(policy.tiers):
        place = _Place(f"tiers[{index}]", tier.name)
        if not 0 <= tier.floor <= FLOORS_MAX:
            text = f"floor is {tier.floor}; allowed is 0..{FLOORS_MAX} percent of a pool"
            yield place.fault("floor", text)
        elif index == 0 and tier.floor:
            yield place.fault(
                "floor",
                f"floor is {tier.floor}, but the first tier is served first anyway: leave it out, "
                "and give floors to those behind it",
            )
    total = sum(tier.floor for tier in policy.tiers)
    if total > FLOORS_MAX and all(0 <= tier.floor <= FLOORS_MAX for tier in policy.tiers):
        listed = ", ".join(f"{tier.name} {tier.floor}" for tier in policy.tiers if tier.floor)
        yield Fault(
            "tiers",
            f"tiers: the floors are {total} percent of a pool ({listed}), at most {FLOORS_MAX} can "
            "be given away: lower some",
        )


def _endpoints(policy: Policy, tiers: set[str]) -> Iterator[Fault]:
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
        yield from _times(place, endpoint)
        for field in LIMITS:
            yield from _limit(place, endpoint, getattr(endpoint, field), field)
        yield from _shadow(place, endpoint.shadow, "shadow")
        yield from _count(place, endpoint.in_flight, "in_flight")
        yield from _count(place, endpoint.waiting, "waiting")
        yield from _count(place, endpoint.waiting_tokens, "waiting_tokens")
        yield from _latency(place, endpoint, tiers)


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


def _times(place: _Place, endpoint: Endpoint) -> Iterator[Fault]:
    """Debts fade, neither at once nor never; a learned cost has room above the expected one."""
    half_life_ms, longest_ms = endpoint.half_life_ms, endpoint.service_ms_max
    if not HALF_LIFE_MS_MIN <= half_life_ms <= HALF_LIFE_MS_MAX:
        why = "" if half_life_ms else " (0 would switch the fading of debts off, not fairness on)"
        yield place.fault(
            "half_life_ms",
            f"half_life_ms is {half_life_ms}; allowed is {HALF_LIFE_MS_MIN}..{HALF_LIFE_MS_MAX}"
            f"{why}; leave it out for 60000",
        )
    if endpoint.cost is not CostModel.ADAPTIVE or not 1 <= longest_ms <= HOUR_MS:
        return
    for field, expected_ms in (
        ("service_ms", endpoint.service_ms),
        ("token_us", endpoint.token_us // 1_000),
    ):
        if longest_ms < expected_ms:
            yield place.fault(
                "service_ms_max",
                f"service_ms_max is {longest_ms}, less than {field} says a request takes "
                f'({expected_ms} ms): with cost "adaptive" all would cost the same; raise it',
            )


def _latency(place: _Place, endpoint: Endpoint, tiers: set[str]) -> Iterator[Fault]:
    """Targets of tiers that there are, longer than the service is said to take."""
    for name, target_ms in endpoint.latency_ms.items():
        field = f"latency_ms.{name}"
        if name not in tiers:
            yield place.fault(field, f"latency_ms: {undefined('tier', name, tiers)}")
        elif not 1 <= target_ms <= WAIT_MS_MAX:
            yield place.fault(field, f"{field} is {target_ms}; allowed is 1..{WAIT_MS_MAX}")
        elif target_ms <= endpoint.service_ms:
            yield place.fault(
                field,
                f"{field} is {target_ms}, but service_ms says that a batch takes "
                f"{endpoint.service_ms}: nothing would ever be in time",
            )


def _count(place: _Place, count: int | None, field: str) -> Iterator[Fault]:
    """A limit in requests: zero means zero, absent means none."""
    if count is not None and not 0 <= count <= COST_MAX:
        name = field.partition(".")[0]
        yield place.fault(
            field, f"{name} is {count}; allowed is 0 (nothing) ..{COST_MAX}; no limit: leave it out"
        )


def _limit(place: _Place, endpoint: Endpoint, limit: int | None, field: str) -> Iterator[Fault]:
    """Zero locks out; below the endpoint's weight nothing would ever be let in."""
    if limit is None or limit == 0:
        return
    name = field.partition(".")[0]
    most = QUOTA_MAX if name.endswith("month") else COST_MAX
    if not endpoint.weight <= limit <= most:
        one = "one request" if name.startswith("requests") else "one token"
        yield place.fault(
            field,
            f"{field} is {limit}; allowed is 0 (nobody) or {endpoint.weight} (the endpoint's "
            f"weight: {one}) ..{most}",
        )


def _shadow(place: _Place, names: Sequence[str], field: str) -> Iterator[Fault]:
    """Only limits of the door can be tried out."""
    for name in names:
        if name not in LIMITS:
            text = f'{field} names "{name}"; it may name {", ".join(LIMITS)}'
            yield place.fault(field, text)


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
    yield from _ranges(tenant, place, _TENANT)
    for section in (*LIMITS, "shadow", "in_flight", "burst", "waiting", "waiting_tokens"):
        for name, limit in getattr(tenant, section).items():
            field = f"{section}.{name}"
            if name not in endpoints:
                yield place.fault(field, f"{section}: {undefined('endpoint', name, endpoints)}")
            elif section == "shadow":
                yield from _shadow(place, limit, field)
            elif section in LIMITS:
                yield from _limit(place, endpoints[name], limit, field)
            else:
                yield from _count(place, limit, field)


def _parent(place: _Place, tenant: Tenant, policy: Policy) -> Iterator[Fault]:
    """Families have two levels."""
    if not tenant.parent:
        return
    parent = policy.tenant(tenant.parent)
    if parent is None:
        text = undefined("tenant", tenant.parent, (other.name for other in policy.tenants))
        yield place.fault("parent", f"parent: {text}")
    elif tenant.parent == tenant.name:
        yield place.fault("parent", "parent is the tenant itself: leave it out")
    elif parent.parent:
        yield place.fault(
            "parent",
            f'parent "{parent.name}" has a parent itself, "{parent.parent}"; families have two '
            f'levels: take the parent of "{parent.name}" off, or name one that has none',
        )
