"""SIGKILL a scheduler in the middle of a transaction with a million requests waiting.

One operation is one recovery: from SIGKILL to the first batch that is committed after it, as a
reader of committed records sees it, process start included. N requests of 1,000 tenants in
three tiers (512-byte bodies) are written to the request topics as the ingress would; a real
`fairlane scheduler` takes all of them in, then a stub of the workers (which ends every batch
as it comes and reads no body) lets it dispatch at full speed. It is killed as soon as a
record of an open transaction of its is seen, and started again under the same name.

`cpu_s` is what the new process has computed by then. `bodies_resident_s` is SIGKILL to the
moment at which it has read all that it keeps. `bytes_per_request` is its resident memory
beyond that of one that has taken in nothing, by request. `state_equal`: what `recover` builds
from the latest snapshot on has the same dump as all decisions folded one by one.

A standby is a second scheduler that reads along; the first is killed and stays away.
`standby_s` counts from the earliest moment at which its session can have expired.

    python -m benchmarks.recovery --json [--quick] [--waiting 200000,1000000] [--runs 3]
"""

import argparse
import gc
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from adapters.kafka import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from benchmarks.deployment import Deployment
from benchmarks.recovery_fold import fold
from scheduler.core.snapshot import dump
from scheduler.recovery import recover
from schemas.codec import decode_header, decode_value, encode, header
from schemas.decisions import Arrived, Decision, DecisionRecord
from schemas.log import Log, Partition
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import (
    VERSION,
    Batch,
    End,
    Finished,
    LaneRecord,
    Outcome,
    Request,
    Seen,
    Usage,
)
from schemas.topics import Topics

TENANTS = 1_000
TIERS = ("gold", "silver", "bronze")
LANES = 8
SLOTS = 4
BODY = b'{"input":"' + b"x" * 500 + b'"}'
SIZES = ("200000", "1000000")
#: What stands for them with --quick.
QUICK = {"200000": 20_000, "1000000": 60_000}
#: How long a scheduler dispatches before it is killed: its queues are in full swing.
SWING_S = 1.0
#: Longest wait for anything.
GIVE_UP_S = 300.0
SCHEDULER, STANDBY = "scheduler-0", "scheduler-1"

POLICY = Policy(
    tiers=tuple(Tier(name=name) for name in TIERS),
    pools=(Pool(name="embed", lanes=LANES),),
    endpoints=(
        Endpoint(
            name="embed",
            pool="embed",
            cost=CostModel.TOKEN,
            quantum=1_024,
            batch_requests=32,
            batch_tokens=16_384,
            tokens_max=8_192,
            wait_ms_max=24 * 3_600_000,
            waiting=10_000_000,
        ),
    ),
    tenants=tuple(
        Tenant(name=f"tenant-{number}", tiers=(TIERS[number % 3],)) for number in range(TENANTS)
    ),
)


class Silence:
    """Notes that nobody reads."""

    def info(self, event: str, **facts: object) -> None:
        """Say nothing."""

    def warning(self, event: str, **facts: object) -> None:
        """Warnings are worth a line."""
        print(event, facts, file=sys.stderr)


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {GIVE_UP_S} s: {what}")
        time.sleep(0.01)


def preload(log: Log, topics: Topics, first: int, count: int) -> None:
    """Write requests as the ingress does."""
    with closing(log.producer()) as producer:
        places = [
            (topics.requests(t.tiers[0]), topics.request_partition("embed", t.name, POLICY))
            for t in POLICY.tenants
        ]
        for number in range(first, first + count):
            tenant = number * 7_919 % TENANTS
            meta = Request(
                VERSION,
                f"01J{number:023d}",
                f"tenant-{tenant}",
                "embed",
                input_tokens=100 + number % 50,
            )
            producer.send(*places[tenant], BODY, headers=header(meta), on_delivery=_ignore)
        if producer.flush(GIVE_UP_S):
            raise RuntimeError("not all requests were written")


def _ignore(_offset: object, error: object) -> None:
    if error is not None:
        raise RuntimeError(error)


