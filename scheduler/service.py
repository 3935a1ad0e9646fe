"""The scheduler process: which shards it owns, and what happens when one fails.

A group on `decisions` decides who owns which shard; the shard's transactional id fences.
`turn` does one pass; loops, signals and threads belong to the caller.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from zlib import crc32

from scheduler.backlog import Backlog
from scheduler.bodies import USUAL, Bodies, Limits
from scheduler.core.mismatch import StateMismatchError
from scheduler.fold import Fold
from scheduler.ports import Aside, Board, Clock, Meter, Notes
from scheduler.shard import FULL, Shard
from scheduler.standby import COPIES_MAX, Standbys
from scheduler.story import RecoveryError
from scheduler.transactions import AtOnce
from schemas.log import FencedError, Log, LogError, Membership, TooLargeError
from schemas.topics import Topics

#: A mismatch right after a recovery at the same decision is corruption, not a lost race.
MISMATCHES_MAX = 2
#: A group that does not answer is asked again after so long.
REJOIN_MS = 1_000
#: Pause before a shard is rebuilt again; doubles with each failure in a row.
REBUILD_MS = 50
REBUILD_MS_MAX = 2_000
#: Who is fenced hears from the group whose the shard is, within a few heartbeats. Joining again
#: before that, under a name that another process has by now, would evict the owner.
FENCED_MS = 5_000


class Scheduler:
    """Owns shards while the group says so.

    Args:
        log: the log.
        topics: names of the deployment.
        clock, meter, notes: outside things.
        instance: name of this process as a static member; it survives a restart, so the
            shard comes back at once after kill -9. Two processes need two names.
        idle_wait_s: how long a turn may wait for input; 0 under a virtual clock.
        limits: what all its shards together may hold in memory.
        recovering: entered while a shard is taken over: millions of objects that stay are made.
        aside: makes what commits a shard's full cycles while it goes on.
        full: requests taken in or picked that make a cycle full.
        board: where the backlog is published; None: nowhere.
    """

    def __init__(
        self,
        log: Log,
        topics: Topics,
        *,
        clock: Clock,
        meter: Meter,
        notes: Notes,
        instance: str | None = None,
        idle_wait_s: float = 0.05,
        limits: Limits = USUAL,
        recovering: Callable[[], AbstractContextManager[None]] = nullcontext,
        aside: Callable[[], Aside] = AtOnce,
        full: int = FULL,
        board: Board | None = None,
    ) -> None:
        self._board = board
        self._log = log
        self._topics = topics
        self._clock = clock
        self._meter = meter
        self._notes = notes
        self._instance = instance
        self._idle_wait_s = idle_wait_s
        self._limits = limits
        self._recovering = recovering
        self._standbys = Standbys(self._fold, clock, notes, limits.live_max)
        self._turned = False  #: whether the last turn, of shards or of copies, did anything
        self._aside = aside
        self._full = full
        self._membership: Membership | None = None
        self.shards: dict[int, Shard] = {}
        self._mismatches: dict[int, tuple[int, int]] = {}
        self._fenced: dict[int, int] = {}  #: shards lost to a fence, and when
        self._failures: dict[int, tuple[int, int]] = {}
        self._join_at_ms = 0
        self._count = 0  #: of shards; fixed once there is a policy
        self._waits_for = ""  #: what start-up waits for, noted once

    def turn(self) -> bool:
        """One pass over the owned shards; returns whether anything was decided.

        Raises RecoveryError when no shard can go on (the message says what to do) and
        FencedError when the instance's name is taken. Everything else is mended here.
        """
        if not self._follow_group():
            return False
        if not self.shards:
            self._turned = self._stand_by()
            return self._turned
        wait_s = self._idle_wait_s / len(self.shards)
        if self._turned and len(self.shards) > 1:
            wait_s = 0.0  # who has nothing to do must not keep those waiting that have
        busy = False
        for number in list(self.shards):
            if number in self.shards:  # not lost while another one was taken over
                busy |= self._turn(number, wait_s)
        self._turned = busy
        return busy

    def _follow_group(self) -> bool:
        """Take over and drop shards as the group says; False while there is no group."""
        if self._clock.now_ms() < self._join_at_ms:
            return False
        try:
            if self._membership is None and not self._join():
                return False
            assert self._membership is not None
            busy = bool(self.shards) or self._turned
            change = self._membership.poll(0.0 if busy else self._idle_wait_s)
        except FencedError as error:
            message = f"another process runs as instance {self._instance!r}: name each its own"
            raise FencedError(message) from error
        except LogError as error:
            self._note_once(f"the group does not answer, joining anew: {error}")
            self._rejoin()
            self._join_at_ms = self._clock.now_ms() + REJOIN_MS
            return False
        if change is not None:
            for lost in change.lost:
                self._drop(lost)
            for gained in change.gained:
                self._own(gained)
            if self.shards:
                self._standbys.close()
        now_ms = self._clock.now_ms()
        if any(now_ms - since_ms >= FENCED_MS for since_ms in self._fenced.values()):
            self._rejoin()  # no word came: whoever fenced us does not hold the shard
        return True

    def _join(self) -> bool:
        if self._log.partitions(self._topics.decisions) == 0:
            self._note_once("no policy is published yet: run 'fairlane policy apply FILE'")
            return False
        self._waits_for = ""
        group = f"{self._topics.prefix}.schedulers"
        self._membership = self._log.membership(group, self._topics.decisions, self._instance)
        return True

    def _note_once(self, what: str) -> None:
        if what != self._waits_for:
            self._notes.warning(what)
            self._waits_for = what

    def _own(self, number: int) -> None:
        self._drop(number)
        self._notes.info("shard assigned", shard=number)
        self.shards[number] = Shard(
            self._log,
            self._topics,
            number,
            clock=self._clock,
            meter=self._meter,
            notes=self._notes,
            limits=self._limits,
            warm=self._standbys.take(number),
            aside=self._aside(),
            full=self._full,
            backlog=Backlog(self._board),
        )
        self._share_out()

    def _share_out(self) -> None:
        """Give each shard its part of what the process may hold in memory."""
        count = max(1, len(self.shards))
        for shard in self.shards.values():
            shard.limits = Limits(*(limit // count for limit in self._limits))

    def _stand_by(self) -> bool:
        """Read the shards of others along; which of many first follows from our name."""
        count = self._count = self._count or self._log.partitions(self._topics.decisions)
        first = crc32((self._instance or "").encode()) % max(1, count)
        return self._standbys.turn([(first + n) % count for n in range(count)])

    def _fold(self, number: int) -> Fold:
        share = self._limits.body_bytes // max(1, min(self._count, COPIES_MAX))
        return Fold(self._log, self._topics, number, self._notes, Bodies(self._log, share))

    def _turn(self, number: int, wait_s: float) -> bool:
        """Let one shard go on; mend what can be mended by reading its log again."""
        shard = self.shards[number]
        failures, not_before_ms = self._failures.get(number, (0, 0))
        if self._clock.now_ms() < not_before_ms:
            return False
        try:
            if not shard.ready:
                shard.forget()
                with self._recovering():
                    shard.take_over(self._others(number))
                return True
            is_busy = shard.turn(wait_s)
        except FencedError as error:
            self._notes.warning("fenced: another process owns it", shard=number, error=str(error))
            self._drop(number)
            self._fenced[number] = self._clock.now_ms()
        except RecoveryError as error:
            self._halt(number, error)
        except (StateMismatchError, LogError) as error:
            if self._is_hopeless(shard, error):
                self._halt(number, RecoveryError(f"{error} (again after a recovery)"))
                return True
            self._notes.warning("rebuilding the shard", shard=number, error=str(error))
            self._meter.count("scheduler_rebuilds")
            pause_ms = min(REBUILD_MS << failures, REBUILD_MS_MAX) if failures else 0
            self._failures[number] = (min(failures + 1, 10), self._clock.now_ms() + pause_ms)
        else:
            self._failures.pop(number, None)
            return is_busy
        return True

    def _others(self, number: int) -> Callable[[], bool] | None:
        """What lets the other shards go on while one is taken over, half of the time at most."""
        others = [other for other, shard in self.shards.items() if other != number and shard.ready]
        if not others:
            return None
        not_before_ms = 0

        def turn() -> bool:
            nonlocal not_before_ms
            begun_ms = self._clock.now_ms()
            if begun_ms < not_before_ms:
                return False  # also when the clock was set back: nothing may wait for it here
            busy = False
            for other in others:
                shard = self.shards.get(other)
                if shard is not None and shard.ready:
                    busy |= self._turn(other, 0.0)
            ended_ms = self._clock.now_ms()
            not_before_ms = ended_ms + max(0, ended_ms - begun_ms)
            return busy

        return turn

    def _halt(self, number: int, error: RecoveryError) -> None:
        """Stop one shard for good; the others go on, and with none left the process ends."""
        self._notes.warning("shard halted", shard=number, error=str(error))
        self._meter.count("scheduler_halted")
        self._drop(number)
        if not self.shards:
            raise error

    def _is_hopeless(self, shard: Shard, error: Exception) -> bool:
        """What fails again after a recovery, at the same decision, is no lost race."""
        if not isinstance(error, StateMismatchError | TooLargeError):
            return False
        seq, count = self._mismatches.get(shard.shard, (-2, 0))
        count = count + 1 if abs(seq - shard.state.seq) <= 1 else 1  # the next may be decided
        self._mismatches[shard.shard] = (shard.state.seq, count)
        return count > MISMATCHES_MAX

    def _rejoin(self) -> None:
        """Give everything up; what is ours will be assigned again."""
        for number in [*self.shards, *self._fenced]:
            self._drop(number)
        if self._membership is not None:
            membership, self._membership = self._membership, None
            with suppress(LogError):  # a group that is away can't be left either
                membership.close()

    def _drop(self, number: int) -> None:
        self._fenced.pop(number, None)
        shard = self.shards.pop(number, None)
        if shard is not None:
            shard.close()
            self._share_out()

    def close(self) -> None:
        """Leave the group for good, so that others take over at once, and free the clients."""
        try:
            for shard in self.shards.values():
                shard.conclude()
        except Exception as error:  # noqa: BLE001 - whoever takes over reads a little more
            self._notes.warning("a shard was left as it was", error=str(error))
        for number in [*self.shards, *self._fenced]:
            self._drop(number)
        if self._membership is not None:
            with suppress(LogError):
                self._membership.leave()
        self._rejoin()
        self._standbys.close()
