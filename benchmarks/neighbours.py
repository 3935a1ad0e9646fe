"""A light tenant beside a neighbour's million waiting requests; ten million that wait.

Both parts run the product's own `fairlane scheduler` on a real Kafka; workers are a stub
(benchmarks.stream).

`light_*`: a light tenant asks 20 times a second, from the call that produces a request to its
committed batch at a worker. Its neighbour keeps the pool busy the whole time, in two deployments
on the same broker: in one ("alone") 64 of the neighbour's requests wait, in the other ("beside")
a million do, all of them before the light tenant's on the same partition of the request topic.
Pool, rates and what is picked are the same, only the length of the queue differs. The two take
turns, window by window, and percentiles are over all windows of a side. `busy_*` is what part of
the pool's slots had a batch.

`appended` and the rest: the pool has no capacity, and requests come until `--waiting` of them
are in the log, more than a scheduler may hold (`FAIRLANE_WAITING_MAX`). `waiting_seen` is what
it took in, `reading_paused` whether it stopped reading then, `resident_mb` its memory and
`peak_mb` the most it ever had, `limit_mb` what its settings let it have: 150 MB for the process,
`FAIRLANE_BODIES_MB`, and 0.7 kB for each that may wait. Then there is capacity again:
`resumed_s` until a light tenant's request is in a committed batch that stands behind all of
them, `first_s` until any is.

    python -m benchmarks.neighbours [--json] [--quick] [--backlog 1000000] [--waiting 10000000]
"""

import argparse
import os
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka import Producer

import scheduler.core.cycle
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.latency import percentiles
from benchmarks.stream import (
    ENDPOINT,
    LANES,
    PATIENCE_S,
    POOL,
    PRODUCER,
    SENT,
    SLOTS,
    STAMP,
    Count,
    Stub,
    produce,
)
from benchmarks.stream_bench import Bench, joined, spawned
from fairlane.settings import BODIES_MB_DEFAULT, WAITING_MAX_DEFAULT
from schemas.codec import HEADER, encode
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier, Topology
from schemas.records import PRIORITY_DEFAULT, VERSION, Finished, Request
from schemas.topics import Topics

LIGHT, TIER = "light", "gold"
LIGHT_RATE = 20
#: Of these the neighbour is the first that shares the light tenant's partition.
NEIGHBOURS = tuple(f"heavy-{number}" for number in range(64))
SPREAD = 4
#: The pool of the first part: 16 batches of 8 at once, each for 200 ms.
BUSY_SLOTS, BUSY_BATCH, SERVICE_S = 4, 8, 0.2
#: How many of the neighbour's requests wait where its queue is short.
SHORT = 64
BODY = b"x" * 128
TOKENS = 128
#: Memory that settings allow: the process itself, and for each request that waits.
PROCESS_MB, WAITING_BYTES = 150, 700


class Sizes(NamedTuple):
    """How much is run."""

    backlog: int
    rounds: int
    window_s: float
    waiting: int
    waiting_max: int
    bodies_mb: int


def policy() -> Policy:
    """A light tenant and those of which one becomes its neighbour; nobody has a limit."""
    return Policy(
        topology=Topology(spread=SPREAD),
        tiers=(Tier(name=TIER),),
        pools=(Pool(name=POOL, lanes=LANES, prefetch=0),),
        endpoints=(
            Endpoint(
                name=ENDPOINT,
                pool=POOL,
                cost=CostModel.TOKEN,
                quantum=BUSY_BATCH * TOKENS,
                batch_requests=BUSY_BATCH,
                wait_ms_max=24 * 3_600_000,
            ),
        ),
        tenants=tuple(Tenant(name=name, tiers=(TIER,)) for name in (LIGHT, *NEIGHBOURS)),
    )


def place(tenant: str) -> int:
    """Partition of a tenant's requests."""
    return Topics().request_partition(POOL, tenant, policy())


NEIGHBOUR = next(name for name in NEIGHBOURS if place(name) == place(LIGHT))


class Order(NamedTuple):
    """Requests of one tenant: `pace` a second with the time of each call, or 0: at once.

    With `ahead`, at most so many that no worker has seen, until the run stops.
    """

    kafka: str
    prefix: str
    tenant: str
    first: int
    requests: int
    pace: float = 0.0
    ahead: int = 0


