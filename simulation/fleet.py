"""A fleet under faults: schedulers and workers that start, fail, leave and come back.

Where a `World` is one scheduler and workers that live on, a `Fleet` has any number of both,
each with a clock and a log of its own, and an agenda of what else happens. Like a `World` it
is one thread and one seed: `step` moves the clock to the next thing that happens and lets
everybody take turns until all are quiet.

What belongs here: lives, time, the order of turns. What does not: what is drawn
(simulation.draw), what may never happen (simulation.invariants).
"""

import heapq
from collections.abc import Callable

from adapters.memory import CommitFault, MemoryLog
from adapters.memory_groups import SESSION_TIMEOUT_MS
from schemas.codec import decode_header
from schemas.log import TRANSACTION_TIMEOUT_MS, FencedError, Partition
from schemas.policy import Policy
from schemas.records import Pause, Result, Resume
from schemas.topics import Topics
from simulation.door import Arrival, Door, Place
from simulation.process import At, Fleetmate, Ground, Process, SchedulerProcess, WorkerProcess
from simulation.process_log import Call, Killed
from simulation.world import EPOCH_MS, TURNS_MAX, Served, Silence, VirtualClock
from workers.engine import EngineBatch

#: After a fault somebody may wait without saying until when, for at most so long: a fenced
#: worker joins anew after 15 s, a group passes the silent over after 6.
TROUBLED_MS = 20_000
#: How far the clock moves then: twice as far with each step in which nobody did anything.
TICK_MS = 10
TICK_MS_MAX = 1_280
#: What a process is called whose name another has by now.
OLD = " (the old one)"


