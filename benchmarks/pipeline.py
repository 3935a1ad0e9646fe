"""How many requests a second go through a scheduler, beside what the broker itself can do.

One operation is one request: read from its topic, admitted, picked, packed with 31 others and
committed, exactly once, as a worker that reads committed records sees it. The requests are in
the log before the scheduler starts (1,000 tenants in three tiers, 512-byte bodies, costs in
tokens, in-flight and waiting caps for all); a stub finishes them (benchmarks.stream). Counted
in a steady window, from a quarter to nine tenths of the requests.

The ceiling of the same run is a bare loop over the same records: consume, pack 32 bodies into
one record, note the positions in another, commit; 1,000 and 4,000 requests a transaction. No
header is read there, nothing is decided.

What is said to be `on` was seen to happen, or the run fails: refused requests (validation),
batches handed back whose requests came again, settlements of true costs, refusals by a waiting
cap, counters on /metrics. `cpu_us_per_request` is of the scheduler's process, all its threads.
`by_waiting`: so many wait all the time while others go through.

    python -m benchmarks.pipeline [--json] [--quick] [--rounds 3] [--requests 600000]
"""

import argparse
import json
import sys
import time
from collections import Counter
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

import scheduler.core.cycle
from benchmarks.chaos import read_all
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.stream import (
    BATCH,
    CONSUMER,
    LANES,
    PRODUCER,
    SLOTS,
    TIERS,
    Count,
    policy,
)
from benchmarks.stream_bench import Bench, cpu_s
from schemas.codec import decode_header
from schemas.log import Partition, TopicSpec
from schemas.reasons import Reason
from schemas.records import Dead, Result

TENANTS, TENANTS_MANY = 1_000, 100_000
TRANSACTIONS = (1_000, 4_000)
#: The steady window, as parts of the requests.
WINDOW = (0.25, 0.9)
#: While others wait, the pool is small: a cycle that took them all would leave none waiting. Then
#: so many are appended ahead of those that go through.
SLOTS_FEW, AHEAD = 16, 4_000


class Sizes(NamedTuple):
    """How much is run."""

    requests: int  # of a round
    rounds: int
    cpu_requests: int  # of a figure of CPU alone
    waiting: tuple[int, ...]


class Window(NamedTuple):
    """A steady window of the scheduler."""

    requests_per_s: float
    cpu_us: float


def starts(bench: Bench) -> dict[Partition, int]:
    """Where the requests that come next will stand."""
    reader = bench.deployment.log.reader()
    partitions: list[Partition] = [(bench.topics.requests(tier), 0) for tier in TIERS]
    ends = {partition: reader.bounds(partition).end for partition in partitions}
    reader.close()
    return ends


def ceiling(bench: Bench, begin: dict[Partition, int], count: int, size: int) -> float:
    """Requests a second of the bare loop: consume, transaction, produce."""
    out, places = f"{bench.topics.prefix}.ceiling", f"{bench.topics.prefix}.ceiling.places"
    log = bench.deployment.log
    log.ensure_topics([TopicSpec(out, LANES, {}), TopicSpec(places, 1, {})])
    where = {"bootstrap.servers": bench.kafka}
    consumer = Consumer({**CONSUMER, **where})
    consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in begin.items()])
    producer = Producer({**PRODUCER, **where, "linger.ms": 0, "transactional.id": out})
    producer.init_transactions(30.0)
    done, lane, since = 0, 0, (0, 0.0)
    while done < count * WINDOW[1]:
        messages = consumer.consume(min(size, count - done), 10.0)
        if not messages:
            raise RuntimeError(f"the ceiling's loop stands still at {done} of {count}")
        producer.begin_transaction()
        for at in range(0, len(messages), BATCH):
            packed = b"".join([message.value() or b"" for message in messages[at : at + BATCH]])
            producer.produce(out, packed, partition=lane)
            lane = (lane + 1) % LANES
        last = {message.topic(): message.offset() for message in messages[-BATCH:]}
        producer.produce(places, json.dumps(last).encode(), partition=0)
        producer.commit_transaction(30.0)
        done += len(messages)
        if not since[0] and done >= count * WINDOW[0]:
            since = done, time.monotonic()
    per_s = (done - since[0]) / (time.monotonic() - since[1])
    consumer.close()
    reader = log.reader()
    log.delete_records({(out, n): reader.bounds((out, n)).end for n in range(LANES)})
    reader.close()
    return per_s


def through(bench: Bench, count: int) -> Window:
    """Start the scheduler on `count` requests that wait in the log, and watch it."""
    before, waited = bench.seen(), time.monotonic()
    bench.start_scheduler()
    bench.wait_for("scheduler", bench.seen, before + count * WINDOW[0])
    found = watch(bench, count * (WINDOW[1] - WINDOW[0]))
    bench.wait_for("scheduler", bench.through, bench.appended)
    print(
        f"{bench.topics.prefix}: {found.requests_per_s:,.0f}/s, {found.cpu_us:.2f} us, "
        f"{time.monotonic() - waited:.1f} s, stub {bench.counts[Count.CPU_MS] / 1000:.1f} s",
        file=sys.stderr,
    )
    return found


