"""Three pools on one, two and three schedulers, and schedulers that come and go.

Each pool stands on another shard and has two tenants of weights 4:1 with as many requests each.
The schedulers are the product's own processes; one process answers for all workers
(benchmarks.stream: true costs, a few batches handed back).

With one, two and three schedulers (each is started beside those that run): all requests are
appended in one transaction, so they come at once, and are read while no slot is open
(`read_per_s`); then all slots open (`dispatched_per_s`, in committed batches of all pools until
one pool's tenant of weight 4 is about to run dry). `requests_per_s` is what both take together.
`weight_error` is the worst pool's deviation from 4:1, of true costs, while both tenants have
backlog, `longest_pause_s` the longest gap between two committed batches of a pool while all do.

`churn`: schedulers join, leave (SIGTERM) and are killed (SIGKILL; every other one is started
again at once, the others stay away until their session expires), up to four at a time, one
of them a standby. Every pool has backlog all the time; a batch takes up to four seconds.
Counted at the end on the log, read committed: `doubled` were dispatched for good
twice, `stuck` stand in a scheduler's state 60 s after the last event, `lost` nowhere, and
`redispatched_without_cause` are dispatches
beyond the first that no hand-back explains. `pauses_s` are the longest gaps by what happened in
them.

    python -m benchmarks.shards --json [--quick] [--requests 100000] [--churn-s 600] [--seed 1]
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from benchmarks.chaos import STUCK_S, dispatches, read_all
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.shards_load import (
    BEGIN,
    FIGURES,
    HOLD,
    HOLD_S,
    OPEN,
    POLICY,
    SHARDS,
    SLOTS,
    STOP,
    Figure,
    Gap,
    Window,
    append,
    at,
    feed,
    request_id,
    seen,
    waiting,
    workers,
)
from benchmarks.stream import HAND_BACK_EVERY, PATIENCE_S, Count
from benchmarks.stream_bench import joined, spawned
from fairlane.publish import publish_policy
from fairlane.stack import free_ports
from scheduler.recovery import recover
from schemas.codec import decode_header
from schemas.records import Result
from schemas.topics import Topics

SCHEDULERS = (1, 2, 3)
#: How long schedulers may read while nothing is dispatched.
READ_S = 300.0
BODY, CHURN_BODY = 512, 64
#: Schedulers of the churn at the most: with one more than shards there is a standby.
MOST = SHARDS + 1
#: Seconds from one event to the next, on average.
EVENT_S = 5.0


class Silence:
    """Notes that nobody reads, but for warnings."""

    def info(self, event: str, **facts: object) -> None:
        """Say nothing."""

    def warning(self, event: str, **facts: object) -> None:
        """Warnings are worth a line."""
        print(event, facts, file=sys.stderr)


class Event(NamedTuple):
    """What was done to a scheduler, and when by the monotonic clock."""

    what: str
    at_s: float


class Fleet:
    """Schedulers of one prefix, their workers' stub and what is known of both."""

    def __init__(self, deployment: Deployment, prefix: str) -> None:
        self.deployment, self.prefix = deployment, prefix
        self.topics = deployment.topics = Topics(prefix)
        publish_policy(deployment.log, self.topics, POLICY)
        self.kafka = deployment.addresses.kafka
        self.counts: Any = spawned.Array("Q", len(Count), lock=False)
        self.figures: Any = spawned.Array("d", FIGURES, lock=False)
        self.names: list[str] = []  #: of the schedulers that run
        self.exits: Counter[int] = Counter()  #: codes of those that were stopped cleanly
        self._pipe, far_end = spawned.Pipe()
        self._spawned: list[Any] = []
        shared = (self.counts, self.figures)
        self.spawn(workers, self.kafka, prefix, *shared, far_end, HAND_BACK_EVERY)
        names = [f"{prefix}-{number}" for number in range(MOST)]
        self._ports = dict(zip(names, free_ports(MOST), strict=True))
        for name, port in self._ports.items():
            port_of = ("--metrics-port", str(port))
            deployment.define(name, "scheduler", "--instance", name, *port_of)

    def spawn(self, target: Callable[..., None], *arguments: Any) -> Any:
        process = spawned.Process(target=target, args=arguments, daemon=True)
        process.start()
        self._spawned.append(process)
        return process

    def close(self) -> None:
        """Stop what runs."""
        self.figures[STOP] = self.counts[Count.STOP] = 1
        for name in list(self.names):
            self.leave(name)
        for process in self._spawned:
            process.join(PATIENCE_S)
            if process.exitcode is None:
                process.kill()

    def check(self) -> None:
        """Raise if a process has ended by itself."""
        for name in self.names:
            if (code := self.deployment.processes[name].poll()) is not None:
                raise RuntimeError(
                    f"{name} ended with {code}: {self.deployment.notes(name)[-2000:]}"
                )
        for process in self._spawned:
            if process.exitcode:
                raise RuntimeError(f"a process of the benchmark ended with {process.exitcode}")

    def until(self, what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait; gives up when nothing was dispatched for long."""
        last, moved = seen(self.counts), time.monotonic()
        while not is_so():
            time.sleep(0.005)
            if seen(self.counts) != last:
                last, moved = seen(self.counts), time.monotonic()
            self.check()
            if time.monotonic() - moved > patience_s:
                left = [waiting(self.figures, pool) for pool in range(SHARDS)]
                for name in self.names:
                    print(f"--- {name}", self.deployment.notes(name)[-4_000:], file=sys.stderr)
                raise RuntimeError(f"{what}: nothing moves; waiting: {left}")

    # --- schedulers

    def join(self, name: str) -> None:
        self.deployment.start(name)
        self.names.append(name)

    def leave(self, name: str) -> None:
        self.names.remove(name)
        self.exits[self.deployment.stop(name)] += 1

    def kill(self, name: str) -> None:
        self.names.remove(name)
        self.deployment.kill(name)

    def owners(self) -> dict[int, str]:
        """Who took each shard over last."""
        taken = [
            (note["time"], note["shard"], name)
            for name in self.names
            for note in self.deployment.told(name, "shard taken over")
        ]
        return {shard: name for _, shard, name in sorted(taken)}

    def is_shared_out(self) -> bool:
        """Whether all shards are owned, by as many schedulers as can be."""
        owners = self.owners()
        return len(owners) == SHARDS and set(owners.values()) == set(self.names)

    def waiting(self) -> float:
        """Requests that the schedulers have taken in and not dispatched, by their metrics."""
        found = 0.0
        for name in self.names:
            text = httpx.get(f"http://127.0.0.1:{self._ports[name]}/metrics", timeout=30.0).text
            lines = [x for x in text.splitlines() if x.startswith("fairlane_scheduler_waiting{")]
            found += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        return found

    # --- figures

    def of(self, figure: Figure) -> list[float]:
        """A figure of each pool."""
        return [self.figures[at(pool, figure)] for pool in range(SHARDS)]

    def set_to_0(self, figure: Figure) -> None:
        for pool in range(SHARDS):
            self.figures[at(pool, figure)] = 0.0

    def gaps(self) -> list[Gap]:
        """Gaps since this was asked last."""
        self._pipe.send("gaps")
        while not self._pipe.poll(1.0):
            self.check()
        return [Gap(*gap) for gap in self._pipe.recv()]

    def is_through(self) -> bool:
        return all(waiting(self.figures, pool) <= 0 for pool in range(SHARDS))


def phase(fleet: Fleet, schedulers: int, requests: int) -> dict[str, Any]:
    """Let one more scheduler join, then let `requests` of each tenant go through."""
    fleet.join(f"{fleet.prefix}-{schedulers - 1}")
    fleet.until(f"{schedulers} schedulers", fleet.is_shared_out)
    windows = [Window(fleet.figures, pool, requests) for pool in range(SHARDS)]
    before, total = seen(fleet.counts), 2 * requests * SHARDS
    joined(fleet.spawn(append, fleet.kafka, fleet.prefix, fleet.figures, 2 * requests, BODY))
    appended_s = time.monotonic()
    fleet.until("reading", lambda: fleet.waiting() + seen(fleet.counts) - before >= total, READ_S)
    read_s = time.monotonic() - appended_s
    fleet.figures[OPEN] = SLOTS
    fleet.until("the beginning", lambda: seen(fleet.counts) - before >= total * BEGIN)
    fleet.set_to_0(Figure.LONGEST_S)
    begun_s, begun = time.monotonic(), seen(fleet.counts)
    fleet.until("the window", lambda: sum(window.look() for window in windows) > 0)
    now_s = time.monotonic()
    per_s = (seen(fleet.counts) - begun) / (now_s - begun_s)
    open_s = [now_s - last_s for last_s in fleet.of(Figure.LAST_S)]
    longest_s = max(fleet.of(Figure.LONGEST_S) + open_s)
    fleet.until("the windows", lambda: sum(window.look() for window in windows) == SHARDS)
    fleet.until("the rest", fleet.is_through)
    fleet.figures[OPEN] = 0.0
    errors = [window.error or 0.0 for window in windows]
    found = {
        "requests_per_s": round(1 / (read_s / total + 1 / per_s)),
        "read_per_s": round(total / read_s),
        "dispatched_per_s": round(per_s),
        "weight_error": round(max(errors), 4),
        "longest_pause_s": round(longest_s, 3),
    }
    print(schedulers, found, errors, fleet.owners(), file=sys.stderr)
    return found


def churn(fleet: Fleet, for_s: float, seed: int) -> dict[str, Any]:
    """Let schedulers come and go while every pool has backlog."""
    chance = random.Random(seed)
    fleet.figures[HOLD], fleet.figures[OPEN] = HOLD_S, SLOTS
    fleet.join(f"{fleet.prefix}-0")
    fleet.spawn(feed, fleet.kafka, fleet.prefix, fleet.figures, CHURN_BODY)
    fleet.until("the first batches", lambda: min(fleet.of(Figure.LAST_S)) > 0)
    events: list[Event] = []
    mean_s = min(EVENT_S, for_s / 10)
    over_s = time.monotonic() + for_s
    fleet.gaps()
    while (left_s := over_s - time.monotonic()) > 0:
        rest = time.monotonic() + min(left_s, chance.uniform(0.1, 2 * mean_s))
        fleet.until("churn", lambda due=rest: time.monotonic() >= due)  # type: ignore[misc]
        events.append(event(fleet, chance))
        print(f"{events[-1].what}: {len(fleet.names)} run, {fleet.owners()}", file=sys.stderr)
    fleet.figures[STOP] = 1
    fleet.figures[HOLD] = 0.0
    last_s = time.monotonic()
    while not fleet.is_through() and time.monotonic() - last_s < STUCK_S:
        time.sleep(0.1)
    gaps = [gap for gap in fleet.gaps() if gap.to_s < last_s]
    for name in list(fleet.names):
        fleet.leave(name)
    counts = Counter(one.what for one in events)
    return {
        **judged(fleet),
        "joins": counts["join"],
        "leaves": counts["leave"],
        "kills": counts["kill"] + counts["kill, away"],
        "kills_away": counts["kill, away"],
        "exit_codes": {str(code): number for code, number in fleet.exits.items()},
        "longest_pause_s": round(max((gap.to_s - gap.from_s for gap in gaps), default=0.0), 3),
        "pauses_s": pauses(gaps, events),
        "seconds": for_s,
        "seed": seed,
    }


def event(fleet: Fleet, chance: random.Random) -> Event:
    """Do something to a scheduler; one at least goes on."""
    stopped = [f"{fleet.prefix}-{n}" for n in range(MOST)]
    stopped = [name for name in stopped if name not in fleet.names]
    choices = ["kill"]
    if stopped:
        choices += ["join", "join"]
    if len(fleet.names) > 1:
        choices += ["leave", "kill, away"]
    what, name = chance.choice(choices), chance.choice(fleet.names)
    at_s = time.monotonic()
    if what == "join":
        fleet.join(chance.choice(stopped))
    elif what == "leave":
        fleet.leave(name)
    else:
        fleet.kill(name)
        if what == "kill":
            fleet.join(name)
    return Event(what, at_s)


def pauses(gaps: list[Gap], events: list[Event]) -> dict[str, float]:
    """The longest gap by what happened in it or up to two seconds before."""
    longest: dict[str, float] = {}
    for gap in gaps:
        within = {one.what for one in events if gap.from_s - 2.0 <= one.at_s <= gap.to_s}
        name = " + ".join(sorted(within)) or "nothing"
        longest[name] = max(longest.get(name, 0.0), round(gap.to_s - gap.from_s, 3))
    return longest


def judged(fleet: Fleet) -> dict[str, int]:
    """What became of every request, by the log."""
    log, topics = fleet.deployment.log, fleet.topics
    appended = int(sum(fleet.of(Figure.APPENDED)))
    dispatched, returned = dispatches(fleet.deployment)
    ended = Counter(decode_header(record, Result).id for record in read_all(log, topics.results))
    by_scheduler = ended.total()
    ended.update(dispatched)
    ended.subtract(returned)
    missing = {one for one in map(request_id, range(appended)) if ended[one] <= 0}
    live: set[str] = set()
    for shard in range(SHARDS):
        live.update(recover(log, topics, shard, Silence()).state.ids)
    return {
        "requests": appended,
        "lost": len(missing - live),
        "doubled": sum(number > 1 for number in ended.values()),
        "stuck": len(live),
        "redispatched_without_cause": sum(
            max(0, number - 1 - returned[request]) for request, number in dispatched.items()
        ),
        "handed_back": returned.total(),
        "ended_by_a_scheduler": by_scheduler,
    }


def run(requests: int, churn_s: float, seed: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Deployment(POLICY) as deployment:
        fleet = Fleet(deployment, "shards")
        try:
            for schedulers in SCHEDULERS:
                figures[str(schedulers)] = phase(fleet, schedulers, requests)
        finally:
            fleet.close()
        fleet = Fleet(deployment, "churn")
        try:
            figures["churn"] = churn(fleet, churn_s, seed)
        finally:
            fleet.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="10,000 requests, 20 s of churn")
    parser.add_argument("--requests", type=int, default=100_000, help="of each of six tenants")
    parser.add_argument("--churn-s", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.churn_s = 10_000, 20.0
    figures = run(arguments.requests, arguments.churn_s, arguments.seed)
    tell(figures, quick=arguments.quick, as_json=arguments.json)


if __name__ == "__main__":
    main()
