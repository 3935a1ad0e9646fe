"""What the demo plays: tenants, their traffic, the machine, and the two controls.

The story: acme sends a burst at once, bolt sends five requests just after it. Both are in
the middle tier; others go on with their usual traffic in all three.

What belongs here: values, made from one seed or from a trace. What does not: time, screens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier
from schemas.policy_check import COST_MAX, WAIT_MS_MAX
from simulation.tenants import Asker, burst, bursty, few, on_off, poisson, steady, stream
from simulation.traces import Row, arrivals_of, read_trace
from simulation.world import Arrival, Workers
from workers.engines.simulated import SimulatedSettings

HEAVY, LIGHT = "acme", "bolt"
LIGHT_REQUESTS = 5
BURST_DEFAULT = 10_000
#: The burst comes when everybody else has been seen at work.
BURST_MS = 1_500
#: bolt's requests come while the burst waits, be it of 1,000 or of 100,000.
LIGHT_FROM_MS, LIGHT_UNTIL_MS = BURST_MS + 100, BURST_MS + 700
#: What the machine serves of a burst, beside the usual traffic; only to know how long to go on.
DRAINED_PER_S = 530
#: The others go on so long after the burst is served.
AFTERWARDS_MS = 2_000
#: Requests of the same moment come together: fewer moments, a quicker play.
TICK_MS = 10

_TIERS = ("premium", "standard", "trial")
_ENDPOINT = "embed"
_LANES = 4
#: A batch of 32 requests of 100 tokens on average takes about 200 ms.
_ENGINE = SimulatedSettings(fixed_ms=100, per_token_us=31)
#: A trace's requests take turns on so many engines, each alone, as streamed answers do.
_TRACE_LANES = 8
#: More comes than these engines can serve, by so much: without a queue nothing is to be seen.
_TRACE_LOAD_PERCENT = 115
_TRACE_TIER = "standard"


class Scene(NamedTuple):
    """A play: `policy`, the machine, and who asks when. `light` and `heavy` may be empty."""

    title: str
    policy: Policy
    workers: tuple[Workers, ...]
    arrivals: list[Arrival]  # by time
    heavy: str = ""
    light: str = ""

    @property
    def duration_ms(self) -> int:
        """When the last request comes."""
        return self.arrivals[-1].at_ms


def story(seed: int, burst_size: int = BURST_DEFAULT, until_ms: int | None = None) -> Scene:
    """The burst and the five, with six others; the usual traffic ends at `until_ms`.

    By default it goes on until the burst is served and a little longer.
    """
    stop_ms = until_ms or BURST_MS + burst_size * 1000 // DRAINED_PER_S + AFTERWARDS_MS
    arrivals = [
        *steady(stream(seed, "globex"), _asker("globex"), 0, stop_ms, 50),
        *poisson(stream(seed, "initech"), _asker("initech"), 0, stop_ms, 20),
        *burst(stream(seed, HEAVY), _asker(HEAVY), BURST_MS, burst_size),
        *few(stream(seed, LIGHT), _asker(LIGHT), LIGHT_FROM_MS, LIGHT_UNTIL_MS, LIGHT_REQUESTS),
        *poisson(stream(seed, "umbrella"), _asker("umbrella"), 0, stop_ms, 30),
        *bursty(stream(seed, "hooli"), _asker("hooli"), 0, stop_ms, 2_500, 40),
        *on_off(stream(seed, "wonka"), _asker("wonka"), 0, stop_ms, 1_500, 3_500, 20),
        *poisson(stream(seed, "tyrell"), _asker("tyrell"), 0, stop_ms, 6),
    ]
    arrivals = [a._replace(at_ms=a.at_ms // TICK_MS * TICK_MS) for a in arrivals]
    arrivals.sort(key=lambda arrival: arrival.at_ms)
    title = f"{HEAVY} sends {burst_size:,} requests at once. {LIGHT} sends {LIGHT_REQUESTS}."
    return Scene(title, _POLICY, (Workers(_ENDPOINT, engine=_ENGINE),), arrivals, HEAVY, LIGHT)


_POLICY = Policy(
    tiers=tuple(Tier(name=name) for name in _TIERS),
    pools=(Pool(name=_ENDPOINT, lanes=_LANES),),
    endpoints=(
        Endpoint(
            name=_ENDPOINT,
            pool=_ENDPOINT,
            cost=CostModel.TOKEN,
            quantum=512,
            batch_requests=32,
            batch_tokens=16_384,
            batch_wait_ms=10,
            tokens_max=8_192,
            wait_ms_max=WAIT_MS_MAX,
        ),
    ),
    tenants=(
        Tenant(name="globex", tiers=("premium",), weight=2),
        Tenant(name="initech", tiers=("premium",)),
        Tenant(name=HEAVY, tiers=("standard",)),
        Tenant(name=LIGHT, tiers=("standard",)),
        Tenant(name="umbrella", tiers=("standard",), weight=2),
        Tenant(name="hooli", tiers=("standard",)),
        Tenant(name="wonka", tiers=("trial",)),
        Tenant(name="tyrell", tiers=("trial",)),
    ),
    version=1,
)


def _asker(tenant: str) -> Asker:
    found = _POLICY.tenant(tenant)
    assert found is not None, tenant
    return Asker(tenant, found.tiers[0], _ENDPOINT)


def recorded(path: Path) -> Scene:
    """A trace: its tenants as equals in one tier, on engines a little slower than needed.

    Raises TraceError.
    """
    rows = read_trace(path)
    endpoints = list(dict.fromkeys(row.endpoint for row in rows))
    tenants = sorted({row.tenant for row in rows})
    policy = Policy(
        tiers=(Tier(name=_TRACE_TIER),),
        pools=tuple(Pool(name=name, lanes=_TRACE_LANES, prefetch=0) for name in endpoints),
        endpoints=tuple(_trace_endpoint(name) for name in endpoints),
        tenants=tuple(Tenant(name=name, tiers=(_TRACE_TIER,)) for name in tenants),
        version=1,
    )
    workers = tuple(Workers(name, engine=_trace_engine(rows, name)) for name in endpoints)
    title = f"{path.name}: {len(rows):,} requests of {len(tenants)} tenants."
    return Scene(title, policy, workers, arrivals_of(rows, _TRACE_TIER))


def _trace_endpoint(name: str) -> Endpoint:
    return Endpoint(
        name=name,
        pool=name,
        cost=CostModel.TOKEN,
        quantum=512,
        batch_requests=1,
        batch_tokens=COST_MAX,
        batch_wait_ms=10,
        tokens_max=COST_MAX,
        wait_ms_max=WAIT_MS_MAX,
    )


def _trace_engine(rows: Sequence[Row], endpoint: str) -> SimulatedSettings:
    """Time per token such that a little more comes than the lanes together serve."""
    tokens = sum(row.input_tokens + row.output_tokens for row in rows if row.endpoint == endpoint)
    duration_us = max(1, rows[-1].arrival_ms) * 1000
    per_token_us = duration_us * _TRACE_LANES * _TRACE_LOAD_PERCENT // (100 * max(1, tokens))
    return SimulatedSettings(fixed_ms=0, per_token_us=max(1, per_token_us))


# --- the controls: the same traffic and machine, without what Fairlane adds


def tiers_only(scene: Scene) -> Scene:
    """Tiers, and in each one queue for all."""
    pools = tuple(
        msgspec.structs.replace(pool, fairness=Fairness.FIFO) for pool in scene.policy.pools
    )
    return scene._replace(policy=msgspec.structs.replace(scene.policy, pools=pools))


def one_queue(scene: Scene) -> Scene:
    """One queue for everybody, by priority, deadline and arrival."""
    name = "all"
    queued = tiers_only(scene)
    tenants = tuple(
        msgspec.structs.replace(tenant, tiers=(name,)) for tenant in scene.policy.tenants
    )
    policy = msgspec.structs.replace(queued.policy, tiers=(Tier(name=name),), tenants=tenants)
    arrivals = [arrival._replace(tier=name) for arrival in scene.arrivals]
    return scene._replace(policy=policy, arrivals=arrivals)
