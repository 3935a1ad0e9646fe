"""How long a request takes from its append to its committed batch at a worker.

One operation is one request at its time, to a millisecond (an open loop, a process of its own):
from the call that produces it, whose clock travels in a header, to a worker's reader of committed
records in another process (benchmarks.stream). 1,000 tenants in three tiers, 512-byte bodies,
batches of up to 32 that wait 5 ms for company. Percentiles are medians of three windows.

The broker's second compiler takes half a core for the first minutes at 5,000 a second. Nothing is
measured before it has come to rest; `warmed_s` is how long that took.

`floor_p50_ms` is a bare loop in the scheduler's place, in the same run at 1,000 requests a
second: whatever a poll brings is packed and committed in one transaction; nothing is decided.
`idle_first_p50_ms` is of single requests after 3.3 s of silence, and `idle_cpu_share` what an
idle scheduler takes of a core. `late_ms` is how late the appending process was at the worst,
`came_through` the part of what was due in the windows that was seen in them.

    python -m benchmarks.latency [--json] [--quick]
"""

import argparse
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

import scheduler.core.cycle
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.stream import (
    BATCH,
    CONSUMER,
    LANES,
    PRODUCER,
    SENT,
    SLOTS,
    STAMP,
    TIERS,
    Count,
    policy,
)
from benchmarks.stream_bench import Bench, cpu_s, spawned
from schemas.log import TopicSpec
from schemas.topics import Topics

TENANTS = 1_000
#: Downwards: the busiest warms the broker up for the others.
RATES = (5_000, 1_000, 100)
FLOOR_RATE = 1_000
WINDOWS = 3
#: A single request in so many seconds.
SILENCE_S = 3.3


#: The broker is warm when its compiler takes less than this part of a core for so long.
RESTS, REST_S = 0.05, 10.0


class Times(NamedTuple):
    """How long each part runs, seconds."""

    broker: float  # before anything is measured, at the most
    warm: float  # at each rate
    window: float
    firsts: int
    idle: float


def bare(kafka: str, prefix: str, counts: Any) -> None:
    """The floor: a poll, a transaction; a process of its own."""
    topics, out = Topics(prefix), f"{prefix}.floor"
    consumer = Consumer({**CONSUMER, "bootstrap.servers": kafka})
    consumer.assign([TopicPartition(topics.requests(tier), 0, 0) for tier in TIERS])
    producer = Producer(
        {**PRODUCER, "bootstrap.servers": kafka, "linger.ms": 0, "transactional.id": out}
    )
    producer.init_transactions(30.0)
    lane = 0
    while not counts[Count.STOP]:
        messages = consumer.consume(1, 0.1)
        if not messages:
            continue
        messages += consumer.consume(4_000, 0)
        producer.begin_transaction()
        for at in range(0, len(messages), BATCH):
            some = messages[at : at + BATCH]
            headers: list[Any] = [message.headers() for message in some]
            sent = b"".join([dict(pairs)[SENT] for pairs in headers])
            value = b"".join([message.value() or b"" for message in some])
            producer.produce(out, value, partition=lane, headers=[(SENT, sent)])
            lane = (lane + 1) % LANES
        producer.commit_transaction(30.0)
    consumer.close()


def bare_reader(kafka: str, prefix: str, counts: Any, pipe: Connection) -> None:
    """Reads what the floor committed; a process of its own, as the stub is."""
    consumer = Consumer({**CONSUMER, "bootstrap.servers": kafka})
    consumer.assign([TopicPartition(f"{prefix}.floor", lane, 0) for lane in range(LANES)])
    waits_ns: list[int] = []
    while not counts[Count.STOP]:
        messages = consumer.consume(1, 0.05)
        if messages:
            messages += consumer.consume(999, 0)
        for message in messages:
            now_ns = time.monotonic_ns()
            headers: Any = message.headers()
            waits_ns += [now_ns - sent for (sent,) in STAMP.iter_unpack(dict(headers)[SENT])]
        while pipe.poll():
            pipe.recv()
            pipe.send(waits_ns)
            waits_ns = []
    consumer.close()


def percentiles(windows: list[list[float]]) -> dict[str, float]:
    """Medians over the windows of their percentiles, milliseconds."""

    def of(share: float) -> float:
        found = [sorted(waits)[int((len(waits) - 1) * share)] for waits in windows if waits]
        return round(median(found), 2)

    return {"p50_ms": of(0.5), "p95_ms": of(0.95), "p99_ms": of(0.99)}


