"""What a seed stands for: a policy, a fleet, its traffic and what goes wrong, all drawn.

Every part has a generator of its own (`stream`), so that one more fault changes nobody's
traffic. Small on purpose: a history has some forty to a hundred and twenty requests, few
lanes and short queues, because faults meet there as they do anywhere, only sooner.

What belongs here: choices. What does not: how they are played (simulation.history).
"""

from random import Random
from typing import NamedTuple

import msgspec

from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier, Topology
from schemas.policy_check import check
from simulation import tenants
from simulation.door import Arrival
from simulation.faults import Fault
from simulation.process import Fleetmate
from simulation.tenants import Agent, Asker, stream
from workers.engines.simulated import SimulatedSettings, Together

TIERS = ("gold", "silver", "bronze")
POOLS = ("chat", "embed", "batch")
TENANTS = ("acme", "globex", "hooli", "initech", "soylent", "umbrella")
#: Requests of a history; the last burst is cut off above.
REQUESTS_MIN = 40
REQUESTS_MAX = 120
#: Agents of a history; each has some turns.
AGENTS_MAX = 6


class Halt(NamedTuple):
    """A pause to come, of a tenant, an endpoint or both; "" is all of them.

    It is told `at_ms`, and is over by itself `lasts_ms` after that; 0: not by itself. It is
    resumed `resumed_ms` after it was told; None: never.
    """

    at_ms: int
    tenant: str
    endpoint: str
    lasts_ms: int
    resumed_ms: int | None


class Chosen(NamedTuple):
    """Everything about a history that is fixed before it begins.

    `mean` and `kinds` are those of the faults at steps (`Chaos`), `events` what else happens:
    (when, what); `cancelled` is (index of the arrival, how long after it; below 0: before).
    """

    policy: Policy
    schedulers: int
    mates: tuple[Fleetmate, ...]
    arrivals: list[Arrival]
    agents: list[Agent]
    again: list[tuple[int, int]]
    cancelled: list[tuple[int, int]]
    poison: frozenset[str]
    mean: int
    kinds: tuple[Fault, ...]
    events: list[tuple[int, str]]
    stop_ms: int
    halts: tuple[Halt, ...] = ()


def often(random: Random, percent: int) -> bool:
    """Tell, `percent` times out of a hundred."""
    return random.randrange(100) < percent


def draw(seed: int) -> Chosen:
    """Choose everything from the seed."""
    random = stream(seed, "shape")
    policy = draw_policy(stream(seed, "policy"), 1)
    stop_ms = random.choice((800, 2_000, 4_000, 8_000))
    arrivals, agents = _traffic(stream(seed, "traffic"), policy, stop_ms)
    choices = stream(seed, "choices")
    again = [
        (index, choices.choice((0, 1, 50, 500, 5_000)))
        for index in range(len(arrivals))
        if often(choices, 8)
    ]
    cancelled = [
        (index, choices.choice((-1, 0, 1, 20, 100, 400, 1_500, 9_000)))
        for index in range(len(arrivals))
        if often(choices, 12)
    ]
    is_poisoned = often(choices, 30)
    poison = {a.id for a in arrivals if is_poisoned and often(choices, 2)}
    faults = stream(seed, "faults")
    mean, kinds, events = _faults(faults, stop_ms)
    return Chosen(
        policy=policy,
        schedulers=choices.choice((1, 1, 2)),
        mates=_mates(stream(seed, "mates"), policy, seed),
        arrivals=arrivals,
        agents=agents,
        again=again,
        cancelled=cancelled,
        poison=frozenset(poison),
        mean=mean,
        kinds=kinds,
        events=events,
        stop_ms=stop_ms,
        halts=_halts(stream(seed, "pauses"), policy, stop_ms),
    )


# --- policy


def draw_policy(random: Random, version: int, before: Policy | None = None) -> Policy:
    """A valid policy; one that follows on `before` keeps its topology, pools and lanes."""
    for _ in range(100):
        policy = _draw_policy(random, version, before)
        if not check(policy):
            return policy
    raise AssertionError(check(policy))