def append(order: Order, counts: Any) -> None:
    """Write requests; a process of its own."""

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            raise RuntimeError(f"a request did not reach the log: {error}")

    where = {"bootstrap.servers": order.kafka, "linger.ms": 0, "on_delivery": delivered}
    producer = Producer({**PRODUCER, **where})
    producer.list_topics(timeout=30.0)
    topic, partition = Topics(order.prefix).requests(TIER), place(order.tenant)
    started, done = time.monotonic(), 0
    while done < order.requests and not counts[Count.STOP]:
        stop = min(done + 1_000, order.requests)
        if order.ahead:
            stop = min(stop, counts[Count.SEEN] + order.ahead)
        if order.pace:
            stop = min(stop, int((time.monotonic() - started) * order.pace) + 1)
        for number in range(done, stop):
            meta = Request(
                VERSION,
                f"{order.tenant}_{order.first + number:020d}",
                order.tenant,
                ENDPOINT,
                PRIORITY_DEFAULT,
                0,
                TOKENS,
                0,
            )
            headers: list[tuple[str, str | bytes | None]] = [(HEADER, encode(meta))]
            if order.pace:
                headers.append((SENT, STAMP.pack(time.monotonic_ns())))
            produce(producer, topic, partition, BODY, order.tenant.encode(), headers)
        done = max(done, stop)
        producer.poll(0)
        if order.ahead or order.pace:
            time.sleep(0.001)
    if left := producer.flush(PATIENCE_S):
        raise RuntimeError(f"{left} requests did not reach the log")