def at_rate(bench: Bench, rate: int, times: Times) -> list[list[float]]:
    """Waits of each window at so many requests a second, after warming."""
    lasts_s = times.warm + WINDOWS * times.window
    appending = bench.start_append(int(lasts_s * rate) + rate, pace=float(rate))
    while bench.counts[Count.STARTED] < bench.appended:
        time.sleep(0.01)
    time.sleep(times.warm)
    bench.waits_ms()
    bench.counts[Count.LATE_US] = 0
    windows = []
    for _ in range(WINDOWS):
        time.sleep(times.window)
        windows.append(bench.waits_ms())
    appending.join()
    if not any(windows):
        raise bench.still(f"at {rate}/s nothing came through in {WINDOWS * times.window} s")
    return windows


def compiler_s(pid: int) -> float:
    """CPU time of a Java process's second compiler so far, seconds."""
    ticks = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("C2 Compiler"):
            fields = rest.split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def warm_up(bench: Bench, times: Times) -> float:
    """Append until the broker is warm, or for `times.broker`; returns how long, seconds."""
    pid, begun = bench.deployment.stack.status().kafka.pid, time.monotonic()
    assert pid is not None
    while time.monotonic() - begun < times.broker:
        before, since = compiler_s(pid), time.monotonic()
        bench.start_append(int(RATES[0] * min(REST_S, times.broker)), pace=RATES[0]).join()
        if compiler_s(pid) - before < RESTS * (time.monotonic() - since):
            break
    bench.wait_for("scheduler", bench.through, bench.appended)
    return time.monotonic() - begun


def floor(deployment: Deployment, times: Times) -> float:
    with Bench(deployment, "floor", TENANTS) as bench:
        name = bench.topics.prefix
        deployment.log.ensure_topics([TopicSpec(f"{name}.floor", LANES, {})])
        ours, theirs = spawned.Pipe()
        bench.pipe = ours
        bench.spawn(bare, bench.kafka, name, bench.counts)
        bench.spawn(bare_reader, bench.kafka, name, bench.counts, theirs)
        return percentiles(at_rate(bench, FLOOR_RATE, times))["p50_ms"]


def run(times: Times) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Deployment(policy(1)) as deployment:
        with Bench(deployment, "latency", TENANTS) as bench:
            bench.start_scheduler()
            bench.start_stub(SLOTS, hand_back_every=0)
            bench.append(BATCH)
            bench.wait_for("scheduler", bench.seen, 1)
            figures["warmed_s"] = round(warm_up(bench, times), 1)
            for rate in RATES:
                cpu, since = cpu_s(bench.pid), time.monotonic()
                windows = at_rate(bench, rate, times)
                figures[str(rate)] = found = percentiles(windows)
                share = (cpu_s(bench.pid) - cpu) / (time.monotonic() - since)
                due = rate * times.window * WINDOWS
                found["came_through"] = round(sum(map(len, windows)) / due, 3)
                found["late_ms"] = bench.counts[Count.LATE_US] / 1000
                found["cpu_share"] = round(share, 3)
                print(f"{rate}/s: {found}", file=sys.stderr)
                bench.wait_for("scheduler", bench.through, bench.appended)
            time.sleep(2.0)
            cpu = cpu_s(bench.pid)
            time.sleep(times.idle)
            figures["idle_cpu_share"] = round((cpu_s(bench.pid) - cpu) / times.idle, 4)
            bench.waits_ms()
            bench.start_append(times.firsts + 1, pace=1 / SILENCE_S).join()
            time.sleep(1.0)
            firsts = bench.waits_ms()[1:]  # the first one waits for the producer's connection
            if len(firsts) < times.firsts - 1:
                raise RuntimeError(f"{len(firsts)} of {times.firsts} first requests came through")
            figures["idle_first_p50_ms"] = round(median(firsts), 2)
            bench.stop_scheduler()
        figures["floor_p50_ms"] = floor(deployment, times)
    figures["compiled"] = scheduler.core.cycle.__file__.endswith(".so")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="shorter windows, three firsts")
    arguments = parser.parse_args()
    times = Times(300.0, 10.0, 20.0, 12, 20.0)
    if arguments.quick:
        times = Times(3.0, 1.0, 2.0, 3, 3.0)
    figures = run(times)
    tell(figures, quick=arguments.quick, as_json=arguments.json)


if __name__ == "__main__":
    main()
