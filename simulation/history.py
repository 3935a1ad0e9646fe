"""One seed, one history: a fleet under everything that was drawn, judged at every step.

What belongs here: playing what `draw` chose, and telling it. What does not: the rules
(simulation.invariants) and the fleet itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from scheduler.core.snapshot import dump
from scheduler.recovery import RecoveryError, recover
from scheduler.shard import Shard
from schemas.records import VERSION, Pause, Resume
from simulation.door import Arrival
from simulation.draw import Chosen, Halt, draw, draw_policy, often
from simulation.faults import Chaos
from simulation.fleet import Fleet
from simulation.invariants import Judge, Observer
from simulation.process import Process, SchedulerProcess
from simulation.rules import InvariantError, Rule
from simulation.tenants import Agent, stream
from simulation.world import EPOCH_MS, Served

#: Virtual time that everything has after the last that was planned: the longest wait of a
#: request is two minutes, and a lane without a holder is taken again within seconds.
LAST_MS = 300_000
#: Attempts and pauses of what kills its workers may take longer than this only by mistake.
STEPS_MAX = 50_000
#: How often recovery is compared with memory beside the moments that are drawn.
COMPARED_PERCENT = 2
#: How far a process's clock is set forward or back.
CLOCK_MS = (-90_000, -2_000, -300, 300, 2_000, 60_000, 240_000)


class History:
    """The history of a seed. `run` plays it to its end, or to the first broken rule."""

    def __init__(
        self, seed: int, observers: Iterable[Observer] = (), chosen: Chosen | None = None
    ) -> None:
        """`chosen` is played instead of what the seed stands for."""
        self.seed = seed
        self.chosen = chosen or draw(seed)
        self.fleet = Fleet(self.chosen.policy)
        self.judge = Judge(self.fleet.log, self.fleet.topics, self.chosen.policy, observers)
        self.steps = 0
        self.compared = 0
        self._random = stream(seed, "play")
        self._agents: dict[str, Agent] = {}
        self._turns = 0
        self._end_ms = 0  #: when everything has to be over; 0: not everything has come yet
        self.chaos = Chaos(
            stream(seed, "chaos"),
            self.chosen.mean,
            self.chosen.kinds,
            self.fleet.suspend,
            self.fleet.clock.now_ms,
        )
        self._play()

    def run(self, tell: Callable[[str], None] | None = None) -> None:
        """Play it; `tell` hears of every event as it happens.

        Raises:
            InvariantError: a rule is broken.
        """
        if tell is not None:
            self.fleet.tell = tell
        try:
            self.fleet.settle()
            while not self._is_over():
                self.fleet.step()
                self.steps += 1
                if self.fleet.agenda_is_empty:
                    self._heal()
                    self._end_ms = self._end_ms or self.fleet.clock.now_ms() + LAST_MS
                is_late = 0 < self._end_ms < self.fleet.clock.now_ms()
                if is_late or self.steps > STEPS_MAX:
                    break
            self.fleet.settle()
            self.judge.check_end()
            self.compare()
        except (RecoveryError, RuntimeError) as error:
            raise InvariantError(Rule.HALTED, f"{type(error).__name__}: {error}") from error

    def story(self) -> str:
        """What this history is, in a few lines."""
        policy = self.chosen.policy
        ends: dict[str, int] = {}
        for result in self.judge.results.values():
            ends[result.end] = ends.get(result.end, 0) + 1
        endpoints = "; ".join(
            f"{e.name}: cost {e.cost}, quantum {e.quantum}, batches of {e.batch_requests}"
            for e in policy.endpoints
        )
        shards = policy.topology.shards
        decisions = sum(shard.seq for shard in self.judge.shards.values())
        lines = (
            (
                f"seed {self.seed}: {len(self.judge.ids)} requests, {len(policy.tenants)} tenants,"
                f" {len(policy.tiers)} tiers, {shards} shards, {len(self.chosen.mates)} workers,"
                f" {self.chosen.schedulers} schedulers"
            ),
            endpoints,
            (
                f"{self.steps} steps, {self._passed_ms() / 1000:.1f} s of virtual time, "
                f"{len(self.fleet.events)} events, {len(self.chaos.history)} faults at steps, "
                f"{decisions} decisions"
            ),
            "ends: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())),
        )
        return "\n  ".join(lines)

    def _passed_ms(self) -> int:
        return self.fleet.clock.now_ms() - EPOCH_MS

    def _is_over(self) -> bool:
        return self.fleet.agenda_is_empty and self.judge.is_over and not self.chaos.is_on

    # --- playing

    def _play(self) -> None:
        chosen, fleet = self.chosen, self.fleet
        fleet.poison = set(chosen.poison)
        fleet.at = self.chaos.at
        fleet.back_after_ms = lambda: self._random.choice((0, 0, 200, 3_000, 12_000))
        fleet.on_served = self._served
        self.chaos.tell = fleet.note
        fleet.on_settled = self._settled
        for number in range(chosen.schedulers):
            fleet.start_scheduler(f"scheduler-{number}")
        for number, mate in enumerate(chosen.mates):
            fleet.start_worker(f"{mate.pool}-{number}", mate)
        cancelled = dict(chosen.cancelled)
        for index, arrival in enumerate(chosen.arrivals):
            self._plan(arrival, cancelled.get(index))
        for index, later_ms in chosen.again:
            arrival = chosen.arrivals[index]
            fleet.after(arrival.at_ms + later_ms, partial(fleet.submit, arrival))
        for agent in chosen.agents:
            self._ask(agent, agent.first)
        for at_ms, event in chosen.events:
            fleet.after(at_ms, partial(self._happens, event))
        for halt in chosen.halts:
            fleet.after(halt.at_ms, partial(self._pause, halt))

    def _plan(self, arrival: Arrival, cancel_ms: int | None) -> None:
        fleet = self.fleet

        def comes() -> None:
            if cancel_ms is not None and cancel_ms < 0:
                fleet.cancel(fleet.door.next_place(arrival))
            fleet.submit(arrival)

        fleet.after(arrival.at_ms, comes)
        if cancel_ms is not None and cancel_ms >= 0:
            fleet.after(
                arrival.at_ms + cancel_ms,
                lambda: fleet.cancel(self._random.choice(fleet.places[arrival.id])),
            )

    def _pause(self, halt: Halt) -> None:
        fleet, who = (
            self.fleet,
            f"{halt.tenant or 'everybody'} at {halt.endpoint or 'every endpoint'}",
        )
        until_ms = fleet.clock.now_ms() + halt.lasts_ms if halt.lasts_ms else 0
        fleet.say(Pause(VERSION, halt.tenant, halt.endpoint, until_ms))
        fleet.note(f"{who} is paused" + (f" for {halt.lasts_ms} ms" if halt.lasts_ms else ""))

        def resume() -> None:
            fleet.say(Resume(VERSION, halt.tenant, halt.endpoint))
            fleet.note(f"{who} is resumed")

        if halt.resumed_ms is not None:
            fleet.after(halt.resumed_ms, resume)

    def _ask(self, agent: Agent, arrival: Arrival) -> None:
        """The next turn of an agent."""
        self._turns += 1
        self._end_ms = 0
        arrival = arrival._replace(id=f"turn-{self._turns:03d}")
        self._agents[arrival.id] = agent
        wait_ms = max(0, arrival.at_ms - self._passed_ms())
        self.fleet.after(wait_ms, lambda: self.fleet.submit(arrival))

    def _served(self, served: Served) -> None:
        agent = self._agents.pop(served.result.id, None)
        arrival = agent.after(self._passed_ms()) if agent else None
        if agent and arrival:
            self._ask(agent, arrival)

    def _settled(self) -> None:
        self.judge.check()
        if often(self._random, COMPARED_PERCENT):
            self.compare()

    def _happens(self, event: str) -> None:
        fleet, random = self.fleet, self._random
        what, _, whom = event.partition(" ")
        if event.startswith(("hang", "garbage")):
            self._disturb(event)
            return
        if event == "policy":
            policy = draw_policy(random, fleet.policy.version + 1, fleet.policy)
            fleet.log.ensure_topics(fleet.topics.of(policy))
            self.judge.follow(policy)
            fleet.publish(policy)
            fleet.note(f"policy {policy.version}")
            return
        if event in ("snapshot", "compare"):
            self._look(event)
            return
        processes: Sequence[Process] = (
            fleet.workers if whom.endswith("worker") else fleet.schedulers
        )
        if what == "join":
            self._join(whom)
        elif processes:
            self._strike(what, random.choice(processes))

    def _strike(self, what: str, process: Process) -> None:
        fleet, random = self.fleet, self._random
        match what:
            case "kill":
                fleet.kill(process.name, random.choice((0, 0, 500, 5_000)))
            case "lose":
                fleet.kill(process.name, random.choice((None, 40_000)))
            case "deafen":
                fleet.deafen(process.name, random.choice((500, 7_000, 12_000)))
            case "replace":
                fleet.deafen(process.name, random.choice((0, 500, 7_000)), replace=True)
            case "leave":
                fleet.leave(process.name, random.choice((0, 50, 2_000)))
            case _:  # "clock"
                process.clock.skew_ms += random.choice(CLOCK_MS)
                fleet.note(f"the clock of {process.name} is {process.clock.skew_ms} ms off")
                fleet.trouble()

    def _join(self, whom: str) -> None:
        fleet = self.fleet
        name = f"{whom}-{fleet.clock.now_ms() - EPOCH_MS}"
        if whom == "scheduler":
            fleet.start_scheduler(name)
        else:
            fleet.start_worker(name, self._random.choice(self.chosen.mates))
        fleet.note(f"{name} joins")

    def _disturb(self, event: str) -> None:
        fleet, random = self.fleet, self._random
        policy = fleet.policy
        topology = policy.topology
        topic = fleet.topics.control
        partition = random.randrange(topology.shards)
        if not event.endswith("control"):
            topic = fleet.topics.requests(random.choice(policy.tiers).name)
            partition = random.randrange(topology.shards * topology.spread)
        if event.startswith("hang"):
            fleet.hang((topic, partition), random.choice((50, 800, 3_000, 9_000)))
        else:
            fleet.door.producer.send(topic, partition, b"\x00no request")
            fleet.note(f"garbage in {topic}[{partition}]")

    def _look(self, event: str) -> None:
        if event == "compare":
            self.compare()
            return
        for process, shard in self._owned():
            process.is_spared = True
            shard.write_snapshot()
            process.is_spared = False
            self.fleet.note(f"a snapshot of shard {shard.shard}")

    def _heal(self) -> None:
        """No fault any more, clocks are right, and of every kind of process one lives on."""
        fleet = self.fleet
        for process in fleet.processes.values():
            process.clock.skew_ms = 0
        self.chaos.is_on = False
        if not fleet.schedulers:
            fleet.start_scheduler("scheduler-0")
        staying = {w.spec.pool for w in fleet.workers if w.leaves_by_ms is None}
        for number, mate in enumerate(self.chosen.mates):
            if mate.pool not in staying and f"{mate.pool}-{number}" not in fleet.processes:
                fleet.start_worker(f"{mate.pool}-{number}", mate)
                staying.add(mate.pool)

    # --- recovery

    def _owned(self) -> Iterator[tuple[SchedulerProcess, Shard]]:
        """Shards at rest, and whose they are: what is at an older decision is a zombie's."""
        for process in self.fleet.schedulers:
            for shard in list(process.service.shards.values()):
                is_current = shard.state.seq == self.judge.shards[shard.shard].seq
                if shard.ready and is_current and not process.log.is_deaf:
                    yield process, shard

    def compare(self) -> None:
        """Read every shard back from the log beside its owner's memory. Raises InvariantError."""
        for process, shard in self._owned():
            self.compared += 1
            recovered = recover(self.fleet.log, self.fleet.topics, shard.shard, self.fleet.silence)
            if dump(recovered.state) != dump(shard.state):
                case = f"shard {shard.shard} of {process.name} at decision {shard.state.seq}"
                raise InvariantError(Rule.RECOVERY, case)