class Workers:
    """A stub of every lane's holder: ends batches as they come, while it is let."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log, self._topics = log, topics
        self.dispatched = 0
        self.seen: list[tuple[float, int]] = []  #: when a batch was read, when it was picked
        self.serves = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._log.reader()) as reader, closing(self._log.producer()) as producer:
            lanes = range(LANES)
            reader.assign({(self._topics.batches("embed"), lane): 0 for lane in lanes})
            for lane in lanes:
                self._say(producer, lane, Seen(VERSION, 0))
            kept: list[tuple[int, Finished]] = []
            told = False
            while not self._stop.is_set():
                for record in reader.poll(1_000, 0.005):
                    batch: Batch = decode_header(record, LaneRecord)
                    self.seen.append((time.time(), batch.picked_ms))
                    self.dispatched += len(batch.items)
                    kept.append((record.partition, _finished(batch)))
                if not self.serves.is_set():
                    continue
                if not told:
                    told = True
                    for lane in lanes:
                        self._say(producer, lane, Seen(VERSION, SLOTS))
                for lane, finished in kept:
                    self._say(producer, lane, finished)
                kept.clear()

    def _say(self, producer: Any, lane: int, said: Seen | Finished) -> None:
        producer.send(self._topics.workers("embed"), lane, encode(said), on_delivery=_ignore)

    def first_after(self, killed_s: float) -> float | None:
        """When the first batch was read that was picked after a kill."""
        for read_s, picked_ms in self.seen[-5_000:]:
            if picked_ms > killed_s * 1000:
                return read_s
        return None

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _finished(batch: Batch) -> Finished:
    outcomes = tuple(
        Outcome(item.key, End.SUCCEEDED, Usage(input_tokens=item.tokens)) for item in batch.items
    )
    return Finished(VERSION, batch.number, outcomes)


class Bench:
    """One deployment with one scheduler, its workers' stub and what was measured."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.log, self.topics = deployment.log, deployment.topics
        for name in (SCHEDULER, STANDBY):
            deployment.define(name, "scheduler", "--instance", name)
        self.workers = Workers(self.log, self.topics)
        self.written = 0
        self.positions: dict[Partition, int] = {}
        self.decisions = self.log.reader()
        self.decisions.assign({(self.topics.decisions, 0): 0})

    def close(self) -> None:
        """Free what runs in this process."""
        self.workers.close()
        self.decisions.close()

    def resident(self, name: str) -> int:
        """Bytes of a process in memory."""
        pid = self.deployment.processes[name].pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * 4_096

    def cpu_s(self, name: str) -> float:
        """What a process has computed so far: says more than the clock on a busy machine."""
        pid = self.deployment.processes[name].pid
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def told(self, name: str, event: str) -> list[dict[str, Any]]:
        """A process's notes of one kind."""
        return self.deployment.told(name, event)

    def fill(self, waiting: int) -> None:
        """Let so many requests wait, all of them taken in by the scheduler."""
        more = waiting - (self.written - self.workers.dispatched)
        print(f"writing {more} requests", file=sys.stderr)
        preload(self.log, self.topics, self.written, more)
        self.written += more
        until(lambda: self.taken_in() >= self.written, f"{more} requests are taken in")

    def taken_in(self) -> int:
        """How many requests the scheduler has decided about."""
        for record in self.decisions.poll(10_000, 0.1):
            decided = decode_value(record, DecisionRecord)
            for step in decided.steps if isinstance(decided, Decision) else ():
                if isinstance(step, Arrived):
                    self.positions[step.topic, step.partition] = step.stop
        return sum(self.positions.values())

    def kill(self) -> tuple[float, bool]:
        """SIGKILL the scheduler in a transaction: when, and whether one was open."""
        decisions = (self.topics.decisions, 0)
        self.workers.serves.set()
        before = self.workers.dispatched
        until(lambda: self.workers.dispatched > before, "the scheduler dispatches")
        time.sleep(SWING_S)
        with closing(self.log.reader(committed_only=False)) as reader:
            reader.assign({decisions: reader.bounds(decisions).end})
            while not reader.poll(1, 0.1):
                pass
            self.deployment.processes[SCHEDULER].kill()
            killed_s = time.time()
            self.deployment.processes[SCHEDULER].wait()
            end = reader.bounds(decisions).end
        with closing(self.log.reader()) as reader:
            return killed_s, reader.bounds(decisions).end < end

    def recover_once(self) -> dict[str, Any]:
        """Kill, start again, and time what follows."""
        was_open = False
        while not was_open:
            killed_s, was_open = self.kill()
            self.deployment.start(SCHEDULER)
            found_s = self.wait_for_batch(killed_s)
        took_over = self.told(SCHEDULER, "shard taken over")[-1]
        resident_s = datetime.fromisoformat(took_over["time"]).timestamp() - killed_s
        run = {
            "first_commit_s": found_s - killed_s,
            "bodies_resident_s": resident_s,
            "cpu_s": self.cpu_s(SCHEDULER),
            "resident": self.resident(SCHEDULER),
            "live": took_over["live"],
        }
        print(run, file=sys.stderr)
        return run

    def wait_for_batch(self, killed_s: float) -> float:
        """When the first batch was read that was picked after a kill."""
        deadline = time.monotonic() + GIVE_UP_S
        while (read_s := self.workers.first_after(killed_s)) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no batch within {GIVE_UP_S} s after the kill")
            time.sleep(0.01)
        return read_s

    def states_equal(self) -> bool:
        """With nobody deciding: what is recovered equals what is folded from the first decision."""
        recovered: bytes = dump(recover(self.log, self.topics, 0, Silence()).state)
        gc.collect()
        folded: bytes = dump(fold(self.log, self.topics, 0))
        return recovered == folded

    def standby(self) -> float:
        """A standby takes over from one that was killed: seconds from the session's end."""
        self.deployment.start(STANDBY)
        until(lambda: bool(self.told(STANDBY, "standing by")), "a standby that has read all")
        killed_s, _ = self.kill()
        expired_s = killed_s + (SESSION_TIMEOUT_MS - HEARTBEAT_MS) / 1000
        return self.wait_for_batch(killed_s) - expired_s