def _draw_policy(random: Random, version: int, before: Policy | None) -> Policy:
    topology = before.topology if before else _topology(random)
    names = TIERS[: random.choice((1, 2, 2, 3))]
    if before and often(random, 70):
        names = tuple(tier.name for tier in before.tiers)
    pools = _pools(random, before)
    return Policy(
        version=version,
        topology=topology,
        tiers=tuple(
            Tier(name=name, floor=random.choice((0, 0, 10, 40)) if rank else 0)
            for rank, name in enumerate(names)
        ),
        pools=pools,
        endpoints=tuple(_endpoint(random, pool.name) for pool in pools),
        tenants=_tenants(random, names, before),
    )


def _topology(random: Random) -> Topology:
    return Topology(
        shards=random.choice((1, 1, 1, 2)),
        spread=random.choice((1, 1, 2)),
        buckets=random.choice((1, 2)),
    )


def _pools(random: Random, before: Policy | None) -> tuple[Pool, ...]:
    fairness = random.choice([Fairness.DRR, Fairness.DRR, *Fairness])
    if before:
        return tuple(
            msgspec.structs.replace(pool, prefetch=random.choice((0, 1, 2)), fairness=fairness)
            for pool in before.pools
        )
    return tuple(
        Pool(
            name=name,
            lanes=random.choice((1, 2, 2, 3)),
            prefetch=random.choice((0, 1, 1, 2)),
            fairness=fairness,
        )
        for name in POOLS[: random.choice((1, 2, 2, 3))]
    )


def _endpoint(random: Random, pool: str) -> Endpoint:
    batch_tokens = random.choice((500, 2_000, 20_000))
    batch_bytes = random.choice((3_000, 20_000, 500_000))
    return Endpoint(
        name=pool,
        pool=pool,
        cost=random.choice(list(CostModel)),
        quantum=random.choice((1, 10, 200, 5_000)),
        batch_requests=random.choice((1, 2, 4, 16)),
        batch_tokens=batch_tokens,
        batch_bytes=batch_bytes,
        body_bytes_max=min(3_000, batch_bytes),
        batch_wait_ms=random.choice((0, 5, 50)),
        tokens_max=min(batch_tokens, random.choice((400, 2_000))),
        service_ms=random.choice((0, 20, 200)),
        wait_ms_max=random.choice((1_500, 20_000, 120_000)),
        attempts_max=random.choice((1, 2, 3, 50)),
        inputs_max=random.choice((0, 0, 8)),
        token_us=random.choice((0, 0, 50)),
        service_ms_max=random.choice((1_000, 60_000)),
        overtake_max=random.choice((0, 2, 8)),
        half_life_ms=random.choice((1_000, 60_000)),
        in_flight=random.choice((*[None] * 9, 0, 1, 4)),
        burst=random.choice((0, 0, 3)),
        waiting=random.choice((*[None] * 9, 0, 3, 20)),
    )


def _tenants(random: Random, tiers: tuple[str, ...], before: Policy | None) -> tuple[Tenant, ...]:
    count = random.randint(2, len(TENANTS))
    names = list(TENANTS[:count])
    if before and often(random, 30):
        names.remove(random.choice(names))
    has_parents = often(random, 25)
    return tuple(
        Tenant(
            name=name,
            weight=random.choice((1, 1, 2, 5)),
            tiers=tiers if often(random, 80) else (random.choice(tiers),),
            parent=names[0] if has_parents and index and often(random, 60) else "",
            aging_ms=random.choice((0, 0, 0, 10, 1_000)),
        )
        for index, name in enumerate(names)
    )


# --- traffic


def _traffic(random: Random, policy: Policy, stop_ms: int) -> tuple[list[Arrival], list[Agent]]:
    arrivals: list[Arrival] = []
    agents: list[Agent] = []
    enough = random.randint(REQUESTS_MIN, REQUESTS_MAX)
    while len(arrivals) + 4 * len(agents) < enough:
        asker = _asker(random, policy)
        if often(random, 15) and len(agents) < AGENTS_MAX:
            think_ms = random.choice((0, 20, 300))
            start_ms = random.randrange(stop_ms)
            agents.append(Agent(random, asker, start_ms, random.randint(2, 6), think_ms))
        else:
            arrivals += _some(random, asker, stop_ms)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_ms)[:REQUESTS_MAX]
    return [_detailed(random, a, n) for n, a in enumerate(arrivals)], agents


def _asker(random: Random, policy: Policy) -> Asker:
    tenant = random.choice(policy.tenants)
    tier = random.choice(tenant.tiers)
    name = tenant.name
    if often(random, 2):
        name, tier = "nobody", policy.tiers[0].name
    least = random.choice((1, 20, 100))
    endpoint = random.choice(policy.endpoints)
    return Asker(name, tier, endpoint.name, least, least * random.choice((1, 4, 6)))


