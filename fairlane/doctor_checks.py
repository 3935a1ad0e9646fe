"""What the doctor thinks of what was found: findings in, a verdict a line out.

What belongs here: the rules, each with its reason and its way out. What does not: looking
(`fairlane.doctor_probes`) and printing (`fairlane.doctor`). Nothing here asks anybody, so that
every rule can be tested by a table of findings.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fairlane.doctor_topics import TopicFound, judge_topics
from fairlane.doctor_verdict import Check, State, missing, ok, unknown, warn
from schemas.policy import Inbox, Policy
from schemas.policy_check import check as policy_faults
from schemas.topics import Topics

__all__ = ["Check", "State", "judge"]

#: The oldest that runs: see requires-python.
PYTHON_MIN = (3, 11)
#: The index gives entries their time to live only where they have none: new in Redis 7.0.
REDIS_MAJOR_MIN = 7
#: A charge waits a round trip, and gives Redis up after 100 ms: a tenth of that is far away.
RTT_US_MAX = 10_000
#: What never evicts: a limit that is forgotten is no limit.
NO_EVICTION = "noeviction"


class Machine(NamedTuple):
    """This machine: Python's version, what is missing of each extra, and of the local stack.

    `models` says what is wrong with the models' weights, by their name; "" for nothing.
    """

    python: tuple[int, int, int]
    extras: Mapping[str, tuple[str, ...]]
    stack_missing: tuple[str, ...]
    models: Mapping[str, str]


class Where(NamedTuple):
    """Where Kafka and Redis are said to be: by what, and as people may see it; or the fault."""

    source: str = ""
    kafka: str = ""
    redis: str = ""
    prefix: str = "fairlane"
    replication: int = 1
    error: str = ""


class GroupFound(NamedTuple):
    """Live members of a group and the partitions that they hold."""

    members: int
    held: int


class KafkaFound(NamedTuple):
    """A cluster, or why it could not be asked; groups by name, None where they don't tell."""

    cluster: str = ""
    brokers: int = 0
    topics: Mapping[str, TopicFound] = {}
    groups: Mapping[str, GroupFound] | None = None
    error: str = ""


class RedisFound(NamedTuple):
    """A Redis, or why it could not be asked; `saves` None: it doesn't tell."""

    version: str = ""
    eviction: str = ""
    is_appending: bool = False
    saves: str | None = None
    rtt_us: int = 0
    error: str = ""


class PublishedFound(NamedTuple):
    """What is published: the policy, and keys that let somebody in; or why it can't be read."""

    policy: Policy | None = None
    keys: int = 0
    error: str = ""


class Groups(NamedTuple):
    """Names of the groups whose members are the services of a deployment."""

    ingress: str
    scheduler: str
    accounting: str
    workers: Mapping[str, str]
    inbox: str = ""


class Findings(NamedTuple):
    """All that was found; None: there was no address to ask, or nobody answered there."""

    machine: Machine
    where: Where
    kafka: KafkaFound | None = None
    redis: RedisFound | None = None
    published: PublishedFound | None = None
    groups: Groups | None = None


def judge(found: Findings) -> list[Check]:
    """Every check, in the order in which a reader would mend them."""
    return [
        *_machine(found.machine, found.where),
        *_where(found.where),
        *_kafka(found),
        *_redis(found.redis),
        *_published(found),
        *_services(found),
    ]


def _machine(machine: Machine, where: Where) -> Iterator[Check]:
    group = "this machine"
    version = ".".join(map(str, machine.python))
    if machine.python >= PYTHON_MIN:
        yield ok(group, "Python", version)
    else:
        floor = ".".join(map(str, PYTHON_MIN))
        yield missing(group, "Python", version, f"install Python {floor} or newer")
    for extra, absent in machine.extras.items():
        name = f"extra {extra}"
        if absent:
            way = f"pip install 'fairlane[{extra}]', if you want it"
            yield warn(group, name, f"not installed: {', '.join(absent)}", way)
        else:
            yield ok(group, name, "installed")
    for model, fault in machine.models.items():
        if fault:
            yield warn(group, f"model {model}", fault, "`make models`, if you want it")
        else:
            yield ok(group, f"model {model}", "the weights are there and whole")
    if not machine.stack_missing:
        yield ok(group, "local stack", "Java, Kafka's jars and Redis can be had")
    elif where.source:
        parts = ", ".join(line.partition(":")[0] for line in machine.stack_missing)
        yield ok(group, "local stack", f"not needed, addresses are given (missing: {parts})")
    for line in () if where.source else machine.stack_missing:
        what, _, way = line.partition(": ")
        yield missing(group, what, "not found", way)


def _where(where: Where) -> Iterator[Check]:
    group = "settings"
    if where.error:
        first, *rest = where.error.splitlines()
        for fault in (first, *rest):
            what, _, way = fault.partition(": ")
            yield missing(group, "addresses", what, way or "set FAIRLANE_KAFKA and FAIRLANE_REDIS")
        return
    yield ok(group, "source", where.source)
    shown = f"{where.kafka}, prefix {where.prefix}, replication {where.replication}"
    yield ok(group, "Kafka", shown)
    if where.redis:
        yield ok(group, "Redis", where.redis)
    else:
        yield missing(group, "Redis", "no address", "set FAIRLANE_REDIS: redis://host:6379/0")


