"""What a larger burst does to the tenant beside it, in virtual time.

One operation: the demo's story under one seed, from its beginning until bolt's five requests
are served; the figure is the longest of their five waits. bolt asks while acme's burst waits,
at every size. A policy passes as fair when the median over the seeds stays within one batch's
time whatever the burst; one shared queue is the control, which must grow with it.

    python -m benchmarks.demo [--json] [--quick]

Beside this the object holds what `fairlane demo --json` prints for seed 0: the key `tenants`.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from statistics import median
from typing import Any, NamedTuple

from fairlane.demo import controls
from fairlane.demo_plain import JsonShow
from fairlane.demo_play import play
from fairlane.demo_report import Report, document
from fairlane.demo_scene import LIGHT, LIGHT_REQUESTS, LIGHT_UNTIL_MS, Scene, one_queue, story

#: The others' traffic goes on so long after bolt's last request; under Fairlane bolt is served
#: within a second, and in one queue what comes after it plays no part.
OTHERS_MS = LIGHT_UNTIL_MS + 5_000
POLICIES: dict[str, Callable[[Scene], Scene]] = {
    "fairlane": lambda scene: scene,
    "one_queue": one_queue,
}


class Plan(NamedTuple):
    seeds: int
    small: int
    large: int
    shown: int  # the burst of the story whose tenants are reported


FULL = Plan(seeds=20, small=1_000, large=100_000, shown=10_000)
QUICK = Plan(seeds=3, small=1_000, large=10_000, shown=1_000)


class Point(NamedTuple):
    policy: str
    burst: int
    seed: int


class Found(NamedTuple):
    point: Point
    slowest_ms: int
    batch_ms: int


def measure(point: Point) -> Found:
    scene = POLICIES[point.policy](story(point.seed, point.burst, OTHERS_MS))
    tally = play(scene, until=lambda t: t.tenants[LIGHT].ended == LIGHT_REQUESTS)
    return Found(point, tally.waits(LIGHT).max, tally.batch_ms())


def _tenants(burst: int) -> dict[str, Any]:
    scene = story(0, burst)
    began = time.monotonic()
    fairlane = play(scene)
    queued, tiered = controls(scene, JsonShow(StringIO()))
    seconds = time.monotonic() - began
    return document(Report(scene, fairlane, queued, tiered, seconds, {"seed": 0, "burst": burst}))


def summary(plan: Plan, found: Iterable[Found]) -> dict[str, Any]:
    slowest: dict[str, dict[str, list[int]]] = {}
    batches: list[float] = []
    for point, slowest_ms, batch_ms in found:
        sizes = slowest.setdefault(point.policy, {})
        sizes.setdefault(str(point.burst), []).append(slowest_ms)
        batches.append(batch_ms)
    medians = {
        policy: {burst: median(values) for burst, values in sizes.items()}
        for policy, sizes in slowest.items()
    }
    small, large = str(plan.small), str(plan.large)
    one_batch_ms = median(batches)
    return {
        "seeds": plan.seeds,
        "batch_ms": one_batch_ms,
        "light_slowest_ms": medians,
        "light_slowest_ms_worst": {
            policy: {burst: max(values) for burst, values in sizes.items()}
            for policy, sizes in slowest.items()
        },
        "growth": {p: round(sizes[large] / sizes[small], 3) for p, sizes in medians.items()},
        "growth_batches": {
            p: round((sizes[large] - sizes[small]) / one_batch_ms, 3)
            for p, sizes in medians.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under 50 s")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    points = [
        Point(policy, burst, seed)
        for burst in (plan.large, plan.small)  # the long ones first
        for policy in ("one_queue", "fairlane")
        for seed in range(plan.seeds)
    ]
    began = time.monotonic()
    with ProcessPoolExecutor() as pool:
        shown = pool.submit(_tenants, plan.shown)
        found = list(pool.map(measure, points))
        report = {**shown.result(), **summary(plan, found)}
    report["duration_s"] = round(time.monotonic() - began, 1)
    if given.quick:
        report["quick"] = True
    print(json.dumps(report) if given.json else text(report))


def text(report: dict[str, Any]) -> str:
    lines = [f"{LIGHT}'s slowest of five, median of {report['seeds']} seeds, ms"]
    for policy, sizes in report["light_slowest_ms"].items():
        values = "   ".join(f"burst {int(b):>7,}: {v:>9,.0f}" for b, v in sorted(sizes.items()))
        growth, batches = report["growth"][policy], report["growth_batches"][policy]
        lines.append(f"{policy:10} {values}   grows x{growth:g}, by {batches:g} batches")
    lines.append(
        f"one batch takes {report['batch_ms']:.0f} ms; measured in {report['duration_s']} s"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
