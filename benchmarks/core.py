"""How fast the pure core decides, and how much a waiting request takes: no log, no clock.

A decision is one request's whole way through `run_cycle` and the state behind it: admitted,
picked, settled. The ceiling of the same run is a bare heap of the same keys, as the tuples
(priority, deadline, arrival, place) that they mean: push all, pop all. The core packs them
into integers, which a bare heap sorts faster still: `packed_heap_per_s`.

`python -m benchmarks.core [--json] [--quick]`
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from scheduler.core.arrivals import Arrival
from scheduler.core.cycle import Inputs, RequestRange, run_cycle
from scheduler.core.decided import Cycle
from scheduler.core.pick.order import order
from scheduler.core.repolicy import set_policy
from scheduler.core.state import State
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier, encode_policy
from schemas.records import VERSION, End, Finished, Outcome, Request, Seen, Usage

NOW_MS = 1_735_689_600_000
CYCLE = 1_000
BATCH = 32
SLOTS = CYCLE // BATCH
COST_MAX = 4_096
RUNS = 3


def policy(tenants: int, cost: CostModel, quantum: int) -> Policy:
    """One pool, three tiers, batches of 32."""
    tiers = ("gold", "silver", "bronze")
    return Policy(
        tiers=tuple(Tier(name=name) for name in tiers),
        pools=(Pool(name="gpu", lanes=1, prefetch=0),),
        endpoints=(
            Endpoint(
                name="embed",
                pool="gpu",
                cost=cost,
                quantum=quantum,
                batch_requests=BATCH,
                batch_wait_ms=0,
                tokens_max=COST_MAX,
            ),
        ),
        tenants=tuple(Tenant(name=f"t{n}", tiers=tiers) for n in range(tenants)),
    )


def state_of(made: Policy) -> State:
    """A shard under this policy. Set directly: 100,000 tenants are more than a record holds."""
    state = State(0)
    state.now_ms = NOW_MS
    set_policy(state, encode_policy(made))
    return state


def arrivals(requests: int, tenants: int) -> list[Arrival]:
    """Requests in the order of the log: random tenants, priorities, sizes, some deadlines."""
    random = Random(1)
    return [
        Arrival(
            n,
            NOW_MS + n // 100,
            random.randrange(200, 2_000),
            Request(
                VERSION,
                f"{n:032x}",
                f"t{random.randrange(tenants)}",
                "embed",
                random.randrange(1_000),
                0 if n % 4 else NOW_MS + 3_000_000 + n,
                random.randrange(1, COST_MAX),
            ),
        )
        for n in range(requests)
    ]


def ranges(asked: list[Arrival], at: int) -> list[RequestRange]:
    """One cycle's worth of requests."""
    part = asked[at : at + CYCLE]
    return [RequestRange("requests.gold", 0, "gold", at, at + len(part), part)]


