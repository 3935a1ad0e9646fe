"""A whole deployment in one thread, under one seed, on a clock that nobody waits for.

The real services stand on `adapters.memory`; only time, engines and arrivals are made up.
`World.step` moves the clock to the next thing that happens and lets every service take its
turns until all are quiet, always in the same order: one seed is one history, to the bit.

What belongs here: the clock, the services' lives (start, crash, restart), the order of
turns, and observing results. What does not: who asks for what (simulation.tenants), and
anything that the services decide.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from adapters.memory import MemoryLog
from scheduler.core.batches import due_ms
from scheduler.core.snapshot import dump
from scheduler.service import Scheduler
from schemas.codec import decode_header
from schemas.policy import Policy
from schemas.records import Result
from schemas.topics import Topics
from simulation.door import Arrival, Door
from simulation.process_log import Killed
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.service import WorkerService, WorkerSettings
from workers.slots_virtual import VirtualSlots

__all__ = ["Arrival", "Served", "Silence", "VirtualClock", "Workers", "World"]

#: Where every simulated history begins: 2025-01-01T00:00:00Z, in epoch milliseconds.
EPOCH_MS = 1_735_689_600_000
#: Turns of one service at one instant; more means that two of them chase each other.
TURNS_MAX = 100_000
#: How far the clock moves when something is overdue.
BACKOFF_TICK_MS = 10
#: Longest history that `run` waits for: a day.
RUN_MS_MAX = 86_400_000


class VirtualClock:
    """Time that moves when told."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return self._now_ms

    def move_to(self, now_ms: int) -> None:
        """Move on; never back."""
        self._now_ms = max(self._now_ms, now_ms)


class Silence:
    """Notes and meter of a simulation: `warnings` are kept for tests, the rest is dropped."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **facts: object) -> None:
        """Drop it."""

    def warning(self, event: str, **facts: object) -> None:
        """Keep it."""
        self.warnings.append((event, facts))

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Drop it."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""


class Workers(NamedTuple):
    """Workers of a pool: how many processes, slots of each lane, and their engine's times."""

    pool: str
    processes: int = 1
    slots: int = 1
    engine: SimulatedSettings = SimulatedSettings()


class Served(NamedTuple):
    """One terminal result, as observed."""

    at_ms: int
    result: Result


class _WorkerProcess:
    """A worker service and the slots it made: their ends are what wakes the world."""

    def __init__(self, world: "World", spec: Workers, name: str) -> None:
        self.spec = spec
        self.name = name
        self._slots: list[VirtualSlots] = []
        engine = SimulatedEngine(spec.engine)

        def slots(_lane: int) -> VirtualSlots:
            made = VirtualSlots(engine, spec.slots, world.clock)
            self._slots.append(made)
            return made

        self.service = WorkerService(
            world.log,
            world.topics,
            WorkerSettings(spec.pool, name),
            slots,
            world.clock,
            world.silence,
            world.silence,
        )

    def next_ms(self) -> int | None:
        """When its next batch ends."""
        ends = [end for slots in self._slots if (end := slots.next_ms()) is not None]
        return min(ends, default=None)