def _kafka(found: Findings) -> Iterator[Check]:
    group, kafka = "Kafka", found.kafka
    if kafka is None:
        yield unknown(group, "cluster", "no address to ask", "see settings above")
        return
    if kafka.error:
        way = "start it (`fairlane up` for a local one), or correct FAIRLANE_KAFKA"
        yield missing(group, "cluster", kafka.error, way)
        return
    brokers = f"{kafka.brokers} broker{'s' if kafka.brokers != 1 else ''}"
    if kafka.brokers < found.where.replication:
        yield missing(
            group,
            "cluster",
            f"{brokers}, and topics are to have {found.where.replication} copies",
            f"add brokers, or set FAIRLANE_REPLICATION to {max(1, kafka.brokers)}",
        )
    else:
        yield ok(group, "cluster", f"{kafka.cluster}, {brokers}")
    topics = Topics(found.where.prefix)
    policy = found.published.policy if found.published else None
    specs = topics.of(policy) if policy else topics.base()
    yield from judge_topics(specs, kafka.topics, found.where.replication)


def _redis(redis: RedisFound | None) -> Iterator[Check]:
    group = "Redis"
    if redis is None:
        yield unknown(group, "server", "no address to ask", "see settings above")
        return
    if redis.error:
        way = "start it (`fairlane up` for a local one), or correct FAIRLANE_REDIS"
        yield missing(group, "server", redis.error, way)
        return
    major = redis.version.partition(".")[0]
    if major.isdecimal() and int(major) >= REDIS_MAJOR_MIN:
        yield ok(group, "server", f"version {redis.version}")
    else:
        way = f"use Redis {REDIS_MAJOR_MIN} or newer, or a Valkey"
        yield missing(group, "server", f"version {redis.version or 'unknown'}", way)
    if redis.eviction == NO_EVICTION:
        yield ok(group, "eviction", redis.eviction)
    else:
        found = f"maxmemory-policy is {redis.eviction or 'unknown'}: limits can be forgotten"
        yield warn(group, "eviction", found, f"CONFIG SET maxmemory-policy {NO_EVICTION}")
    yield _persistence(redis)
    rtt = f"{redis.rtt_us / 1_000:.1f} ms a round trip"
    if redis.rtt_us <= RTT_US_MAX:
        yield ok(group, "distance", rtt)
    else:
        yield warn(group, "distance", rtt, "bring it nearer: every request waits for it once")


def _persistence(redis: RedisFound) -> Check:
    if redis.is_appending:
        return ok("Redis", "persistence", "append-only file")
    if redis.saves:
        return ok("Redis", "persistence", f"snapshots ({redis.saves})")
    if redis.saves is None:
        way = "make sure that it keeps its data over a restart"
        return unknown("Redis", "persistence", "it doesn't tell (CONFIG is not allowed)", way)
    found = "none: a restart forgets limits, and results until they are indexed again"
    way = "CONFIG SET appendonly yes; after a loss: fairlane limits restore"
    return warn("Redis", "persistence", found, way)


def _published(found: Findings) -> Iterator[Check]:
    group, published, prefix = "policy", found.published, found.where.prefix
    if published is None or published.error:
        what = published.error if published else "Kafka was not asked"
        yield unknown(group, "policy", what, "see Kafka above")
        return
    policy = published.policy
    if policy is None:
        way = "fairlane policy apply FILE (examples/policy.toml is one)"
        yield missing(group, "policy", f"none is published under {prefix!r}", way)
        return
    faults = policy_faults(policy)
    if faults:
        way = "correct its file and apply it again: fairlane policy apply FILE"
        yield missing(group, "policy", f"version {policy.version}: {'; '.join(faults)}", way)
    else:
        counts = f"{len(policy.tenants)} tenants, {len(policy.pools)} pools"
        yield ok(group, "policy", f"version {policy.version}, {counts}")
    if published.keys:
        yield ok(group, "keys", f"{published.keys} let somebody in")
    else:
        way = "fairlane keys create --tenant NAME"
        yield missing(group, "keys", "none that lets anybody in", way)


def _inboxes(policy: Policy, members: int) -> Iterator[Check]:
    """Somebody takes inboxes in, where there are some."""
    if not (count := sum(tenant.inbox is not Inbox.OFF for tenant in policy.tenants)):
        return
    if members:
        yield ok("services", "inbox", f"{members} running")
    else:
        what = f"none is running: what {count} tenants put on the bus waits"
        yield warn("services", "inbox", what, "fairlane inbox")


def _services(found: Findings) -> Iterator[Check]:
    group, names = "services", found.groups
    kafka, published = found.kafka, found.published
    policy = published.policy if published else None
    if kafka is None or kafka.groups is None or names is None or policy is None:
        what = "nobody can be asked" if kafka is None or policy is None else "Kafka doesn't tell"
        yield unknown(group, "members", what, "see above")
        return
    nobody = GroupFound(0, 0)
    for service, name in (("ingress", names.ingress), ("scheduler", names.scheduler)):
        members = kafka.groups.get(name, nobody).members
        if members:
            yield ok(group, service, f"{members} running")
        else:
            yield missing(group, service, "none is running", f"fairlane {service}")
    if counting := kafka.groups.get(names.accounting, nobody).members:
        yield ok(group, "accounting", f"{counting} running")
    else:
        what = "none is running: what is used meanwhile is counted later"
        yield warn(group, "accounting", what, "fairlane accounting")
    yield from _inboxes(policy, kafka.groups.get(names.inbox, nobody).members)
    for pool in policy.pools:
        workers = kafka.groups.get(names.workers.get(pool.name, ""), nobody)
        service, way = f"pool {pool.name}", f"fairlane worker --pool {pool.name}"
        if not workers.members:
            yield warn(group, service, "no worker: what comes for it waits", way)
        elif workers.held < pool.lanes:
            what = f"{workers.held} of {pool.lanes} lanes are held"
            yield warn(group, service, what, "ask again: they are being shared out anew")
        else:
            yield ok(group, service, f"{pool.lanes} lanes, workers: {workers.members}")