def finished(cycle: Cycle) -> list[tuple[str, int, Finished]]:
    """All of a cycle's batches succeeded; each request cost a tenth more than estimated."""
    said = []
    for batch in cycle.batches:
        outcomes = tuple(
            Outcome(live.key, End.SUCCEEDED, Usage(input_tokens=live.tokens + live.tokens // 10))
            for live in batch.requests
        )
        said.append((batch.pool, batch.lane, Finished(VERSION, batch.number, outcomes)))
    return said


def decide(state: State, asked: list[Arrival]) -> float:
    """Admit all, then pick and settle all; seconds that the core took."""
    spent = 0.0
    for at in range(0, len(asked), CYCLE):
        inputs = Inputs(requests=ranges(asked, at))
        start = perf_counter()
        run_cycle(state, inputs, NOW_MS)
        spent += perf_counter() - start
    cycle = run_cycle(state, Inputs(workers=[("gpu", 0, Seen(VERSION, SLOTS))]), NOW_MS)
    picked = 0
    while cycle.batches:
        picked += sum(len(batch.requests) for batch in cycle.batches)
        inputs = Inputs(workers=list(finished(cycle)))
        start = perf_counter()
        cycle = run_cycle(state, inputs, NOW_MS)
        spent += perf_counter() - start
    assert picked == len(asked), (picked, len(asked))
    return spent


def per_s(tenants: int, requests: int, cost: CostModel, quantum: int) -> float:
    """Decisions a second."""
    asked = arrivals(requests, tenants)
    state = state_of(policy(tenants, cost, quantum))
    gc.collect()
    gc.freeze()
    gc.disable()
    spent = decide(state, asked)
    gc.enable()
    gc.unfreeze()
    return requests / spent


def heap_per_s(requests: int, tenants: int, *, packed: bool) -> float:
    """Push and pop a second of a bare heap of the same keys."""
    keys: list[Any] = []
    for offset, at_ms, _, meta, _, _ in arrivals(requests, tenants):
        assert meta is not None
        place = (meta.priority, meta.deadline_ms or 1 << 48, at_ms, offset)
        keys.append(order(meta.priority, meta.deadline_ms, at_ms, offset) if packed else place)
    gc.collect()
    gc.disable()
    heap: list[Any] = []
    start = perf_counter()
    for key in keys:
        heappush(heap, key)
    while heap:
        heappop(heap)
    spent = perf_counter() - start
    gc.enable()
    return requests / spent


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def bytes_per_waiting(requests: int, tenants: int) -> float:
    """Resident bytes that a waiting request adds, without its body; alone in this process."""
    state = state_of(policy(tenants, CostModel.TOKEN, COST_MAX))

    def admit(start: int, stop: int) -> None:
        for at in range(start, stop, CYCLE):
            asked = [
                Arrival(n, NOW_MS + n // 100, 500 + n % 1_000, request(n, tenants))
                for n in range(at, at + CYCLE)
            ]
            read = RequestRange("requests.gold", 0, "gold", at, at + CYCLE, asked)
            run_cycle(state, Inputs(requests=[read]), NOW_MS)

    warm = 20_000
    admit(0, warm)
    gc.collect()
    before = resident()
    admit(warm, warm + requests)
    gc.collect()
    return (resident() - before) / requests


def request(number: int, tenants: int) -> Request:
    """One with a priority and a size of its own."""
    tenant = f"t{number % tenants}"
    priority, tokens = number * 7 % 1_000, 300 + number % COST_MAX
    return Request(VERSION, f"{number:032x}", tenant, "embed", priority, 0, tokens)


def measure(*, quick: bool) -> dict[str, object]:
    """All figures; medians of three runs."""
    requests = 40_000 if quick else 200_000
    waiting = 200_000 if quick else 1_000_000
    by_tenants: dict[str, float] = {}
    for tenants in (10, 1_000, 100_000):
        runs = [per_s(tenants, requests, CostModel.TOKEN, COST_MAX) for _ in range(RUNS)]
        by_tenants[str(tenants)] = median(runs)
        say(f"{tenants} tenants: {by_tenants[str(tenants)]:,.0f} decisions/s")
    heap = median(heap_per_s(requests, 1_000, packed=False) for _ in range(RUNS))
    packed = median(heap_per_s(requests, 1_000, packed=True) for _ in range(RUNS))
    small = median(per_s(1_000, requests, CostModel.TOKEN, 1) for _ in range(RUNS))
    say(f"bare heap: {heap:,.0f}/s; quantum 1: {small:,.0f} decisions/s")
    own = [sys.executable, "-m", "benchmarks.core", "--bytes", str(waiting)]
    taken = subprocess.run(own, capture_output=True, text=True, check=True)
    speeds = by_tenants.values()
    return {
        "decisions_per_s": round(by_tenants["1000"]),
        "by_tenants": {tenants: round(speed) for tenants, speed in by_tenants.items()},
        "flatness": round(min(speeds) / max(speeds), 3),
        "quantum_1_ratio": round(small / by_tenants["1000"], 3),
        "bytes_per_waiting_request": round(float(taken.stdout)),
        "heap_only_per_s": round(heap),
        "ratio": round(by_tenants["1000"] / heap, 3),
        "packed_heap_per_s": round(packed),
        "ratio_packed": round(by_tenants["1000"] / packed, 3),
        "requests": requests,
        "waiting": waiting,
        "quick": quick,
    }


def say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, within 50 s")
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bytes:
        print(bytes_per_waiting(given.bytes, 1_000))
        return
    found = measure(quick=given.quick)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>28}  {value}")


if __name__ == "__main__":
    main()
