"""Processes of a simulated fleet: the real services, with a clock and a log of their own.

What belongs here: what a process is made of, and its states (runs, suspended, gone). What
does not: when it starts, stops or fails (simulation.fleet), and anything the services decide.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from adapters.memory import CommitFault, MemoryLog
from scheduler.core.batches import due_ms
from scheduler.service import Scheduler
from scheduler.transactions import AtOnce
from schemas.topics import Topics
from simulation.process_log import Call, ProcessLog
from simulation.world import Silence, VirtualClock
from workers.engine import EngineBatch, EngineOutcome
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.service import WorkerService, WorkerSettings
from workers.slots_virtual import VirtualSlots

#: Requests that make a cycle full here: few come at once.
FULL = 2


class SkewedClock:
    """A process's own clock: the world's, and what its own was set to beside it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.skew_ms = 0
        self._clock = clock

    def now_ms(self) -> int:
        """Epoch milliseconds, as this process believes."""
        return self._clock.now_ms() + self.skew_ms


class Ground(NamedTuple):
    """What all processes of a fleet stand on."""

    log: MemoryLog
    topics: Topics
    clock: VirtualClock
    silence: Silence


#: Asked at each step of a process; see ProcessLog.
At = Callable[["Process", Call], CommitFault | None]


class Process:
    """One process. `turn` is its run loop's body; see Scheduler and WorkerService."""

    def __init__(self, name: str, ground: Ground, at: At) -> None:
        self.name = name
        self.clock = SkewedClock(ground.clock)
        self.log = ProcessLog(ground.log, lambda call: at(self, call))
        self.is_suspended = False
        self.is_turning = False
        self.is_spared = False  #: no fault strikes it any more: it is on its way out
        self.seen = -1  #: changes of the log at its last turn that did nothing

    def turn(self) -> bool:
        """One pass; returns whether anything was done."""
        raise AssertionError(self.name)

    def next_ms(self) -> int | None:
        """When it has something to do by itself, on the world's clock; None: never."""
        raise AssertionError(self.name)


class Late:
    """Makes a call when its outcome is asked for: a commit that lands as late as it can."""

    def __init__(self) -> None:
        self._call: Callable[[], None] | None = None

    def start(self, call: Callable[[], None]) -> None:
        """Put the call off."""
        self._call = call

    def wait(self) -> None:
        """Make the call."""
        call, self._call = self._call, None
        if call is not None:
            call()

    def close(self) -> None:
        """Nothing to free."""


class SchedulerProcess(Process):
    """A scheduler. Its cycles are full early, and it goes on while they are committed.

    With an even number the commits land at once and it hears of them late, with an odd one
    they land late.
    """

    def __init__(self, name: str, ground: Ground, at: At) -> None:
        super().__init__(name, ground, at)
        self.service = Scheduler(
            self.log,
            ground.topics,
            clock=self.clock,
            meter=ground.silence,
            notes=ground.silence,
            instance=name,
            idle_wait_s=0.0,
            aside=Late if name[-1:] in "13579" else AtOnce,
            full=FULL,
        )

    def turn(self) -> bool:
        """One pass over its shards."""
        return self.service.turn()

    def next_ms(self) -> int | None:
        """When a batch, a timer or a held request of its shards is due."""
        times = []
        for shard in self.service.shards.values():
            due = due_ms(shard.state)
            times += [due] if due is not None else []
            times += [second * 1000 for second in shard.state.timers]
        return min(times) - self.clock.skew_ms if times else None


class Fleetmate(NamedTuple):
    """A worker's specification: its pool, slots a lane, and how fast its engine is."""

    pool: str
    slots: int = 1
    engine: SimulatedSettings = SimulatedSettings()
    slowness: int = 1


class OnStart(Protocol):
    """Told when an engine starts a batch that will take so long."""

    def __call__(self, worker: "WorkerProcess", batch: EngineBatch, service_ms: int) -> None:
        """Look at it."""


class WatchedEngine:
    """The simulated engine, slower by a factor, with somebody who looks on."""

    def __init__(self, spec: Fleetmate, on_start: Callable[[EngineBatch, int], None]) -> None:
        given, factor = spec.engine, spec.slowness
        self._engine = SimulatedEngine(
            given._replace(
                fixed_ms=given.fixed_ms * factor, per_token_us=given.per_token_us * factor
            )
        )
        self._on_start = on_start

    def service_ms(self, batch: EngineBatch) -> int:
        """How long the batch takes; asked once, when it starts."""
        took_ms = self._engine.service_ms(batch)
        self._on_start(batch, took_ms)
        return took_ms

    def answer(
        self, batch: EngineBatch, cancelled: Callable[[int], bool]
    ) -> tuple[EngineOutcome, ...]:
        """What it ends with."""
        return tuple(self._engine.answer(batch, cancelled))


class WorkerProcess(Process):
    """A worker."""

    def __init__(
        self, name: str, ground: Ground, at: At, spec: Fleetmate, on_start: OnStart
    ) -> None:
        super().__init__(name, ground, at)
        self.spec = spec
        self.leaves_by_ms: int | None = None  #: it stops: nothing new, and gone by then
        self._made: list[VirtualSlots] = []
        engine = WatchedEngine(spec, lambda batch, took_ms: on_start(self, batch, took_ms))

        def slots(_lane: int) -> VirtualSlots:
            # Engines take as long as they take, whatever the process's clock is set to.
            made = VirtualSlots(engine, spec.slots, ground.clock)
            self._made.append(made)
            return made

        self.service = WorkerService(
            self.log,
            ground.topics,
            WorkerSettings(spec.pool, name),
            slots,
            self.clock,
            ground.silence,
            ground.silence,
        )

    def turn(self) -> bool:
        """One pass over its lanes."""
        return self.service.turn()

    def next_ms(self) -> int | None:
        """When its next batch ends."""
        ends = [end for slots in self._made if (end := slots.next_ms()) is not None]
        return min(ends, default=None)