def run(sizes: dict[str, int], runs: int, *, standby: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Deployment(POLICY) as deployment:
        bench = Bench(deployment)
        try:
            deployment.start(SCHEDULER)
            until(lambda: bool(bench.told(SCHEDULER, "shard taken over")), "a scheduler")
            empty = bench.resident(SCHEDULER)
            for name, waiting in sizes.items():
                bench.workers.serves.clear()
                bench.fill(waiting)
                found = [bench.recover_once() for _ in range(runs)]
                bench.workers.serves.clear()
                last = found[-1]
                figures[name] = {
                    "waiting": waiting,
                    "first_commit_s": _median(found, "first_commit_s"),
                    "first_commit_all_s": [round(one["first_commit_s"], 3) for one in found],
                    "bodies_resident_s": _median(found, "bodies_resident_s"),
                    "cpu_s": _median(found, "cpu_s"),
                    "bytes_per_request": round((last["resident"] - empty) / last["live"]),
                }
            if standby:
                figures["standby_s"] = round(bench.standby(), 3)
            for process in deployment.processes.values():
                process.kill()
                process.wait()
            equal = bench.states_equal()
        finally:
            bench.close()
    for name in sizes:
        figures[name]["state_equal"] = equal
    return figures


def _median(found: list[dict[str, Any]], name: str) -> float:
    return round(float(statistics.median(one[name] for one in found)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20,000 and 60,000, one run each")
    parser.add_argument("--waiting", default=",".join(SIZES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-standby", action="store_true")
    given = parser.parse_args()
    names = given.waiting.split(",")
    sizes = QUICK if given.quick else {name: int(name) for name in names}
    figures = run(sizes, 1 if given.quick else given.runs, standby=not given.no_standby)
    figures["quick"] = given.quick
    if given.json:
        print(json.dumps(figures))
        return
    for name in sizes:
        print(name, *(f"  {key:20} {value}" for key, value in figures[name].items()), sep="\n")
    print(f"standby_s {figures.get('standby_s')}")


if __name__ == "__main__":
    main()