def _some(random: Random, asker: Asker, stop_ms: int) -> list[Arrival]:
    """One kind of traffic, at most about twenty requests."""
    per_s = 12_000 / stop_ms
    made = [
        lambda: tenants.steady(random, asker, 0, stop_ms, stop_ms // 12),
        lambda: tenants.poisson(random, asker, 0, stop_ms, per_s),
        lambda: tenants.bursty(random, asker, 0, stop_ms, stop_ms // 2, 8),
        lambda: tenants.on_off(random, asker, 0, stop_ms, stop_ms // 6, stop_ms // 4, 2 * per_s),
        lambda: tenants.burst(random, asker, random.randrange(stop_ms), random.randint(1, 20)),
    ]
    arrivals = random.choice(made)()
    match random.randrange(4):
        case 0:
            return tenants.sized(random, arrivals, asker, 2 * asker.tokens_min)
        case 1:
            return tenants.pareto(random, arrivals, asker, 1.2)
        case _:
            return arrivals


def _detailed(random: Random, arrival: Arrival, number: int) -> Arrival:
    return arrival._replace(
        id=f"r{number:03d}",
        priority=random.choice((100, 500, 500, 900)),
        deadline_ms=random.choice((0, 0, 0, 0, 60, 400, 3_000, 30_000)),
        output_tokens_max=random.choice((0, 0, 30, 200)),
        inputs=random.choice((1, 1, 1, 3)),
    )


# --- fleet


def _mates(random: Random, policy: Policy, seed: int) -> tuple[Fleetmate, ...]:
    mates = []
    for pool in policy.pools:
        engine = SimulatedSettings(
            fixed_ms=random.choice((1, 20, 100)),
            per_token_us=random.choice((0, 40, 400)),
            together=random.choice(list(Together)),
            seed=seed,
        )
        slots = random.choice((1, 1, 2, 3))
        mates += [
            Fleetmate(pool.name, slots, engine, random.choice((1, 1, 1, 5)))
            for _ in range(random.choice((1, 1, 2)))
        ]
    return tuple(mates)


#: What may happen beside faults at steps; see `simulation.history`.
EVENTS = (
    "policy",
    "policy",
    "snapshot",
    "snapshot",
    "compare",
    "compare",
    "kill worker",
    "kill scheduler",
    "lose worker",
    "deafen worker",
    "deafen scheduler",
    "replace scheduler",
    "replace worker",
    "leave worker",
    "leave scheduler",
    "join worker",
    "join scheduler",
    "clock of scheduler",
    "clock of worker",
    "hang requests",
    "hang control",
    "garbage",
)


def _faults(random: Random, stop_ms: int) -> tuple[int, tuple[Fault, ...], list[tuple[int, str]]]:
    """A tenth of the histories has no fault at all, the others from few to very many."""
    if often(random, 10):
        return 0, (), []
    kinds = tuple(fault for fault in Fault if often(random, 70))
    mean = random.choice((0, 600, 2_000, 6_000, 6_000))
    chosen = random.sample(sorted(set(EVENTS)), random.randint(1, 6))
    likely = [event for event in EVENTS if event in chosen]
    events = [
        (random.randrange(stop_ms + 1_000), random.choice(likely))
        for _ in range(random.randint(0, 12))
    ]
    return mean, kinds, sorted(events)


def _halts(random: Random, policy: Policy, stop_ms: int) -> tuple[Halt, ...]:
    """Pauses in four histories out of ten; some of nobody, some that are over when told."""
    if not often(random, 40):
        return ()
    tenants = [tenant.name for tenant in policy.tenants]
    endpoints = [endpoint.name for endpoint in policy.endpoints]
    halts = []
    for _ in range(random.randint(1, 5)):
        tenant = random.choice(("", *tenants, *tenants, "nobody"))
        halts.append(
            Halt(
                at_ms=random.randrange(stop_ms),
                tenant=tenant,
                endpoint=random.choice(("", *endpoints) if tenant else endpoints),
                lasts_ms=random.choice((0, 0, -1_000, 1, 300, 2_000, 60_000)),
                resumed_ms=random.choice((None, 0, 50, 700, 3_000, 20_000)),
            )
        )
    return tuple(halts)
