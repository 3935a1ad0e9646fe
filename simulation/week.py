"""Weeks on the virtual clock: work on five days, idle weekends, a holiday, what brokers delete.

    week 1   work; on Wednesday everything is killed and comes back; a request waits over the
             weekend, because its tenant is paused from Friday to Monday
    weekend  nothing comes; early on Monday everything is killed and comes back
    week 2   work; on Friday everything stops, and stays away for nine days: requests, batches
             and results are deleted meanwhile, and the groups' positions are forgotten
    week 4   work, also for a pool that had none before

With `is_cut` power fails instead: on both Fridays at night, the first time until Monday; and
brokers forget positions after two days, so that lanes lose them while their batches are there.

Brokers clean once an hour: retention, compaction and forgotten positions come from the topics'
own settings and Kafka's defaults. Time in which nothing happens costs nothing: the clock jumps
to the next thing, half an hour at most.

What belongs here: the calendar, and what an idle hour may cost. What does not: the rules
(simulation.invariants) and the fleet.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from adapters.memory import CommitFault
from adapters.memory_retention import POSITIONS_MS
from scheduler.core.snapshot import dump
from scheduler.recovery import RecoveryError, recover
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier, Topology
from schemas.records import VERSION, Pause, Resume
from schemas.topics import DAY_MS, HOUR_MS
from simulation.door import Arrival
from simulation.fleet import Fleet
from simulation.invariants import Judge
from simulation.process import Fleetmate, Process
from simulation.process_log import Call
from simulation.rules import InvariantError, Rule
from simulation.world import EPOCH_MS
from workers.engines.simulated import SimulatedSettings

MINUTE_MS = HOUR_MS // 60
#: Requests of a working day, from eight to six, and what part of them is asked for twice.
REQUESTS_A_DAY = 15
TWICE_PERCENT = 10
#: Nobody may wait longer than from Friday evening to Monday noon.
WAIT_MS_MAX = 80 * HOUR_MS
#: How often something looks at what is idle.
LOOK_MS = 30 * MINUTE_MS
ENGINE = SimulatedSettings(fixed_ms=30, per_token_us=40)
MATES = {"embed-0": "embed", "embed-1": "embed", "chat-0": "chat"}
SCHEDULERS = ("scheduler-0", "scheduler-1")
WORKDAYS = (0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 21, 22, 23)
#: Since when `chat` is asked for, and by what part of the requests.
CHAT_DAY, CHAT_SHARE = 21, 0.3
#: When one tenant is paused until after the weekend: day and hour.
PAUSED = (4, 17)
HOLIDAY = (11, 21)
END_DAY = 24


def policy(version: int = 1) -> Policy:
    """Two pools, each on a shard of its own."""
    return Policy(
        version=version,
        topology=Topology(shards=2),
        tiers=(Tier(name="gold"), Tier(name="bronze")),
        pools=(Pool(name="embed", lanes=2), Pool(name="chat", lanes=1)),
        endpoints=(
            Endpoint(
                name="embed",
                pool="embed",
                cost=CostModel.TOKEN,
                quantum=1_000,
                batch_requests=4,
                batch_wait_ms=10,
                tokens_max=4_000,
                wait_ms_max=WAIT_MS_MAX,
            ),
            Endpoint(name="chat", pool="chat", wait_ms_max=WAIT_MS_MAX),
        ),
        tenants=tuple(
            Tenant(name=name, tiers=("gold", "bronze"), weight=version)
            for name in ("acme", "globex", "initech")
        ),
    )


class Idle(NamedTuple):
    """What was done in hours in which nothing came: by the fleet's clock, and by processes."""

    hours: int
    steps: int
    calls: Counter[Call]

    def fault(self, shards: int, lanes: int) -> str:
        """What looks like a busy loop; "": nothing.

        A shard writes a snapshot an hour; a lane repeats its position and its slots every six,
        which the shard takes in, and moves its own position before the next snapshot. The clock
        stops where somebody looks, and nobody asks to be woken up beside that.
        """
        commits_max = self.hours * shards + 3 * (self.hours * lanes // 6) + 2 * (shards + lanes)
        if self.calls[Call.COMMIT] > commits_max:
            return f"{self.calls[Call.COMMIT]} commits in {self.hours} h, {commits_max} are due"
        steps_max = self.hours * HOUR_MS // LOOK_MS
        if self.steps > steps_max + self.hours:
            return f"the clock stopped {self.steps} times in {self.hours} h, {steps_max} are due"
        polls_max = 4 * self.steps * (shards + lanes + len(MATES) + len(SCHEDULERS))
        if self.calls[Call.POLL] + self.calls[Call.GROUP] > polls_max:
            return f"{self.calls} in {self.steps} steps"
        return ""


class Weeks:
    """The calendar above. `run` plays it; what differs by `seed` is who asks when.

    Args:
        seed: of the requests.
        is_cut: power fails, instead of idle and clean stops.
    """

    def __init__(self, seed: int = 0, *, is_cut: bool = False) -> None:
        self.fleet = Fleet(policy())
        self.judge = Judge(self.fleet.log, self.fleet.topics, self.fleet.policy)
        self.compared = 0  #: how often recovery was compared with memory
        self.remembered_max = 0  #: ids of ended requests in memory, at eight in the morning
        self.idle_hours = 0
        self._idle_steps = 0
        self._idle_calls: Counter[Call] = Counter()
        self._is_idle = False
        self._random = Random(seed)  # noqa: S311 - a simulation
        self._numbered = 0
        self.fleet.at = self._count
        self.fleet.on_settled = self.judge.check
        for name in SCHEDULERS:
            self.fleet.start_scheduler(name)
        for name in MATES:
            self._start_worker(name)
        self._plan(is_cut=is_cut)

    def run(self, tell: Callable[[str], None] | None = None) -> None:
        """Play it to its end. Raises InvariantError."""
        if tell is not None:
            self.fleet.tell = tell
        try:
            self.fleet.settle()
            while not self.fleet.agenda_is_empty:
                self.fleet.step()
                self._idle_steps += self._is_idle
        except (RecoveryError, RuntimeError) as error:
            raise InvariantError(Rule.HALTED, f"{type(error).__name__}: {error}") from error
        self.judge.check_end()
        again = [result.id for result in self.judge.results.values() if result.attempt]
        if again:
            raise InvariantError(Rule.ONE_HAND, f"ran again without cause: {again}")
        topology = self.fleet.policy.topology
        lanes = sum(pool.lanes for pool in self.fleet.policy.pools)
        if fault := self.idle.fault(topology.shards, lanes):
            raise InvariantError(Rule.IDLE, f"a busy loop: {fault}")

    @property
    def idle(self) -> Idle:
        """What idle weekends took so far."""
        return Idle(self.idle_hours, self._idle_steps, self._idle_calls)

    def story(self) -> str:
        """What happened, in a few lines."""
        idle, ends = self.idle, Counter(str(one.end) for one in self.judge.results.values())
        deleted = sum(
            self.fleet.log.reader().bounds((spec.name, number)).low
            for spec in self.fleet.topics.of(self.fleet.policy)
            for number in range(spec.partitions)
        )
        return (
            f"{END_DAY} days, {len(self.judge.ids)} requests: "
            + ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
            + f"\n  {deleted} offsets deleted by retention, recovery compared {self.compared} times"
            + f"\n  {idle.hours} idle hours: {idle.steps} moments, "
            + ", ".join(f"{n} {call.value}" for call, n in sorted(idle.calls.items(), key=str) if n)
        )

    # --- the calendar

    def _plan(self, *, is_cut: bool) -> None:
        at = self._at
        positions_ms = 2 * DAY_MS if is_cut else POSITIONS_MS
        for hour in range(END_DAY * 24):
            at(0, hour, partial(self.fleet.log.clean, positions_ms))
        for look in range(END_DAY * DAY_MS // LOOK_MS):
            self.fleet.after(look * LOOK_MS, lambda: None)
        for day in WORKDAYS:
            self._plan_day(day)
        for day, version in ((1, 2), (3, 3), (9, 4), (22, 5)):
            at(day, 12, partial(self._publish, version))
        at(2, 12.4, partial(self._submit, "acme", "embed", 30 * MINUTE_MS))  # again after that:
        at(2, 12.5, self._kill_all)
        at(*PAUSED, lambda: self._say(Pause(VERSION, "globex", "embed", 0)))
        at(4, 17.5, lambda: self._submit("globex", "embed"))
        at(4, 19, lambda: self.fleet.hang((self.fleet.topics.requests("gold"), 0), 3_000))
        self._plan_idle(5, 7)
        at(7, 8.5, lambda: self._say(Resume(VERSION, "globex", "embed")))
        if is_cut:
            at(4, 23, lambda: self._kill_all(None))
            at(7, 7.8, self._start_all)
            at(HOLIDAY[0], 23, lambda: self._kill_all(None))
        else:
            at(7, 7.8, self._kill_all)
            at(HOLIDAY[0], 18, lambda: self._submit("acme", "embed"))
            at(HOLIDAY[0], 18.1, self._stop_all)
        at(HOLIDAY[1], 7.5, self._start_all)
        for day in range(END_DAY):
            at(day, 7, self.compare)
        at(END_DAY, 0, self.compare)

    def _plan_day(self, day: int) -> None:
        for _ in range(REQUESTS_A_DAY):
            hour = 8 + 10 * self._random.random()
            tenant = self._random.choice(("acme", "globex", "initech"))
            is_chat = day >= CHAT_DAY and self._random.random() < CHAT_SHARE
            if tenant != "globex" or day != PAUSED[0] or hour < PAUSED[1]:
                endpoint = "chat" if is_chat else "embed"
                self._at(day, hour, partial(self._submit, tenant, endpoint))
        self._at(day, 8, self._remember)

    def _plan_idle(self, first_day: int, stop_day: int) -> None:
        """From a day on to the one before another, nothing comes."""
        for day in (first_day, stop_day):
            self._at(day, 0, self._turn_idle)
        self.idle_hours += (stop_day - first_day) * 24

    def _turn_idle(self) -> None:
        self._is_idle = not self._is_idle

    def _at(self, day: int, hour: float, action: Callable[[], None]) -> None:
        self.fleet.after(day * DAY_MS + int(hour * HOUR_MS), action)

    # --- what happens

    def _count(self, process: Process, call: Call) -> CommitFault | None:  # noqa: ARG002
        self._idle_calls[call] += self._is_idle
        return None

    def _submit(self, tenant: str, endpoint: str, again_ms: int = 0) -> None:
        random = self._random
        self._numbered += 1
        arrival = Arrival(
            0,
            tenant,
            endpoint,
            random.choice(("gold", "bronze")),
            b"x" * random.randrange(1, 2_000),
            id=f"r{self._numbered:04d}",
        )
        self.fleet.submit(arrival)
        if not again_ms and random.randrange(100) < TWICE_PERCENT:
            again_ms = random.randrange(1, 5 * MINUTE_MS)
        if again_ms:
            self.fleet.after(again_ms, lambda: self.fleet.submit(arrival))

    def _say(self, record: Pause | Resume) -> None:
        self.fleet.say(record)

    def _publish(self, version: int) -> None:
        self.judge.follow(policy(version))
        self.fleet.publish(policy(version))
        self.fleet.note(f"policy {version}")

    def _start_worker(self, name: str) -> None:
        self.fleet.start_worker(name, Fleetmate(MATES[name], 2, ENGINE))

    def _kill_all(self, back_after_ms: int | None = 5_000) -> None:
        for name in list(self.fleet.processes):
            self.fleet.kill(name, back_after_ms)

    def _stop_all(self) -> None:
        for name in list(self.fleet.processes):
            self.fleet.leave(name)

    def _start_all(self) -> None:
        for name in SCHEDULERS:
            self.fleet.start_scheduler(name)
        for name in MATES:
            self._start_worker(name)
        self.fleet.note("everybody is back")

    # --- looking

    def _remember(self) -> None:
        for process in self.fleet.schedulers:
            for shard in process.service.shards.values():
                self.remembered_max = max(self.remembered_max, len(shard.state.recent))

    def compare(self) -> None:
        """Read every shard back from the log beside its owner's memory. Raises InvariantError."""
        fleet = self.fleet
        for process in fleet.schedulers:
            for shard in process.service.shards.values():
                self.compared += 1
                found = recover(fleet.log, fleet.topics, shard.shard, fleet.silence)
                if dump(found.state) != dump(shard.state):
                    day = (fleet.clock.now_ms() - EPOCH_MS) // DAY_MS
                    raise InvariantError(Rule.RECOVERY, f"shard {shard.shard} on day {day}")