class Fleet:
    """Processes by name, on one log. `on_served` hears of every result once."""

    def __init__(self, policy: Policy, prefix: str = "sim") -> None:
        self.policy = policy
        self.clock = VirtualClock()
        self.silence = Silence()
        self.log = MemoryLog(self.clock)
        self.topics = Topics(prefix)
        self.log.ensure_topics(self.topics.of(policy))
        self.door = Door(self.log, self.topics, policy)
        self.processes: dict[str, Process] = {}
        self.served: list[Served] = []
        self.places: dict[str, list[Place]] = {}  #: by id: where it was published
        self.poison: set[str] = set()  #: ids that kill the worker that runs them
        self.events: list[tuple[int, str]] = []  #: what happened, for people
        self.tell: Callable[[str], None] = lambda _what: None
        self.on_served: Callable[[Served], None] = lambda _served: None
        self.back_after_ms: Callable[[], int] = lambda: 0  #: how long who was killed stays away
        self.on_settled: Callable[[], None] = lambda: None
        self.at: At = lambda _process, _call: None  #: what happens at a step, see Chaos
        self._ground = Ground(self.log, self.topics, self.clock, self.silence)
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._entries = 0
        self._changes = 0
        self._troubled_ms = EPOCH_MS
        self._tick_ms = TICK_MS
        self._depth = 0
        self._results = self.log.reader()
        self._results.assign(
            {(self.topics.results, number): 0 for number in range(policy.topology.buckets)}
        )
        self.publish(policy)

    # --- what comes from outside

    def publish(self, policy: Policy) -> None:
        """Publish a policy."""
        self.policy = policy
        self.door.publish(policy)
        self._changes += 1

    def submit(self, arrival: Arrival) -> None:
        """Publish a request now, under the id that it names."""
        place = self.door.submit(arrival, arrival.id, self.clock.now_ms())
        self.places.setdefault(arrival.id, []).append(place)
        self._changes += 1

    def cancel(self, place: Place) -> None:
        """Cancel what stands at a place."""
        self.door.cancel(place)
        self._changes += 1

    def say(self, record: Pause | Resume) -> None:
        """Pause or resume."""
        self.door.tell(record)
        self._changes += 1

    def hang(self, partition: Partition, for_ms: int) -> None:
        """A stranger's transaction: what comes behind it is seen when it ends, if not before.

        Its own record is aborted, and leaves a gap.
        """
        stranger = self.log.transactional(f"stranger.{self._entries}")
        stranger.init()
        stranger.begin()
        stranger.send(*partition, b"never seen")

        def end() -> None:
            self._changes += 1
            stranger.abort()

        self.note(f"a transaction hangs in {partition[0]}[{partition[1]}] for {for_ms} ms")
        self.trouble()
        if for_ms < TRANSACTION_TIMEOUT_MS:
            self.after(for_ms, end)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Put something on the agenda."""
        self._entries += 1
        at_ms = self.clock.now_ms() + delay_ms
        heapq.heappush(self._agenda, (at_ms, self._entries, action))

    def note(self, what: str) -> None:
        """Keep for the story."""
        passed_ms = self.clock.now_ms() - EPOCH_MS
        self.events.append((passed_ms, what))
        self.tell(f"{passed_ms:>8} ms  {what}")

    def trouble(self, for_ms: int = TROUBLED_MS) -> None:
        """Somebody may wait for something that no agenda knows: look often for a while."""
        self._troubled_ms = max(self._troubled_ms, self.clock.now_ms() + for_ms)
        self._tick_ms = TICK_MS
        self._changes += 1

    # --- lives

    @property
    def schedulers(self) -> list[SchedulerProcess]:
        """Those that live."""
        return [p for p in self.processes.values() if isinstance(p, SchedulerProcess)]

    @property
    def workers(self) -> list[WorkerProcess]:
        """Those that live."""
        return [p for p in self.processes.values() if isinstance(p, WorkerProcess)]

    def start_scheduler(self, name: str) -> None:
        """Start a scheduler, or another in the place of one of the same name."""
        self._start(SchedulerProcess(name, self._ground, self._at))

    def start_worker(self, name: str, spec: Fleetmate) -> None:
        """Start a worker, or another in the place of one of the same name."""
        self._start(WorkerProcess(name, self._ground, self._at, spec, self._engine_starts))

    def _at(self, process: Process, call: Call) -> CommitFault | None:
        return None if process.is_spared else self.at(process, call)

    def _start(self, process: Process) -> None:
        self.processes[process.name] = process
        self.trouble()

    def kill(self, name: str, back_after_ms: int | None = 0) -> None:
        """Kill -9; another takes its name `back_after_ms` later, None: nobody does."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.log.fall_silent()
        self.trouble()
        if name.endswith(OLD):
            back_after_ms = None
        back = "and stays away" if back_after_ms is None else f"back after {back_after_ms} ms"
        self.note(f"{name} is killed, {back}")
        if back_after_ms is not None:
            self.after(back_after_ms, lambda: self._bring_back(name, process))

    def _bring_back(self, name: str, gone: Process) -> None:
        if name in self.processes:
            return
        if isinstance(gone, WorkerProcess):
            self.start_worker(name, gone.spec)
        else:
            self.start_scheduler(name)

    def deafen(self, name: str, for_ms: int, *, replace: bool = False) -> None:
        """A process hears nothing of its group: it goes on with what it held, for a while.

        With `replace` another process has its name meanwhile; the first ends when it hears.
        """
        process = self.processes.get(name)
        if process is None:
            return
        process.log.is_deaf = True
        process.log.fall_silent()
        self.trouble(for_ms + TROUBLED_MS)
        self.note(f"{name} is cut off from its group for {for_ms} ms")
        if replace and not name.endswith(OLD):
            del self.processes[name]
            self.kill(name + OLD, None)
            process.name = name + OLD
            self.processes[process.name] = process
            self._bring_back(name, process)

        def hear() -> None:
            process.log.is_deaf = False
            self.trouble()

        self.after(for_ms, hear)

    def leave(self, name: str, grace_ms: int = 500) -> None:
        """A clean stop: a worker ends what runs for up to `grace_ms`, then leaves."""
        process = self.processes.get(name)
        if isinstance(process, WorkerProcess) and process.leaves_by_ms is None:
            process.service.stop()
            process.leaves_by_ms = self.clock.now_ms() + grace_ms
            self.after(grace_ms, self.trouble)
            self.note(f"{name} stops")
        elif isinstance(process, SchedulerProcess) and not process.is_turning:
            del self.processes[name]
            process.is_spared = True
            process.service.close()
            self.note(f"{name} stops")
        self.trouble(grace_ms + TROUBLED_MS)

    def suspend(self, process: Process, for_ms: int) -> None:
        """Stop a process in the middle of its turn while the others go on: called from inside."""
        if self._depth:
            return
        self._depth += 1
        process.is_suspended = True
        process.log.fall_silent()
        self.trouble(for_ms + TROUBLED_MS)
        self.note(f"{process.name} is suspended for {for_ms} ms")
        until_ms = self.clock.now_ms() + for_ms
        while self.clock.now_ms() < until_ms:
            self.step(until_ms)
        process.is_suspended = False
        self._depth -= 1
        if self.processes.get(process.name) is not process:
            raise Killed(process.name)

    def _engine_starts(self, worker: WorkerProcess, batch: EngineBatch, service_ms: int) -> None:
        deadly = [r.id for r in batch.requests if r.id in self.poison]
        if not deadly:
            return

        def die() -> None:
            if self.processes.get(worker.name) is worker and not worker.is_turning:
                self.note(f"{', '.join(deadly)} kills its worker")
                self.kill(worker.name)

        self.after(service_ms // 2, die)

    # --- time

    def settle(self) -> bool:
        """Let everybody take turns at this instant until all are quiet; was anything done?"""
        did = False
        for _ in range(TURNS_MAX):
            busy = False
            for process in list(self.processes.values()):
                busy |= self._turn(process)
            did |= busy
            if not busy:
                self._observe()
                self.on_settled()
                return did
        raise RuntimeError(f"the services never come to rest at {self.clock.now_ms()}")

    def _turn(self, process: Process) -> bool:
        if process.is_turning or process.seen == self._changes:
            return False
        if self.processes.get(process.name) is not process:  # gone while another was suspended
            return False
        before = process.log.changes
        process.is_turning = True
        try:
            busy = process.turn()
        except Killed:
            if self.processes.get(process.name) is process:
                self.kill(process.name, self.back_after_ms())
            return True
        except FencedError as error:  # its name has another process by now
            self.note(f"{process.name} ends: {error}")
            if self.processes.get(process.name) is process:
                del self.processes[process.name]
            process.log.fall_silent()
            self.trouble()
            return True
        finally:
            process.is_turning = False
        if isinstance(process, WorkerProcess):
            self._see_off(process)
        self._changes += process.log.changes - before
        if not busy:
            process.seen = self._changes
        return busy

    def _see_off(self, worker: WorkerProcess) -> None:
        """End a worker that stops and is done, or has no more time."""
        by_ms = worker.leaves_by_ms
        if by_ms is None or self.processes.get(worker.name) is not worker:
            return
        if worker.service.is_idle or self.clock.now_ms() >= by_ms:
            del self.processes[worker.name]
            worker.is_spared = True
            worker.service.close()
            self.trouble(SESSION_TIMEOUT_MS + TROUBLED_MS)

    def next_ms(self) -> int | None:
        """When something happens next by itself; None: nothing ever will."""
        times = [self._agenda[0][0]] if self._agenda else []
        for process in self.processes.values():
            at_ms = None if process.is_suspended else process.next_ms()
            times += [at_ms] if at_ms is not None else []
        return min(times, default=None)

    @property
    def agenda_is_empty(self) -> bool:
        """Nothing is planned any more."""
        return not self._agenda

    def step(self, until_ms: int | None = None) -> None:
        """Move to the next instant, at most to `until_ms`, and settle."""
        now_ms = self.clock.now_ms()
        at_ms = self.next_ms()
        tick_ms = now_ms + self._tick_ms
        if at_ms is None or at_ms <= now_ms:
            at_ms = tick_ms
        elif now_ms < self._troubled_ms:
            at_ms = min(at_ms, tick_ms)
        at_ms = at_ms if until_ms is None else min(at_ms, until_ms)
        self.clock.move_to(at_ms)
        self._changes += 1
        while self._agenda and self._agenda[0][0] <= self.clock.now_ms():
            heapq.heappop(self._agenda)[2]()
        did = self.settle()
        self._tick_ms = TICK_MS if did else min(2 * self._tick_ms, TICK_MS_MAX)

    def _observe(self) -> None:
        while records := self._results.poll(10_000, 0.0):
            for record in records:
                result: Result = decode_header(record, Result)
                served = Served(self.clock.now_ms(), result)
                self.served.append(served)
                self.on_served(served)
