"""Recorded traffic under four policies: who waits how long, and who gets what.

A request takes input / 8,000 + output / 60 seconds of a slot; slots = work / duration / load.
Callers say what traces' callers do: input and the next power of two above the output. Shares
are of the tokens of what was picked while requests arrived; entitled is the max-min fair part
of the same amount, by what each asked for in all. Below a share: tenants that asked for less
than an equal part of the tokens; their p99 wait is compared with their own under fifo.
"""

from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.fairness_load import policy
from benchmarks.fairness_measure import entitled, percentile, shares, throughput
from benchmarks.fairness_workloads import Map
from schemas.policy import CostModel, Fairness
from simulation.direct import Ask, CoreChooser, Direct, Job, Server
from simulation.traces import Row, read_trace

LOADS = (0.95, 1.3)
QUANTUM = 512
POLICIES: dict[str, tuple[Fairness, CostModel, int]] = {
    "fifo": (Fairness.FIFO, CostModel.REQUEST, 1),
    "drr_request": (Fairness.DRR, CostModel.REQUEST, 1),
    "drr_token": (Fairness.DRR, CostModel.TOKEN, QUANTUM),
    "vtc": (Fairness.VTC, CostModel.TOKEN, 1),
}


class Point(NamedTuple):
    file: str
    load: float
    policy: str
    seconds: int  # of the trace; 0: all of it


def slot_us(input_tokens: int, output_tokens: int) -> int:
    return input_tokens * 1_000_000 // 8_000 + output_tokens * 1_000_000 // 60


@cache
def rows_of(file: str, seconds: int) -> list[Row]:
    rows = read_trace(Path(file))
    return [row for row in rows if not seconds or row.arrival_ms < seconds * 1000]


def slots_for(rows: list[Row], load: float) -> int:
    work_us = sum(slot_us(row.input_tokens, row.output_tokens) for row in rows)
    return max(1, round(work_us / (rows[-1].arrival_ms * 1000) / load))


def asks_of(rows: list[Row]) -> list[Ask]:
    return [
        Ask(
            row.arrival_ms * 1000,
            row.tenant,
            row.input_tokens,
            row.output_tokens,
            row.input_tokens + (1 << max(0, row.output_tokens - 1).bit_length()),
        )
        for row in rows
    ]


def measure(point: Point) -> dict[str, Any]:
    rows = rows_of(point.file, point.seconds)
    fairness, model, quantum = POLICIES[point.policy]
    names = sorted({row.tenant for row in rows})
    under = policy(dict.fromkeys(names, 1), fairness=fairness, model=model, quantum=quantum)
    slots = slots_for(rows, point.load)
    server = Server(
        lambda jobs: sum(slot_us(j.ask.input_tokens, j.ask.output_tokens) for j in jobs),
        lambda job: slot_us(job.ask.input_tokens, 1),
    )
    ran = Direct(CoreChooser(under, slots), server).run(asks_of(rows))
    until_us = rows[-1].arrival_ms * 1000
    inside = [job for job in ran.jobs if 0 <= job.picked_us <= until_us]
    got = shares(inside, lambda job: job.tokens)
    served = sum(job.tokens for job in inside)
    asked = demands(ran.jobs)
    due = entitled(asked, served)
    waits: dict[str, list[float]] = {}
    for job in ran.jobs:
        waits.setdefault(job.tenant, []).append(job.wait_us / 1e6)
    return {
        "slots": slots,
        "output_tokens_per_s": throughput(ran.moments, ran.jobs),
        "tenants": {
            name: {
                "wait_p50_s": round(percentile(waits[name], 50), 3),
                "wait_p99_s": round(percentile(waits[name], 99), 3),
                "share": round(got.get(name, 0.0), 5),
                "entitled": round(due[name] / served, 5),
                "is_below_share": asked[name] * len(names) < sum(asked.values()),
            }
            for name in names
        },
    }


def demands(jobs: list[Job]) -> dict[str, float]:
    asked: dict[str, float] = {}
    for job in jobs:
        asked[job.tenant] = asked.get(job.tenant, 0) + job.tokens
    return asked


def against_fifo(found: dict[str, Any], fifo: dict[str, Any]) -> dict[str, Any]:
    """A policy's figures with the small tenants' p99 waits as parts of theirs under fifo."""
    parts = []
    for name, figures in found["tenants"].items():
        before_s = fifo["tenants"][name]["wait_p99_s"]
        if figures["is_below_share"] and (before_s or figures["wait_p99_s"]):
            parts.append(figures["wait_p99_s"] / before_s if before_s else float("inf"))
    before = fifo["output_tokens_per_s"]
    made = found["output_tokens_per_s"] / before if before else 1.0
    return {
        "below_share_p99_vs_fifo": {
            "median": round(median(parts), 4) if parts else 0.0,
            "max": round(max(parts, default=0.0), 4),
        },
        "throughput_vs_fifo": round(made, 4),
        **found,
    }


def run(spread: Map, files: dict[str, int]) -> dict[str, Any]:
    """`files`: path -> seconds of it."""
    points = [
        Point(file, load, name, seconds)
        for file, seconds in files.items()
        for load in LOADS
        for name in POLICIES
    ]
    found = dict(zip(points, spread(measure, points), strict=True))
    report: dict[str, Any] = {}
    for point, figures in found.items():
        loads = report.setdefault(Path(point.file).name, {})
        fifo = found[point._replace(policy="fifo")]
        loads.setdefault(str(point.load), {})[point.policy] = against_fifo(figures, fifo)
    return report