def watch(bench: Bench, count: float) -> Window:
    """Requests a second and CPU a request from now until `count` more were committed."""
    seen, cpu, now = bench.seen(), cpu_s(bench.pid), time.monotonic()
    bench.wait_for("scheduler", bench.seen, seen + count)
    done, took = bench.seen() - seen, time.monotonic() - now
    return Window(done / took, (cpu_s(bench.pid) - cpu) / done * 1e6)


def cpu_with_tenants(deployment: Deployment, tenants: int, count: int) -> float:
    with Bench(deployment, f"tenants-{tenants}", tenants) as bench:
        bench.append(count)
        bench.start_stub()
        cpu_us = through(bench, count).cpu_us
        bench.stop_scheduler()
    return round(cpu_us, 2)


def cpu_with_waiting(deployment: Deployment, waiting: int, count: int) -> float:
    """CPU a request while `waiting` others wait: as many come as go."""
    with Bench(deployment, f"waiting-{waiting}", TENANTS) as bench:
        bench.start_scheduler()
        bench.append(waiting)
        few = waiting * 0.98  # some are refused
        bench.wait_for("reading", lambda: bench.metric("scheduler_waiting"), few)
        bench.start_stub(SLOTS_FEW)
        bench.start_append(int(count * 1.5), ahead=AHEAD)
        bench.wait_for("scheduler", bench.seen, count * WINDOW[0])
        found = watch(bench, count * (WINDOW[1] - WINDOW[0]))
        left = bench.metric("scheduler_waiting")
        print(f"{waiting:,} waiting: {found}, at the end {left:,.0f}", file=sys.stderr)
        bench.stop_scheduler()
    return round(found.cpu_us, 2)


def seen_to_happen(bench: Bench, metrics: list[float]) -> tuple[list[str], dict[str, int]]:
    """What was switched on, judged by what came out; raises if one thing did not happen."""
    log, topics = bench.deployment.log, bench.topics
    results = [decode_header(r, Result) for r in read_all(log, topics.results)]
    reasons = Counter(result.reason for result in results)
    dead = Counter(decode_header(r, Dead).reason for r in read_all(log, topics.dead))
    counts = bench.counts
    settled_for_certain = counts[Count.BATCHES] > LANES * SLOTS  # slots came back, so it was heard
    signs = {
        "validation": min(reasons[Reason.TIER_NOT_ALLOWED], dead[Reason.UNREADABLE]),
        "hand-back": int(counts[Count.AGAIN]),
        "settlement": int(counts[Count.SETTLED]) if settled_for_certain else 0,
        "waiting caps": reasons[Reason.WAITING_LIMIT],
        "metrics": int(min(metrics)),
    }
    off = [name for name, sign in signs.items() if sign <= 0]
    if off:
        raise RuntimeError(f"did not happen: {', '.join(off)}; a figure without it says nothing")
    return list(signs), signs


def rounds(deployment: Deployment, sizes: Sizes) -> dict[str, Any]:
    """Ceilings and scheduler in turn, over the same requests."""
    ceilings: dict[int, list[float]] = {size: [] for size in TRANSACTIONS}
    windows: list[Window] = []
    metrics: list[float] = []
    with Bench(deployment, "pipeline", TENANTS) as bench:
        for number in range(sizes.rounds):
            begin = starts(bench)
            bench.append(sizes.requests)
            for size in TRANSACTIONS:
                ceilings[size].append(ceiling(bench, begin, sizes.requests, size))
                print(f"ceiling {size}: {ceilings[size][-1]:,.0f}/s", file=sys.stderr)
            if not number:
                bench.start_stub()
            windows.append(through(bench, sizes.requests))
            metrics.append(bench.metric("scheduler_picks_total"))
            bench.stop_scheduler()
    on, signs = seen_to_happen(bench, metrics)
    per_s = median(window.requests_per_s for window in windows)
    medians = {size: median(found) for size, found in ceilings.items()}
    best = max(medians.values())
    return {
        "requests_per_s": round(per_s),
        "requests_per_s_all": [round(window.requests_per_s) for window in windows],
        "ceiling_per_s": round(best),
        "ceilings_per_s": {str(size): round(found) for size, found in medians.items()},
        "ratio": round(per_s / best, 3),
        "cpu_us_per_request": round(median(window.cpu_us for window in windows), 2),
        "on": on,
        "seen": signs,
    }


def run(sizes: Sizes) -> dict[str, Any]:
    with Deployment(policy(1)) as deployment:
        by_tenants = {}
        for tenants in (TENANTS_MANY, 10):  # these warm the broker up as well
            by_tenants[tenants] = cpu_with_tenants(deployment, tenants, sizes.cpu_requests)
        figures = rounds(deployment, sizes)
        by_tenants[TENANTS] = figures["cpu_us_per_request"]
        by_waiting = {
            str(waiting): cpu_with_waiting(deployment, waiting, sizes.cpu_requests)
            for waiting in sizes.waiting
        }
    return {
        **figures,
        "by_tenants": {str(tenants): by_tenants[tenants] for tenants in sorted(by_tenants)},
        "by_waiting": by_waiting,
        "compiled": scheduler.core.cycle.__file__.endswith(".so"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer requests, 10,000 waiting only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=600_000, help="of a round")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.requests, arguments.rounds, 300_000, (10_000, 3_000_000))
    if arguments.quick:
        sizes = Sizes(80_000, 3, 50_000, (10_000,))
    figures = run(sizes)
    tell(figures, quick=arguments.quick, as_json=arguments.json)


if __name__ == "__main__":
    main()