class BusyStub(Stub):
    """Workers that take their time for each batch, and none while `is_on` is 0."""

    def __init__(self, is_on: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._is_on = is_on
        self._running: deque[tuple[float, str, int, Finished]] = deque()

    def _patience_s(self) -> float:
        """Until the next batch is due to end."""
        if not self._running or not self._is_on.value:
            return 0.01
        return min(0.01, max(0.0, self._running[0][0] - time.monotonic()))

    def _answer(self, pool: str, lane: int, finished: Finished) -> None:
        self._running.append((time.monotonic() + SERVICE_S, pool, lane, finished))

    def _answer_late(self) -> None:
        """Say what has ended."""
        running, now = self._running, time.monotonic()
        while self._is_on.value and running and running[0][0] <= now:
            _, pool, lane, finished = running.popleft()
            self._say(pool, lane, finished)


def busy_stub(is_on: Any, *arguments: Any) -> None:
    """The stub's process."""
    BusyStub(is_on, *arguments).run()


class Side:
    """One of the two deployments: its bench, its neighbour's queue, its windows."""

    def __init__(self, bench: Bench, backlog: int) -> None:
        self._bench, self._backlog = bench, backlog
        self._asked = 0
        self.is_on = spawned.Value("i", 0, lock=False)
        self.windows: list[list[float]] = []
        self.busy: list[float] = []

    def fill(self) -> None:
        """Let the neighbour's requests wait, and take the first into work."""
        bench = self._bench
        bench.start_scheduler()
        if self._backlog > SHORT:
            heavy = Order(bench.kafka, bench.topics.prefix, NEIGHBOUR, 0, self._backlog)
            joined(bench.spawn(append, heavy, bench.counts))
            few = self._backlog - 1
            bench.wait_for("reading", lambda: bench.metric("scheduler_waiting"), few)
        else:
            heavy = Order(bench.kafka, bench.topics.prefix, NEIGHBOUR, 0, 1 << 40, ahead=SHORT)
            bench.spawn(append, heavy, bench.counts)
        where = bench.kafka, bench.topics.prefix, BUSY_SLOTS, 0, bench.counts, bench.far_end
        bench.spawn(busy_stub, self.is_on, *where)
        self.is_on.value = 1
        bench.wait_for("scheduler", bench.seen, 2 * LANES * BUSY_SLOTS * BUSY_BATCH)
        self.is_on.value = 0

    def window(self, lasts_s: float) -> None:
        """One window of the light tenant; the other deployment stands still meanwhile."""
        bench, counts = self._bench, self._bench.counts
        self.is_on.value = 1
        warm_s = max(1.0, lasts_s / 5)
        count = int((warm_s + lasts_s) * LIGHT_RATE)
        prefix = bench.topics.prefix
        order = Order(bench.kafka, prefix, LIGHT, self._asked, count, LIGHT_RATE)
        self._asked += count
        light = bench.spawn(append, order, counts)
        time.sleep(warm_s)
        bench.waits_ms()
        batches, since = counts[Count.BATCHES], time.monotonic()
        joined(light)
        time.sleep(2 * SERVICE_S)
        served_s = (counts[Count.BATCHES] - batches) * SERVICE_S
        self.busy.append(served_s / (LANES * BUSY_SLOTS) / (time.monotonic() - since))
        self.windows.append(bench.waits_ms())
        self.is_on.value = 0
        time.sleep(2 * SERVICE_S)
        print(f"{prefix}: {percentiles(self.windows[-1:])}", file=sys.stderr)

    def left(self) -> float:
        """How many still wait."""
        return self._bench.metric("scheduler_waiting")


def light(deployment: Deployment, sizes: Sizes) -> dict[str, Any]:
    """A light tenant's wait without and with a neighbour's backlog."""
    with (
        Bench(deployment, "alone", 0, policy()) as first,
        Bench(deployment, "beside", 0, policy()) as second,
    ):
        alone, beside = Side(first, 0), Side(second, sizes.backlog)
        for side in (alone, beside):
            side.fill()
        for side in (alone, beside):  # the broker and both schedulers get warm
            side.window(sizes.window_s / 2)
            side.windows.clear()
            side.busy.clear()
        for _ in range(sizes.rounds):
            for side in (alone, beside):
                side.window(sizes.window_s)
        left = beside.left()
        if left < sizes.backlog / 8 or alone.left() > sizes.backlog / 20:
            raise RuntimeError(f"{alone.left():.0f} wait alone, {left:.0f} of {sizes.backlog}")
        for bench in (first, second):
            bench.stop_scheduler()
    figures: dict[str, Any] = {"backlog": sizes.backlog, "backlog_left": int(left)}
    for name, side in (("alone", alone), ("beside", beside)):
        found = percentiles([[wait for waits in side.windows for wait in waits]])
        figures[f"light_{name}_p50_ms"] = found["p50_ms"]
        figures[f"light_{name}_p99_ms"] = found["p99_ms"]
        figures[f"busy_{name}"] = round(median(side.busy), 3)
        figures[f"light_{name}_requests"] = sum(map(len, side.windows))
    for share in ("p50", "p99"):
        ratio = figures[f"light_beside_{share}_ms"] / figures[f"light_alone_{share}_ms"]
        figures[f"ratio_{share}"] = round(ratio, 3)
    return figures


def memory_mb(pid: int, line: str) -> float:
    """A line of a process's status, as VmRSS or VmHWM, in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = next(one for one in status.splitlines() if one.startswith(f"{line}:"))
    return round(int(found.split()[1]) / 1024, 1)


def waiting(deployment: Deployment, sizes: Sizes) -> dict[str, Any]:
    """More requests than a scheduler may hold, no capacity, and then capacity again."""
    os.environ["FAIRLANE_WAITING_MAX"] = str(sizes.waiting_max)
    os.environ["FAIRLANE_BODIES_MB"] = str(sizes.bodies_mb)
    with Bench(deployment, "waiting", 0, policy()) as bench:
        bench.start_scheduler()
        where = bench.kafka, bench.topics.prefix
        started = time.monotonic()
        appending = bench.spawn(append, Order(*where, NEIGHBOUR, 0, sizes.waiting), bench.counts)
        least = min(sizes.waiting, sizes.waiting_max)
        bench.wait_for("reading", lambda: bench.metric("scheduler_waiting"), least)
        joined(appending)
        took_s = time.monotonic() - started
        joined(bench.spawn(append, Order(*where, LIGHT, 0, 1, pace=1.0), bench.counts))
        time.sleep(3.0)  # what is over the limit would be read by now, or the process be ended
        figures: dict[str, Any] = {
            "appended": sizes.waiting + 1,
            "waiting_seen": int(bench.metric("scheduler_waiting")),
            "resident_mb": memory_mb(bench.pid, "VmRSS"),
            "bodies_mb": round(bench.metric("scheduler_body_bytes") / 1e6, 1),
            "waiting_max": sizes.waiting_max,
            "limit_mb": PROCESS_MB + sizes.bodies_mb + sizes.waiting_max * WAITING_BYTES // 10**6,
            "reading_paused": bool(bench.metric("scheduler_reading_paused")),
            "taken_in_s": round(took_s, 1),
        }
        print(figures, file=sys.stderr)
        resumed = time.monotonic()
        bench.start_stub(SLOTS, hand_back_every=0)
        bench.wait_for("the pool", bench.seen, 1)
        figures["first_s"] = round(time.monotonic() - resumed, 3)
        while not bench.waits_ms():
            bench.wait_for("the pool", bench.seen, bench.seen() + 1)
            time.sleep(0.02)
        figures["resumed_s"] = round(time.monotonic() - resumed, 3)
        figures["served_before"] = bench.seen()
        figures["peak_mb"] = memory_mb(bench.pid, "VmHWM")
        figures["read_again"] = int(bench.metric("scheduler_bodies_read_again"))
        bench.stop_scheduler()
    return figures


def run(sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Deployment(policy()) as deployment:
        if sizes.backlog:
            figures |= light(deployment, sizes)
        if sizes.waiting:
            figures |= waiting(deployment, sizes)
    figures["compiled"] = scheduler.core.cycle.__file__.endswith(".so")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20,000 and 100,000 requests")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="0: not this part")
    parser.add_argument("--waiting", type=int, default=10_000_000, help="0: not this part")
    parser.add_argument("--waiting-max", type=int, default=WAITING_MAX_DEFAULT)
    parser.add_argument("--bodies-mb", type=int, default=BODIES_MB_DEFAULT)
    given = parser.parse_args()
    sizes = Sizes(given.backlog, 12, 10.0, given.waiting, given.waiting_max, given.bodies_mb)
    if given.quick:
        sizes = Sizes(20_000, 2, 5.0, 100_000, 80_000, 8)
    figures = run(sizes)
    tell(figures, quick=given.quick, as_json=given.json)


if __name__ == "__main__":
    main()
