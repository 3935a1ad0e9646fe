"""The scheduler's core alone on a virtual clock: arrivals in, picks out, simulated servers.

`Direct` drives a `Chooser`, who decides what runs next: `CoreChooser` is the real core, as
`run_cycle` has it, without log and services; a benchmark may hand in another, so that both
see the same requests and the same servers. Time is in microseconds (the core is told
milliseconds); something is decided only when something happened. One input is one history.

    arrivals and ends of an instant, in the order in which they were made
    -> one cycle of the chooser -> loads (batches) for servers, each with its end

A lane runs as many loads at a time as it has slots; more, sent ahead, wait in order.

What belongs here: the clock, the servers, what became of each request, in which order. What
does not: who asks for what (simulation.tenants), measures, and anything that is decided.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

from scheduler.core.arrivals import Arrival
from scheduler.core.batches import due_ms
from scheduler.core.cycle import Inputs, RequestRange, run_cycle
from scheduler.core.decided import Cycle
from scheduler.core.state import State
from schemas.policy import Policy, encode_policy
from schemas.records import (
    PRIORITY_DEFAULT,
    VERSION,
    Cancel,
    ControlRecord,
    End,
    Finished,
    Outcome,
    Request,
    Seen,
    Usage,
    WorkerRecord,
)

T = TypeVar("T")

#: Where a history begins, so that no time is 0, which means "none" in records.
START_MS = 1_000_000
#: Bytes of a body: estimates come from the request alone.
_SIZE = 1


class Ask(NamedTuple):
    """A request to come, `at_us` after the beginning.

    `input_tokens` and `output_tokens` are true; `estimate_tokens` is what is said of it in
    advance. `deadline_us` and `cancel_us` count from its arrival; 0: none.
    """

    at_us: int
    tenant: str
    input_tokens: int
    output_tokens: int
    estimate_tokens: int
    priority: int = PRIORITY_DEFAULT
    deadline_us: int = 0
    cancel_us: int = 0
    tier: str = "standard"
    endpoint: str = "run"


class Job:
    """What became of a request; times count from the beginning, -1: it didn't happen."""

    __slots__ = (
        "arrived_us", "ask", "charge", "end", "end_us", "first_us", "load", "number",
        "output_tokens", "picked_us", "place",
    )  # fmt: skip

    def __init__(self, number: int, ask: Ask) -> None:
        self.number = number
        self.ask = ask
        self.arrived_us = ask.at_us
        self.picked_us = self.first_us = self.end_us = -1
        self.end = ""  #: how it ended: an `End`, or the reason of the scheduler
        self.output_tokens = ask.output_tokens  #: what was made: fewer when it was stopped
        self.charge = 0  #: what it was charged when it was picked
        self.place = 0  #: offset in its tier's partition
        self.load: Load | None = None

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.ask.tenant

    @property
    def tokens(self) -> int:
        """True input and output tokens."""
        return self.ask.input_tokens + self.output_tokens

    @property
    def wait_us(self) -> int:
        """From its arrival until it was picked."""
        return self.picked_us - self.arrived_us


class Load:
    """A batch: its jobs in order, where it runs, and when it ends (-1: it waits in its lane)."""

    __slots__ = ("end_us", "ends", "jobs", "keys", "lane", "number", "pool", "start_us")

    def __init__(
        self, number: int, jobs: list[Job], pool: str = "", lane: int = 0, keys: Sequence[int] = ()
    ) -> None:
        self.number = number
        self.jobs = jobs
        self.pool = pool
        self.lane = lane
        self.keys = keys
        self.start_us = self.end_us = -1
        self.ends = [End.SUCCEEDED] * len(jobs)


class Chosen(NamedTuple):
    """What a chooser decided: loads to run, what it ended itself, what is to be stopped."""

    loads: list[Load]
    ended: list[tuple[Job, str]]
    stops: list[Job]


class Chooser(Protocol):
    """Who decides what runs next."""

    def cycle(
        self, now_us: int, arrived: list[Job], landed: list[Load], cancelled: list[Job]
    ) -> Chosen:
        """Take in what happened, choose what free slots run; `landed` have their true ends."""

    def wake_us(self, *, is_idle: bool) -> int | None:
        """When time alone makes something due; None: never. Idle: nothing else will happen."""

    def slots(self, pool: str, lane: int) -> int:
        """How many loads a lane runs at a time."""


class Server(NamedTuple):
    """How long things take: `service_us` of a load, `first_us` until a job's first token."""

    service_us: Callable[[Sequence[Job]], int]
    first_us: Callable[[Job], int]


class Moment(NamedTuple):
    """One thing that happened to a job: "arrived", "picked", "ended" or "dropped" unpicked."""

    what: str
    at_us: int
    job: Job


