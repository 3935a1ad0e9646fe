"""Where a new holder of a lane starts: what it reads after the init, and never before it.

Everything here is only true for whoever called `init` on the lane's transactional id before:
from then on no other holder can commit, so neither progress nor what it stands on changes
behind our back. Read before the init, a predecessor's last commit is missed and its batches
run twice (docs/spec: mutants READ_FIRST, PROG_FIRST, END_FIRST).
"""

from typing import NamedTuple

from schemas.codec import DecodeError, decode_value
from schemas.log import Bounds, Log, Reader, UnavailableError
from schemas.records import Finished, HandedBack, WorkerRecord
from schemas.unended import unended
from workers.core.progress import Progress, decode_progress
from workers.names import LaneNames
from workers.ports import Clock, Notes

#: Records a poll while progress is rebuilt.
_READ_MAX = 1_000
#: A poll waits so long for the log while progress is rebuilt, seconds.
_READ_S = 0.1
#: Rebuilding is given up (and tried again) when the log says nothing for so long.
REBUILD_MS = 30_000


class LaneError(Exception):
    """A lane can't be served; the message names the place and the way out."""


class Start(NamedTuple):
    """What lies before a new holder.

    Records below `end` were the predecessor's: those that `progress` does not know as ended,
    and whose number is not in `numbers`, are handed back. Reading starts at `position`.
    """

    progress: Progress
    position: int
    end: int
    numbers: frozenset[int] = frozenset()


def read_start(log: Log, reader: Reader, names: LaneNames, clock: Clock, notes: Notes) -> Start:
    """Read progress and the lane's end. Call it after the init of the lane's id.

    Raises:
        LaneError: the lane was truncated or recreated below its progress, or the brokers have
            left a transaction of the predecessor without an end.
        ProgressError: the progress can't be read.
        UnavailableError: the log does not answer.
    """
    if (left := unended(log, names.workers)) is not None:
        raise LaneError(left)
    commit = reader.committed(names.group, [names.batches])[names.batches]
    bounds = reader.bounds(names.batches)
    if commit is None:
        return _without_progress(log, names, bounds, clock, notes)
    progress = decode_progress(commit, f"group {names.group}, {names.place}")
    if progress.upto > bounds.end:
        raise LaneError(
            f"{names.place} ends at {bounds.end}, but its holder was at {progress.upto} already: "
            "the topic was truncated or recreated. Stop the pool's workers and delete the offset "
            f"of group {names.group} for this partition to start at the lane's beginning"
        )
    if progress.low < bounds.low:
        gone = [offset for offset in progress.open if offset < bounds.low]
        notes.warning(
            "lane_lost_by_retention", place=names.place, low=bounds.low, open_batches_gone=gone
        )
    return Start(progress, max(progress.low, bounds.low), bounds.end)


def _without_progress(
    log: Log, names: LaneNames, bounds: Bounds, clock: Clock, notes: Notes
) -> Start:
    """Start at the beginning: nobody held the lane yet, or its progress is lost.

    A lane that has records has had a holder in most cases (capacity is told by one), and
    brokers forget the offsets of a group that is silent for a week. So what the lane's
    holders said is read: what they ended must not be handed back again.
    """
    start = Start(Progress(bounds.low), bounds.low, bounds.end)
    if bounds.low == bounds.end:
        return start
    numbers = _ended_numbers(log, names, clock, notes)
    if numbers or bounds.low > 0:
        notes.warning(
            "lane_progress_missing",
            place=names.place,
            group=names.group,
            starts_at=bounds.low,
            ended_batches_found=len(numbers),
        )
    return start._replace(numbers=numbers)


def _ended_numbers(log: Log, names: LaneNames, clock: Clock, notes: Notes) -> frozenset[int]:
    numbers: set[int] = set()
    reader = log.reader()
    try:
        bounds = reader.bounds(names.workers)
        if bounds.low == bounds.end:
            return frozenset()
        reader.assign({names.workers: bounds.low})
        heard_ms = clock.now_ms()
        while not reader.reached(names.workers, bounds.end):
            records = reader.poll(_READ_MAX, _READ_S)
            if records:
                heard_ms = clock.now_ms()
            elif clock.now_ms() - heard_ms > REBUILD_MS:
                raise UnavailableError(f"{names.workers[0]}[{names.number}] does not answer")
            for record in records:
                try:
                    said = decode_value(record, WorkerRecord)
                except DecodeError as error:
                    notes.warning("worker_record_unreadable", error=str(error))
                    continue
                if isinstance(said, Finished | HandedBack):
                    numbers.add(said.number)
    finally:
        reader.close()
    return frozenset(numbers)
