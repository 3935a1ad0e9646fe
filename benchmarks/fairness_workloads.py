"""VTC's workloads under the core, under VTC as published, and under one queue.

All three see the same requests and the same servers (benchmarks.fairness_load). Reported is
the worst of the seeds; `gap_backlogged_tokens` counts from the moment at which 20 requests of
each tenant have been settled, `gap_from_start_tokens` from the beginning, when nothing is known
of an endpoint and all is charged three times its cost. The key `exact` has the same for outputs
that are told in advance, `max` for charges of what callers allow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.fairness_load import (
    FLOWS,
    SLOTS,
    US_PER_TOKEN,
    Estimator,
    Workload,
    core_run,
    cost,
    model_of,
    policy,
    slot_server,
    workload,
)
from benchmarks.fairness_measure import (
    Gap,
    backlogged_gaps,
    bound,
    percentile,
    since_start,
    throughput,
)
from benchmarks.peers import PublishedVtc
from schemas.policy import CostModel, Fairness
from simulation.direct import Direct

#: At most the cost of a request, 768 (short ones: 192).
QUANTUM = 256
#: Requests of each tenant that have ended before a learned estimate is held to the bound.
SETTLED = 20


class Point(NamedTuple):
    name: str
    seed: int
    seconds: int


Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def measure(point: Point) -> dict[str, Any]:
    found: dict[str, Any] = {}
    learned = workload(*point, Estimator.LEARNED)
    weights = dict.fromkeys(learned.tenants, 1)
    vtc = Direct(PublishedVtc(SLOTS, US_PER_TOKEN), slot_server()).run(learned.asks)
    fifo = core_run(learned.asks, policy(weights, fairness=Fairness.FIFO, model=CostModel.TOKEN))
    for estimator in (Estimator.LEARNED, Estimator.EXACT, Estimator.MAX):
        load = workload(*point, estimator)
        under = policy(weights, model=model_of(estimator), quantum=QUANTUM)
        ours = core_run(load.asks, under)
        figures = gaps(ours, weights) | {"light_first_token_p99_s": light_s(ours, load.light)}
        if estimator is Estimator.LEARNED:
            figures |= beside(ours, load, vtc, fifo)
            found |= figures
        else:
            found[estimator] = figures
    return found


def gaps(ours: Direct, weights: dict[str, int]) -> dict[str, Any]:
    settled = backlogged_gaps(ours.moments, weights, cost, SETTLED)
    ever = backlogged_gaps(ours.moments, weights, cost)

    def limit(gap: Gap) -> float:
        return bound(gap, ours.moments, weights, cost, QUANTUM)

    return {
        "gap_backlogged_tokens": max(settled).tokens,
        "bound_tokens": limit(max(settled)),
        "gap_from_start_tokens": max(ever).tokens,
        "bound_broken": sum(gap.tokens > limit(gap) for gap in settled + ever),
    }


def light_s(of: Direct, light: str) -> float:
    firsts = [job.first_us - job.arrived_us for job in of.jobs if job.tenant == light]
    return percentile(firsts, 99) / 1e6


def beside(ours: Direct, load: Workload, vtc: Direct, fifo: Direct) -> dict[str, Any]:
    weights = dict.fromkeys(load.tenants, 1)

    def gap(of: Direct) -> float:
        return max(backlogged_gaps(of.moments, weights, cost, SETTLED)).tokens

    def made(of: Direct) -> float:
        return throughput(of.moments, of.jobs)

    def started(of: Direct) -> float:
        return since_start(of.jobs, weights, cost, load.until_us)

    return {
        "gap_tokens": started(ours),
        "vtc_gap_backlogged_tokens": gap(vtc),
        "vtc_gap_tokens": started(vtc),
        "fifo_gap_backlogged_tokens": gap(fifo),
        "fifo_gap_tokens": started(fifo),
        "throughput_vs_fifo": made(ours) / made(fifo),
        "vtc_light_first_token_p99_s": light_s(vtc, load.light),
        "fifo_light_first_token_p99_s": light_s(fifo, load.light),
    }


def worst(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all seeds; a peer's own figures are its best, so that it is never made to look bad."""
    summed: dict[str, Any] = {}
    for key, value in found[0].items():
        values = [figures[key] for figures in found]
        if isinstance(value, dict):
            summed[key] = worst(values)
            continue
        is_peers_gap = "gap" in key and key.startswith(("vtc", "fifo"))
        is_best = is_peers_gap or key == "throughput_vs_fifo"
        summed[key] = round(min(values) if is_best else max(values), 4)
    if "vtc_gap_backlogged_tokens" in found[0]:
        ours, vtcs, fifos = (
            [figures[f"{who}gap_backlogged_tokens"] for figures in found]
            for who in ("", "vtc_", "fifo_")
        )
        pairs = list(zip(ours, vtcs, fifos, strict=True))
        summed["seeds_above_vtc"] = sum(mine > vtc for mine, vtc, _ in pairs)
        summed["fifo_times_worse"] = round(min(fifo / max(1, mine) for mine, _, fifo in pairs), 1)
    return summed


def run(spread: Map, seeds: int, seconds: int) -> dict[str, Any]:
    points = [Point(name, seed, seconds) for name in FLOWS for seed in range(seeds)]
    found = list(spread(measure, points))
    return {
        name: worst([f for p, f in zip(points, found, strict=True) if p.name == name])
        for name in FLOWS
    }
