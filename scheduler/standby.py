"""Warm copies of shards that others own, for the moment at which they don't any more.

A member of the group that was given no shard reads along: it folds decisions as they are
committed, so that to take over it has to read what came last only. It writes nothing and
decides nothing; who owns a shard is the group's and the transactional id's business.
"""

from collections.abc import Callable, Collection

from scheduler.fold import Fold
from scheduler.ports import Clock, Notes
from scheduler.story import RecoveryError
from schemas.log import LogError

#: Shards that one standby reads along: each copy holds the metadata of all that waits in it.
COPIES_MAX = 4
#: A copy that failed is begun anew so much later.
RETRY_MS = 5_000
#: A copy that would bring all copies above what may wait in a process is not made for so long.
CROWDED_MS = 60_000
#: How long a slice waits for records that must come.
SLICE_S = 0.01

MakeFold = Callable[[int], Fold]


class Standbys:
    """Copies by shard.

    Args:
        make: an empty fold of a shard.
        clock, notes: outside things.
        live_max: requests that all copies together may hold.
    """

    def __init__(self, make: MakeFold, clock: Clock, notes: Notes, live_max: int) -> None:
        self._live_max = live_max
        self._make = make
        self._clock = clock
        self._notes = notes
        self._copies: dict[int, Fold] = {}
        self._level: set[int] = set()  #: those that were level with their log once
        self._not_before_ms: dict[int, int] = {}

    def turn(self, shards: Collection[int]) -> bool:
        """Read each copy one slice further; returns whether anything came.

        Args:
            shards: the ones to copy; of more than COPIES_MAX the first.
        """
        wanted = list(shards)[:COPIES_MAX]
        for number in [number for number in self._copies if number not in wanted]:
            self._drop(number)
        busy = False
        for number in wanted:
            busy |= self._turn(number)
        return busy

    def _turn(self, number: int) -> bool:
        if self._clock.now_ms() < self._not_before_ms.get(number, 0):
            return False
        copy = self._copies.get(number)
        if copy is None:
            copy = self._copies[number] = self._make(number)
        try:
            came = copy.turn(0.0 if copy.is_level else SLICE_S)
        except (RecoveryError, LogError) as error:
            self._notes.warning("a standby's copy is begun anew", shard=number, error=str(error))
            self._drop(number)
            self._not_before_ms[number] = self._clock.now_ms() + RETRY_MS
            return True
        if sum(len(other.state.ids) for other in self._copies.values()) > self._live_max:
            self._notes.warning("too many wait for a copy", shard=number, most=self._live_max)
            self._drop(number)
            self._not_before_ms[number] = self._clock.now_ms() + CROWDED_MS
            return True
        if not came and copy.is_level and number not in self._level:
            self._level.add(number)
            live = len(copy.state.ids)
            self._notes.info("standing by", shard=number, seq=copy.state.seq, live=live)
        return came

    def take(self, number: int) -> Fold | None:
        """Hand a copy over to who owns the shard now; None: there is none."""
        self._level.discard(number)
        return self._copies.pop(number, None)

    def close(self) -> None:
        """Drop all copies."""
        for number in list(self._copies):
            self._drop(number)

    def _drop(self, number: int) -> None:
        copy = self.take(number)
        if copy is not None:
            copy.close()
