"""A worker: one member of a pool's group, a `Lane` for each partition that it is given.

The group decides who serves a lane, the lane's transactional id proves it. A fenced lane is
not taken again while the group still says that it is ours: either the group takes it away
(we were a zombie), or, when it does not, we leave the group and join anew.

Stepped by `turn`; loops, signals and threads belong to the process (`fairlane`), or to the
simulation.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from schemas.log import FencedError, Log, LogError, Membership, Producer
from schemas.topics import Topics
from workers.lane import Lane
from workers.names import LaneNames, members
from workers.phase import Phase
from workers.ports import Clock, Meter, Notes, SlotsFactory
from workers.waiting import is_held

#: A group takes a zombie's lane away within its session timeout; if we are fenced and keep
#: the lane for longer than this, it is the other one who is wrong: join anew.
FENCED_REJOIN_MS = 15_000
#: A group that does not answer is asked again after so long.
REJOIN_MS = 1_000
#: While engines run or several lanes are held, a turn waits this long for something to do:
#: it is what a result or another lane's batch may have to wait.
BUSY_WAIT_S = 0.003
#: With one lane and nothing running only a record of that lane can be news: it ends the wait.
IDLE_WAIT_S = 0.05
#: With several lanes the wait is on one of them; a quiet worker looks at the others this often
#: (3 ms take 8 % of a core with four lanes, 30 ms about 2, the clients' own threads included) ...
QUIET_WAIT_S = 0.03
#: ... once nothing has happened for this long.
QUIET_AFTER_MS = 200


class WorkerSettings(NamedTuple):
    """The pool that is served; `instance` names a static member that survives a restart."""

    pool: str
    instance: str | None = None


class WorkerService:
    """Serves lanes of one pool. All methods are called from one thread."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        settings: WorkerSettings,
        slots: SlotsFactory,
        clock: Clock,
        meter: Meter,
        notes: Notes,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        """Join nothing yet.

        Args:
            log: Where batches come from and results go to.
            topics: Names of the deployment's topics.
            settings: Which pool, and as whom.
            slots: Makes the slots of a lane (by its number) when it is gained.
            clock: The time.
            meter: Counters and gauges.
            notes: Where people read what happened.
            wait: Sleeps for so many seconds; without it a turn never waits (simulation).
        """
        self._log = log
        self._topics = topics
        self._settings = settings
        self._slots = slots
        self._clock = clock
        self._meter = meter
        self._notes = notes
        self._wait_for = wait
        self._advice: Producer = log.producer()
        self._membership: Membership | None = None
        self._lanes: dict[int, Lane] = {}
        self._fenced_ms: int | None = None
        self._join_at_ms = 0
        self._did_ms = 0
        self._waits_on = 0
        self._is_stopping = False
        self._is_closed = False

    @property
    def lanes(self) -> dict[int, Phase]:
        """Lanes in our hands and where each is."""
        return {number: lane.phase for number, lane in sorted(self._lanes.items())}

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits to be committed, wherever the lanes are."""
        return not any(lane.has_work for lane in self._lanes.values())

    def turn(self) -> bool:
        """Do what can be done now; returns whether something was done.

        Waits a few milliseconds when there is nothing (`BUSY_WAIT_S`, `IDLE_WAIT_S`).
        Raises FencedError when another member joined as our `instance`: end the process.
        """
        if self._is_closed:
            return False
        did = self._follow_group(0)
        for lane in list(self._lanes.values()):
            did = lane.turn() or did
        self._look_for_fences()
        did = did or self._wait()
        if did:
            self._did_ms = self._clock.now_ms()
        return did

    def stop(self) -> None:
        """Start no batch any more; turns still finish and commit what runs."""
        self._is_stopping = True
        for lane in self._lanes.values():
            lane.stop()

    def close(self, grace_ms: int = 0) -> None:
        """Stop cleanly: finish and commit what runs for up to `grace_ms`, then leave the group.

        What runs longer, and what never started, the lanes' next holders hand back.
        """
        if self._is_closed:
            return
        self.stop()
        until_ms = self._clock.now_ms() + grace_ms
        with suppress(FencedError):
            while not self.is_idle and self._clock.now_ms() < until_ms:
                self.turn()
        self._is_closed = True
        for number in tuple(self._lanes):
            self._lanes.pop(number).leave()
            self._notes.info("lane_left", pool=self._settings.pool, lane=number)
        self._leave()
        self._advice.close()

    # --- the group

    def _follow_group(self, wait_s: float) -> bool:
        has_joined = False
        try:
            if self._membership is None:
                if self._is_stopping or is_held(self._join_at_ms, self._clock.now_ms(), REJOIN_MS):
                    return False
                topics, pool = self._topics, self._settings.pool
                if not self._log.partitions(topics.batches(pool)):
                    raise LogError(self._unknown_pool())
                self._membership = self._log.membership(
                    members(topics, pool), topics.batches(pool), self._settings.instance
                )
                has_joined = True
            change = self._membership.poll(wait_s)
        except FencedError:
            self._drop(tuple(self._lanes))
            raise
        except LogError as error:
            self._join_anew("worker_group_failed", str(error))
            return True
        if change is None:
            return has_joined
        self._drop(change.lost)
        for number in change.gained:
            self._gain(number)
        self._meter.gauge("worker_lanes", len(self._lanes), pool=self._settings.pool)
        return True

    def _unknown_pool(self) -> str:
        prefix = self._topics.batches("")
        pools = [name.removeprefix(prefix) for name in self._log.topics() if prefix in name]
        known = f"there are {', '.join(sorted(pools))}" if pools else "there is none yet"
        return (
            f"no pool {self._settings.pool!r}, {known}: apply a policy that has it, or name another"
        )

    def _gain(self, number: int) -> None:
        self._drop((number,))
        lane = Lane(
            self._log,
            LaneNames(self._topics, self._settings.pool, number),
            self._slots(number),
            self._advice,
            self._clock,
            self._meter,
            self._notes,
        )
        if self._is_stopping:
            lane.stop()
        self._lanes[number] = lane
        self._notes.info("lane_gained", pool=self._settings.pool, lane=number)

    def _drop(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            lane = self._lanes.pop(number, None)
            if lane is not None:
                lane.drop()
                self._notes.info("lane_lost", pool=self._settings.pool, lane=number)

    def _look_for_fences(self) -> None:
        """Join anew when the group leaves us a lane whose id somebody else holds."""
        if not any(lane.is_fenced for lane in self._lanes.values()):
            self._fenced_ms = None
            return
        now_ms = self._clock.now_ms()
        if self._fenced_ms is None:
            self._fenced_ms = now_ms
        elif not is_held(self._fenced_ms + FENCED_REJOIN_MS, now_ms, FENCED_REJOIN_MS):
            self._join_anew("worker_fenced_but_assigned", "the group did not take the lane away")

    def _join_anew(self, event: str, why: str) -> None:
        self._meter.count("worker_alarms_total", kind=event, pool=self._settings.pool)
        self._notes.warning(event, pool=self._settings.pool, error=why)
        self._drop(tuple(self._lanes))
        self._leave()
        self._fenced_ms = None
        self._join_at_ms = self._clock.now_ms() + REJOIN_MS

    def _leave(self) -> None:
        if self._membership is not None:
            self._membership.close()
            self._membership = None

    # --- waiting

    def _serving(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.phase is Phase.SERVE]

    def _wait(self) -> bool:
        """Wait for something to do where it is likeliest; returns whether it came."""
        if self._wait_for is None:
            return False
        if self._membership is None:
            self._wait_for(IDLE_WAIT_S)
            return False
        serving = self._serving()
        if not serving:
            return self._follow_group(BUSY_WAIT_S if self._lanes else IDLE_WAIT_S)
        if self._is_stopping:  # nothing is read any more, only engines can bring news
            self._wait_for(BUSY_WAIT_S)
            return False
        self._waits_on = (self._waits_on + 1) % len(serving)
        return serving[self._waits_on].turn(self._patience_s())

    def _patience_s(self) -> float:
        """How long a turn may wait on one of the lanes."""
        if not self.is_idle:
            return BUSY_WAIT_S
        if len(self._lanes) == 1:
            return IDLE_WAIT_S
        is_quiet = self._clock.now_ms() - self._did_ms >= QUIET_AFTER_MS
        return QUIET_WAIT_S if is_quiet else BUSY_WAIT_S