class World:
    """A deployment under `policy`. `arrivals` come by themselves; `submit` adds one now."""

    def __init__(self, policy: Policy, workers: Iterable[Workers]) -> None:
        self.policy = policy
        self.topics = Topics("sim")
        self.clock = VirtualClock()
        self.silence = Silence()
        self.log = MemoryLog(self.clock)
        self.served: list[Served] = []
        self.submitted = 0
        self.on_served: Callable[[Served], None] | None = None
        self._arrivals: list[tuple[int, int, Arrival]] = []
        self._numbered = 0
        self.log.ensure_topics(self.topics.of(policy))
        self._door = Door(self.log, self.topics, policy)
        self._producer = self._door.producer
        self.publish_policy(policy)
        self._results = self.log.reader()
        self._results.assign(
            {(self.topics.results, number): 0 for number in range(policy.topology.buckets)}
        )
        self.scheduler = self._new_scheduler()
        self.workers = [
            _WorkerProcess(self, spec, f"{spec.pool}-{number}")
            for spec in workers
            for number in range(spec.processes)
        ]

    # --- lives

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self.log,
            self.topics,
            clock=self.clock,
            meter=self.silence,
            notes=self.silence,
            instance="scheduler-0",
            idle_wait_s=0.0,
        )

    def publish_policy(self, policy: Policy) -> None:
        """Publish another policy; the services follow it."""
        self.policy = policy
        self._door.publish(policy)

    def crash_scheduler(self) -> None:
        """Kill -9 the scheduler and start another: nothing is closed, nothing is said."""
        self.scheduler = self._new_scheduler()

    def crash_worker(self, number: int) -> None:
        """Likewise a worker."""
        old = self.workers[number]
        self.workers[number] = _WorkerProcess(self, old.spec, old.name)

    def state_dump(self) -> bytes:
        """The scheduler's live state, canonically."""
        return dump(self.scheduler.shards[0].state)

    # --- traffic

    def expect(self, arrivals: Iterable[Arrival]) -> None:
        """Add requests that come by themselves when their time is there."""
        for arrival in arrivals:
            self._numbered += 1
            heapq.heappush(self._arrivals, (EPOCH_MS + arrival.at_ms, self._numbered, arrival))

    def submit(self, arrival: Arrival) -> str:
        """Publish a request now, as the ingress does; returns its id."""
        self.submitted += 1
        request_id = arrival.id or f"r{self.submitted:07d}"
        self._door.submit(arrival, request_id, self.clock.now_ms())
        return request_id

    # --- time

    def settle(self) -> None:
        """Let every service take turns at this instant until all are quiet."""
        for _ in range(TURNS_MAX):
            busy = self._turn_scheduler()
            for number in range(len(self.workers)):
                busy |= self._turn_worker(number)
            if not busy:
                self._observe()
                return
        raise RuntimeError(f"the services never come to rest at {self.clock.now_ms()}")

    def _turn_scheduler(self) -> bool:
        try:
            return self.scheduler.turn()
        except Killed:
            self.crash_scheduler()
            return True

    def _turn_worker(self, number: int) -> bool:
        try:
            return self.workers[number].service.turn()
        except Killed:
            self.crash_worker(number)
            return True

    def next_ms(self) -> int | None:
        """When something happens next by itself; None: nothing ever will."""
        times = [self._arrivals[0][0]] if self._arrivals else []
        for shard in self.scheduler.shards.values():
            due = due_ms(shard.state)
            times += [due] if due is not None else []
            expiry = shard.state.next_expiry_ms()
            times += [expiry] if expiry is not None else []
        times += [end for worker in self.workers if (end := worker.next_ms()) is not None]
        return min(times, default=None)

    def step(self) -> bool:
        """Move to the next instant and settle; False when nothing is left to happen."""
        at_ms = self.next_ms()
        if at_ms is None:
            if len(self.served) == self.submitted:
                return False
            at_ms = 0
        if at_ms <= self.clock.now_ms():  # overdue: a service waits for its back-off to pass
            at_ms = self.clock.now_ms() + BACKOFF_TICK_MS
        self.clock.move_to(at_ms)
        while self._arrivals and self._arrivals[0][0] <= self.clock.now_ms():
            self.submit(heapq.heappop(self._arrivals)[2])
        self.settle()
        return True

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until every request that came has ended (or `until` says so)."""
        self.settle()
        end_ms = self.clock.now_ms() + RUN_MS_MAX
        while self._arrivals or len(self.served) < self.submitted:
            if self.clock.now_ms() > end_ms:
                missing = self.submitted - len(self.served)
                raise RuntimeError(f"{missing} requests never end: {self.silence.warnings[-3:]}")
            if until is not None and until():
                return
            self.step()

    def _observe(self) -> None:
        while records := self._results.poll(10_000, 0.0):
            for record in records:
                result: Result = decode_header(record, Result)
                served = Served(self.clock.now_ms(), result)
                self.served.append(served)
                if self.on_served is not None:
                    self.on_served(served)
