"""The scheduler process: which shards it owns, and what happens when one fails.

A group on `decisions` decides who owns which shard; the shard's transactional id fences.
`turn` does one pass; loops, signals and threads belong to the caller.
"""

from scheduler.core.apply import StateMismatchError
from scheduler.ports import Clock, Meter, Notes
from scheduler.recovery import RecoveryError
from scheduler.shard import Shard
from schemas.log import FencedError, Log, LogError, Membership, UnavailableError
from schemas.topics import Topics

#: A mismatch right after a recovery at the same decision is corruption, not a lost race.
MISMATCHES_MAX = 2
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
    ) -> None:
        self._log = log
        self._topics = topics
        self._clock = clock
        self._meter = meter
        self._notes = notes
        self._instance = instance
        self._idle_wait_s = idle_wait_s
        self._membership: Membership | None = None
        self.shards: dict[int, Shard] = {}
        self._mismatches: dict[int, tuple[int, int]] = {}
        self._fenced: dict[int, int] = {}  #: shards lost to a fence, and when
        self._waits_for = ""  #: what start-up waits for, noted once

    def turn(self) -> bool:
        """One pass over the owned shards; returns whether anything was decided.

        Raises RecoveryError or StateMismatchError when no shard can go on: the message says
        what to do. Everything else is mended here.
        """
        membership = self._join()
        if membership is None:
            return False
        wait_s = self._idle_wait_s
        try:
            change = membership.poll(0.0 if self.shards else wait_s)
        except FencedError as error:
            message = f"another process runs as instance {self._instance!r}: name each its own"
            raise FencedError(message) from error
        if change is not None:
            for lost in change.lost:
                self._drop(lost)
            for gained in change.gained:
                self._own(gained)
        now_ms = self._clock.now_ms()
        if any(now_ms - since_ms >= FENCED_MS for since_ms in self._fenced.values()):
            self._rejoin()  # no word came: whoever fenced us does not hold the shard
        busy = False
        for number in list(self.shards):
            busy |= self._turn(number, wait_s / len(self.shards))
        return busy

    def _join(self) -> Membership | None:
        if self._membership is None:
            try:
                is_there = self._log.partitions(self._topics.decisions) > 0
            except UnavailableError as error:
                self._note_once(f"the log does not answer: {error}")
                return None
            if not is_there:
                self._note_once("no policy is published yet: run 'fairlane policy apply FILE'")
                return None
            self._waits_for = ""
            group = f"{self._topics.prefix}.schedulers"
            self._membership = self._log.membership(group, self._topics.decisions, self._instance)
        return self._membership

    def _note_once(self, what: str) -> None:
        if what != self._waits_for:
            self._notes.warning(what)
            self._waits_for = what

    def _own(self, number: int) -> None:
        self._drop(number)
        self.shards[number] = Shard(
            self._log,
            self._topics,
            number,
            clock=self._clock,
            meter=self._meter,
            notes=self._notes,
        )

    def _turn(self, number: int, wait_s: float) -> bool:
        """Let one shard go on; mend what can be mended by reading its log again."""
        shard = self.shards[number]
        try:
            if shard.ready:
                return shard.turn(wait_s)
            shard.take_over()
        except FencedError as error:
            self._notes.warning(
                "fenced: another process owns the shard", shard=number, error=str(error)
            )
            self._drop(number)
            self._fenced[number] = self._clock.now_ms()
        except StateMismatchError as error:
            self._count_mismatch(number, error)
            self._notes.warning("mismatch: rebuilding the shard", shard=number, error=str(error))
        except LogError as error:
            self._notes.warning(
                "log in doubt: rebuilding the shard", shard=number, error=str(error)
            )
            self._meter.count("scheduler_rebuilds")
        except RecoveryError as error:
            self._halt(number, error)
        return True

    def _halt(self, number: int, error: RecoveryError) -> None:
        """Stop one shard for good; the others go on, and with none left the process ends."""
        self._notes.warning("shard halted", shard=number, error=str(error))
        self._meter.count("scheduler_halted")
        self._drop(number)
        if not self.shards:
            raise error

    def _count_mismatch(self, number: int, error: StateMismatchError) -> None:
        seq, count = self._mismatches.get(number, (-1, 0))
        count = count + 1 if seq == error.seq else 1
        self._mismatches[number] = (error.seq, count)
        if count > MISMATCHES_MAX:
            raise error

    def _rejoin(self) -> None:
        """Give everything up; what is ours will be assigned again."""
        for number in [*self.shards, *self._fenced]:
            self._drop(number)
        if self._membership is not None:
            self._membership.close()
            self._membership = None

    def _drop(self, number: int) -> None:
        self._fenced.pop(number, None)
        shard = self.shards.pop(number, None)
        if shard is not None:
            shard.close()

    def close(self) -> None:
        """Leave the group and free the clients."""
        self._rejoin()
