"""How fair the core is, in virtual time: its real decisions, simulated servers, fixed seeds.

One operation is one history of `simulation.direct`: requests arrive, the core picks, servers
take their time. Every figure is the worst of its seeds; peers and controls (VTC as published,
one queue, no settlement, keys without a parent) run on the same requests. What each key
measures stands at its function in benchmarks.fairness_workloads, _claims and _traces.

    python -m benchmarks.fairness [--json] [--quick] [--traces DIR] [--pictures DIR]

Without --json it prints a table and saves pictures. --quick takes fewer seeds and the first
minutes of the traces.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import fairness_claims as claims
from benchmarks import fairness_traces, fairness_workloads
from benchmarks.fairness_load import Estimator
from benchmarks.fairness_picture import save_service, save_waits
from benchmarks.fairness_table import text
from benchmarks.fairness_workloads import Map
from schemas.policy import Fairness

TRACES = Path(__file__).parent / "traces"
PICTURES = Path("docs")


class Plan(NamedTuple):
    seeds: int
    workload_s: int
    backlog: int  # the larger one
    backlog_seeds: int
    far: int  # dispatches at weights 1000:1
    split_seeds: int
    picks: int
    long_picks: int
    long_seeds: int
    deadlines_s: int
    traces: dict[str, int]  # seconds of each, 0: all


FULL = Plan(
    seeds=5,
    workload_s=600,
    backlog=1_000_000,
    backlog_seeds=5,
    far=100_000,
    split_seeds=20,
    picks=5_000,
    long_picks=20_000,
    long_seeds=5,
    deadlines_s=120,
    traces={"servegen_r1_t6000.csv": 0, "vtc_arena.csv": 0},
)
QUICK = Plan(
    seeds=2,
    workload_s=240,
    backlog=50_000,
    backlog_seeds=1,
    far=10_000,
    split_seeds=2,
    picks=2_000,
    long_picks=5_000,
    long_seeds=1,
    deadlines_s=40,
    traces={"servegen_r1_t6000.csv": 300, "vtc_arena.csv": 0},
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def call(what: Call) -> Any:
    function, arguments, options = what
    return function(*arguments, **options)


def each(spread: Map, seeds: Iterable[int], function: Any, *args: Any, **options: Any) -> list[Any]:
    return list(spread(call, [(function, (seed, *args), options) for seed in seeds]))


def light_wait(spread: Map, plan: Plan) -> dict[str, Any]:
    found = {
        size: each(spread, range(seeds), claims.light_wait, size)
        for size, seeds in ((1_000, plan.seeds), (plan.backlog, plan.backlog_seeds))
    }
    return {
        "backlog_1000_p99_ms": max(f["p99_ms"] for f in found[1_000]),
        "backlog_1000000_p99_ms": max(f["p99_ms"] for f in found[plan.backlog]),
        "bound_ms": found[1_000][0]["bound_ms"],
        "larger_backlog": plan.backlog,
        "requests_of_a_neighbour_first": max(
            each(spread, range(plan.seeds), claims.requests_first, 10_000)
        ),
    }


def long_tenant(spread: Map, plan: Plan) -> dict[str, Any]:
    by: dict[str, float] = {}
    seeds = range(plan.long_seeds)
    for fairness in (Fairness.DRR, Fairness.VTC):
        for estimator in (Estimator.FLAT, Estimator.MAX, Estimator.LEARNED):
            arguments = (plan.long_picks, estimator, fairness)
            found = each(spread, seeds, claims.long_share, *arguments)
            by[f"{fairness}_{estimator}"] = max(found, key=lambda share: abs(share - 0.5))
    arguments = (plan.long_picks, Estimator.FLAT, Fairness.DRR)
    unsettled = each(spread, seeds, claims.long_share, *arguments, settles=False)
    return {
        "long_tenant_share": max(by.values(), key=lambda share: abs(share - 0.5)),
        "long_tenant_share_by": by,
        "long_tenant_share_unsettled": min(unsettled),
    }


def gains(spread: Map, plan: Plan) -> dict[str, Any]:
    seeds, picks = range(plan.split_seeds), plan.picks

    def worst(function: Any, **options: Any) -> float:
        found: list[float] = each(spread, seeds, function, picks, **options)
        return max(found)

    return {
        "split_gain": worst(claims.split_gain),
        "split_gain_without_parent": worst(claims.split_gain, with_parent=False),
        "rejoin_gain": worst(claims.rejoin_gain),
        "rejoin_gain_with_pauses": worst(claims.rejoin_gain, pause_us=200_000),
        "rejoin_gain_understated": worst(claims.rejoin_gain, told=10),
    }


def deadlines(spread: Map, plan: Plan) -> dict[str, Any]:
    exact = each(spread, range(plan.seeds), claims.deadlines, plan.deadlines_s)
    learned = each(spread, range(plan.seeds), claims.deadlines, plan.deadlines_s, learned=True)
    return {
        "late_dispatched": max(f["late_dispatched"] for f in exact + learned),
        "goodput": min(f["goodput"] for f in exact),
        "goodput_learned": min(f["goodput"] for f in learned),
    }


def batch_fill(spread: Map, plan: Plan) -> dict[str, Any]:
    by: dict[str, float] = {}
    for load in (0.5, 0.95, 1.3):
        ours, fifo = (
            each(spread, range(plan.seeds), claims.batch_fill, load, fairness)
            for fairness in (Fairness.DRR, Fairness.FIFO)
        )
        by[str(load)] = min(one / other for one, other in zip(ours, fifo, strict=True))
    return {"batch_fill_vs_fifo": min(by.values()), "batch_fill_vs_fifo_by_load": by}


def order(spread: Map, plan: Plan) -> dict[str, Any]:
    seeds, picks = range(plan.seeds), plan.picks
    return {
        "streaming_twice_running": max(each(spread, seeds, claims.stream_twice, picks)),
        "streaming_twice_running_fifo": max(
            each(spread, seeds, claims.stream_twice, picks, fairness=Fairness.FIFO)
        ),
        "priorities_change_others": max(each(spread, seeds, claims.priorities_matter, picks)),
    }


def weights(spread: Map, plan: Plan) -> dict[str, float]:
    dispatches = {"4:1": 1_000, "5:3:2": 1_000, "1000:1": plan.far}
    return {
        parts: max(each(spread, range(plan.seeds), claims.weights_error, parts, picks))
        for parts, picks in dispatches.items()
    }


def report(spread: Map, plan: Plan, traces: Path) -> dict[str, Any]:
    files = {str(traces / name): seconds for name, seconds in plan.traces.items()}
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "traces": lambda: {"traces": fairness_traces.run(spread, files)},
        "workloads": lambda: fairness_workloads.run(spread, plan.seeds, plan.workload_s),
        "light_wait": lambda: {"light_wait": light_wait(spread, plan)},
        "weights": lambda: {"weights": weights(spread, plan)},
        "gains": lambda: gains(spread, plan),
        "long": lambda: long_tenant(spread, plan),
        "deadlines": lambda: {"deadlines": deadlines(spread, plan)},
        "batches": lambda: batch_fill(spread, plan),
        "order": lambda: order(spread, plan),
    }
    found: dict[str, Any] = {"seeds": plan.seeds}
    for name, section in sections.items():
        began = time.monotonic()
        found |= section()
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under 50 s")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the recorded traces")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="where pictures are saved")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    began = time.monotonic()
    with ProcessPoolExecutor() as pool:

        def spread(function: Callable[[Any], Any], points: Sequence[Any]) -> Iterable[Any]:
            return pool.map(function, points)

        found = report(spread, plan, given.traces)
    found["duration_s"] = round(time.monotonic() - began, 1)
    if given.quick:
        found["quick"] = True
    if given.json:
        print(json.dumps(found))
        return
    print(text(found))
    given.pictures.mkdir(parents=True, exist_ok=True)
    for path in (save_service(given.pictures), save_waits(given.pictures, found["traces"])):
        print(f"saved {path}")


if __name__ == "__main__":
    main()