def exact_usage(job: Job) -> Usage:
    """Usage as an engine that counts right reports it."""
    return Usage(job.ask.input_tokens, job.output_tokens)


class CoreChooser:
    """The core under a policy; every lane of every pool has so many slots.

    `usage` is what a worker reports of a job: a success by default as `exact_usage` says.
    """

    def __init__(
        self, policy: Policy, slots: int, usage: Callable[[Job], Usage] = exact_usage
    ) -> None:
        self.state = State(0)
        self._slots = slots
        self._usage = usage
        self._running: dict[str, Job] = {}
        self._offsets: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._waits = any(e.batch_requests > 1 and e.batch_wait_ms for e in policy.endpoints)
        topics = [(_topic(tier.name), "1") for tier in policy.tiers]
        document = encode_policy(policy)
        first = run_cycle(self.state, Inputs(policies=[document], topics=topics), START_MS)
        if first.faults:
            raise ValueError(first.faults[0])
        seen: list[tuple[str, int, WorkerRecord]] = [
            (pool.name, lane, Seen(VERSION, slots))
            for pool in policy.pools
            for lane in range(pool.lanes)
        ]
        run_cycle(self.state, Inputs(workers=seen), START_MS)

    def cycle(
        self, now_us: int, arrived: list[Job], landed: list[Load], cancelled: list[Job]
    ) -> Chosen:
        """One cycle of the core."""
        control: list[ControlRecord] = [
            Cancel(VERSION, _topic(job.ask.tier), 0, job.place) for job in cancelled
        ]
        inputs = Inputs(control=control)
        inputs.workers = [(load.pool, load.lane, self._finished(load)) for load in landed]
        inputs.requests = self._ranges(arrived)
        cycle = self.decide(inputs, START_MS + now_us // 1000)
        jobs = self._running
        chosen = Chosen([], [], [])
        for batch in cycle.batches:
            picked = [jobs[live.id] for live in batch.requests]
            keys = [live.key for live in batch.requests]
            flight = self.state.pools[batch.pool].lanes[batch.lane].flights[batch.number]
            for job, (_, cost) in zip(picked, flight.charged, strict=True):
                job.charge = cost
            chosen.loads.append(Load(batch.number, picked, batch.pool, batch.lane, keys))
        for live, reason in cycle.ended:
            chosen.ended.append((jobs.pop(live.id), str(reason)))
        for _, _, arrival, reason in cycle.refused:
            assert arrival.meta is not None
            chosen.ended.append((jobs.pop(arrival.meta.id), str(reason)))
        for *_, key in cycle.cancels:
            live_now = self.state.find(key)
            assert live_now is not None
            chosen.stops.append(jobs[live_now.id])
        return chosen

    def decide(self, inputs: Inputs, now_ms: int) -> Cycle:
        """Run a cycle; whoever wants to look on does it here."""
        return run_cycle(self.state, inputs, now_ms)

    def wake_us(self, *, is_idle: bool) -> int | None:
        """When a batch that waits for company is due; when nothing else is, an expiry."""
        due = due_ms(self.state) if self._waits or is_idle else None
        if due is None and is_idle and self._running:
            due = self.state.next_expiry_ms()
        return None if due is None else max(0, due - START_MS) * 1000

    def slots(self, pool: str, lane: int) -> int:
        """The same everywhere."""
        del pool, lane
        return self._slots

    def _ranges(self, arrived: list[Job]) -> list[RequestRange]:
        ranges: dict[str, RequestRange] = {}
        for job in arrived:
            ask = job.ask
            tier = ask.tier
            job.place = offset = next(self._offsets[tier])
            read = ranges.get(tier)
            if read is None:
                read = ranges[tier] = RequestRange(_topic(tier), 0, tier, offset, 0, [])
            request_id = str(job.number)
            self._running[request_id] = job
            deadline_ms = 0
            if ask.deadline_us:
                deadline_ms = START_MS + (job.arrived_us + ask.deadline_us) // 1000
            meta = Request(
                VERSION,
                request_id,
                ask.tenant,
                ask.endpoint,
                ask.priority,
                deadline_ms,
                ask.estimate_tokens,
            )
            arrived_ms = START_MS + job.arrived_us // 1000
            read.arrivals.append(Arrival(offset, arrived_ms, _SIZE, meta))
            read.stop = offset + 1
        return list(ranges.values())

    def _finished(self, load: Load) -> Finished:
        usages = [self._usage(job) for job in load.jobs]
        for job in load.jobs:
            del self._running[str(job.number)]
        outcomes = zip(load.keys, load.ends, usages, strict=True)
        return Finished(VERSION, load.number, tuple(Outcome(*outcome) for outcome in outcomes))


def _topic(tier: str) -> str:
    return f"requests.{tier}"


class Direct:
    """One history. `moments` has everything that happened, in order."""

    def __init__(self, chooser: Chooser, server: Server) -> None:
        self.chooser = chooser
        self.server = server
        self.now_us = 0
        self.jobs: list[Job] = []
        self.moments: list[Moment] = []
        self.loads: list[Load] = []
        self.on_picked: Callable[[Job], None] | None = None
        self.on_ended: Callable[[Job], None] | None = None
        self._coming: list[tuple[int, int, Job]] = []
        self._cancels: list[tuple[int, int, Job]] = []
        self._running: list[tuple[int, int, Load]] = []
        self._busy: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._ahead: defaultdict[tuple[str, int], deque[Load]] = defaultdict(deque)

    def ask(self, ask: Ask) -> None:
        """Add a request, now or later."""
        heappush(self._coming, self._job(ask))

    def _job(self, ask: Ask) -> tuple[int, int, Job]:
        job = Job(len(self.jobs), ask)
        self.jobs.append(job)
        if ask.cancel_us:
            heappush(self._cancels, (ask.at_us + ask.cancel_us, job.number, job))
        return max(ask.at_us, self.now_us), job.number, job

    def run(self, asks: Iterable[Ask] = (), until: Callable[[], bool] | None = None) -> "Direct":
        """Go on until nothing is left to happen, or `until` says so; returns itself."""
        self._coming += map(self._job, asks)
        heapify(self._coming)
        while until is None or not until():
            at_us = self._next_us()
            if at_us is None:
                break
            self.now_us = max(self.now_us, at_us)
            self._step()
        return self

    def _next_us(self) -> int | None:
        heaps = (self._coming, self._running, self._cancels)
        times: list[int] = [heap[0][0] for heap in heaps if heap]
        wake = self.chooser.wake_us(is_idle=not times)
        if wake is not None:
            times.append(max(wake, self.now_us + 1))
        return min(times, default=None)

    def _step(self) -> None:
        now_us = self.now_us
        landed = [load for load in _until(self._running, now_us) if load.end_us == now_us]
        for load in landed:
            self._land(load)
        arrived = _until(self._coming, now_us)
        for job in arrived:
            job.arrived_us = now_us
            self.moments.append(Moment("arrived", now_us, job))
        cancelled = [job for job in _until(self._cancels, now_us) if not job.end]
        chosen = self.chooser.cycle(now_us, arrived, landed, cancelled)
        for job, reason in chosen.ended:
            job.end, job.end_us = reason, now_us
            self._tell("dropped", job)
        for load in chosen.loads:
            self._take(load)
        for job in chosen.stops:
            self._stop(job)

    def _take(self, load: Load) -> None:
        for job in load.jobs:
            job.picked_us, job.load = self.now_us, load
            self.moments.append(Moment("picked", self.now_us, job))
            if self.on_picked is not None:
                self.on_picked(job)
        self.loads.append(load)
        lane = load.pool, load.lane
        if self._busy[lane] < self.chooser.slots(*lane):
            self._start(load)
        else:
            self._ahead[lane].append(load)

    def _start(self, load: Load) -> None:
        self._busy[load.pool, load.lane] += 1
        load.start_us = self.now_us
        load.end_us = self.now_us + max(1, self.server.service_us(load.jobs))
        for job in load.jobs:
            job.first_us = min(self.now_us + self.server.first_us(job), load.end_us)
        heappush(self._running, (load.end_us, load.number, load))

    def _land(self, load: Load) -> None:
        lane = load.pool, load.lane
        self._busy[lane] -= 1
        for job, end in zip(load.jobs, load.ends, strict=True):
            job.end, job.end_us = str(end), self.now_us
            self._tell("ended", job)
        if self._ahead[lane]:
            self._start(self._ahead[lane].popleft())

    def _stop(self, job: Job) -> None:
        """A caller is gone: alone in its load it stops at once, with others it runs on."""
        load, now_us = job.load, self.now_us
        assert load is not None
        load.ends[load.jobs.index(job)] = End.CANCELLED
        if len(load.jobs) > 1 or load.end_us <= now_us + 1:
            return
        job.output_tokens = (
            job.output_tokens * (now_us - load.start_us) // (load.end_us - load.start_us)
        )
        load.end_us = now_us + 1
        heappush(self._running, (load.end_us, load.number, load))

    def _tell(self, what: str, job: Job) -> None:
        self.moments.append(Moment(what, self.now_us, job))
        if self.on_ended is not None:
            self.on_ended(job)


def _until(heap: list[tuple[int, int, T]], now_us: int) -> list[T]:
    found = []
    while heap and heap[0][0] <= now_us:
        found.append(heappop(heap)[2])
    return found
