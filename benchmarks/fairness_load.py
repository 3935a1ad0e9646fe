"""Who asks for what in the fairness benchmark, and the policies that answer.

VTC's workloads: 256 tokens in and out unless noted, on 20 slots that make 22 output tokens a
second each: 1.72 requests a second. A request costs input + 2 x output. The core's cost model
`token` adds a report's input and output, so a worker reports outputs twice; `adaptive` learns
from reported milliseconds, so it reports the cost as those. The scheduler is told the same
constant of every request: nobody knows an output in advance.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier
from schemas.records import Usage
from simulation.direct import Ask, CoreChooser, Direct, Job, Server
from simulation.tenants import stream

SLOTS = 20
TOKENS_PER_S = 22
US_PER_TOKEN = 1_000_000 / TOKENS_PER_S
OUTPUT_WEIGHT = 2
INPUT, OUTPUT = 256, 256
#: What a caller allows the model to write.
ALLOWED = 1_024
#: 80 hours: nothing is ended because it waited long.
WAIT_MS_MAX = 288_000_000


class Estimator(StrEnum):
    """What is known of a request's cost when it is picked."""

    EXACT = "exact"  # told in advance
    FLAT = "flat"  # the same guess for all
    MAX = "max"  # what the caller allows
    LEARNED = "learned"  # the tenant's own average so far: the cost model `adaptive`


class Workload(NamedTuple):
    """Arrivals by tenant; the light one asks for least."""

    tenants: tuple[str, ...]
    light: str
    asks: list[Ask]
    until_us: int


def cost(job: Job) -> int:
    """Service of a request: input + 2 x output."""
    return job.ask.input_tokens + OUTPUT_WEIGHT * job.output_tokens


def usage(job: Job) -> Usage:
    """A report that makes the core's true cost `cost`, in either of its cost models."""
    outputs = OUTPUT_WEIGHT * job.output_tokens
    return Usage(job.ask.input_tokens, outputs, service_ms=cost(job))


def policy(
    weights: Mapping[str, int],
    *,
    fairness: Fairness = Fairness.DRR,
    model: CostModel = CostModel.TOKEN,
    quantum: int = 1,
    parents: Mapping[str, str] | None = None,
    lanes: int = 1,
    endpoint: Mapping[str, int] | None = None,
) -> Policy:
    """One tier, one pool, one endpoint `run`; nothing is sent ahead."""
    settings: dict[str, Any] = {
        "quantum": quantum,
        "batch_wait_ms": 0,
        "wait_ms_max": WAIT_MS_MAX,
        "service_ms_max": 100_000,
        **(endpoint or {}),
    }
    return Policy(
        version=1,
        tiers=(Tier(name="standard"),),
        pools=(Pool(name="run", lanes=lanes, prefetch=0, fairness=fairness),),
        endpoints=(Endpoint(name="run", pool="run", cost=model, **settings),),
        tenants=tuple(
            Tenant(
                name=name, tiers=("standard",), weight=weight, parent=(parents or {}).get(name, "")
            )
            for name, weight in weights.items()
        ),
    )


def slot_server() -> Server:
    """A slot's times: outputs one after the other."""
    return Server(
        lambda jobs: round(sum(job.ask.output_tokens for job in jobs) * US_PER_TOKEN),
        lambda _: round(US_PER_TOKEN),
    )


def fixed_server(us: int) -> Server:
    """Every load takes the same time."""
    return Server(lambda _: us, lambda _: us)


def core_run(
    asks: Sequence[Ask], under: Policy, slots: int = SLOTS, server: Server | None = None
) -> Direct:
    """The core's history of these requests, to the end."""
    return Direct(CoreChooser(under, slots, usage), server or slot_server()).run(asks)


def estimate(estimator: Estimator, input_tokens: int, output_tokens: int, allowed: int) -> int:
    """What the scheduler is told of a request's cost."""
    if estimator is Estimator.EXACT:
        return input_tokens + OUTPUT_WEIGHT * output_tokens
    if estimator is Estimator.FLAT:
        return input_tokens + OUTPUT_WEIGHT * OUTPUT
    return input_tokens + OUTPUT_WEIGHT * allowed


def model_of(estimator: Estimator) -> CostModel:
    """The cost model that an estimator is for."""
    return CostModel.ADAPTIVE if estimator is Estimator.LEARNED else CostModel.TOKEN


class _Flow(NamedTuple):
    """One tenant's Poisson traffic; `on_s` of `every_s` seconds it asks, from the first."""

    tenant: str
    per_s: float
    tokens: int = 256
    on_s: int = 1
    every_s: int = 1


FLOWS: dict[str, tuple[_Flow, ...]] = {
    "overload2": (_Flow("a", 1.5), _Flow("b", 3.0)),
    "overload8": tuple(_Flow(f"t{n}", 0.4 + 0.2 * n / 7) for n in range(8)),
    "proportional": (_Flow("a", 0.25), _Flow("b", 0.5), _Flow("c", 1.5)),
    "onoff": (_Flow("a", 0.5, on_s=60, every_s=120), _Flow("b", 2.0)),
    "onoff_overload": (_Flow("a", 2.0, on_s=60, every_s=120), _Flow("b", 3.0)),
    "short_long": (_Flow("short", 8.0, tokens=64), _Flow("long", 1.5)),
}


def workload(name: str, seed: int, seconds: int, estimator: Estimator) -> Workload:
    """One of VTC's workloads under a seed: Poisson; seed 0 asks evenly, as the source does."""
    flows = FLOWS[name]
    asks = []
    for flow in flows:
        told = estimate(estimator, flow.tokens, flow.tokens, ALLOWED)
        times = _times(stream(seed, flow.tenant), flow, seconds, is_even=seed == 0)
        size = flow.tokens
        asks += [Ask(int(at_s * 1e6), flow.tenant, size, size, told) for at_s in times]
    light = min(flows, key=lambda flow: flow.per_s * flow.tokens * flow.on_s / flow.every_s)
    asks.sort(key=lambda ask: ask.at_us)
    return Workload(tuple(f.tenant for f in flows), light.tenant, asks, seconds * 1_000_000)


def _times(random: Random, flow: _Flow, seconds: int, *, is_even: bool) -> list[float]:
    times: list[float] = []
    at_s = 0.0
    while True:
        at_s += 1 / flow.per_s if is_even else random.expovariate(flow.per_s)
        if at_s >= seconds:
            return times
        if at_s % flow.every_s < flow.on_s:
            times.append(at_s)
