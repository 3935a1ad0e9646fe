"""Ranges of request partitions, read with one client: what is wanted, and little beside.

A shard's memory is rebuilt from requests that are still waiting, and between two of them
millions may stand that have ended. So what is read is said by range: gaps are read through
when that is cheaper than beginning anew behind them, longer ones are jumped over. What a
client delivers beyond what is wanted is kept for later, up to a limit.

What belongs here: which offsets to read, from which client. What does not: what they mean.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from pyroaring import BitMap64

from schemas.log import Bounds, Log, Partition, PositionLostError, Reader, Record, UnavailableError

#: Records in one poll: few enough to be still in the processor's cache when they are decoded.
POLL_RECORDS = 1_000
#: A gap up to which records are read and dropped; a new client costs about as much.
JUMP_RECORDS = 20_000
#: A gap up to which two ranges are told as one: so few records cost less than a range.
MERGE_RECORDS = 256
#: Records of a partition that are kept beyond what is wanted of it.
AHEAD_MAX = 20_000
#: How long polls may wait in vain, together, before the log counts as away.
SILENT_S_MAX = 30.0

_PLACE = itemgetter(0, 1)
_OFFSET = itemgetter(2)


def ranges_of(offsets: BitMap64, gap: int = MERGE_RECORDS) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) that cover the offsets, with no gap inside longer than `gap`."""
    if not offsets:
        return
    start = stop = offsets[0]
    for low, high in _dense(offsets, 0, len(offsets) - 1, gap):
        first = offsets[low]
        if first - stop > gap + 1:
            yield start, stop + 1
            start = first
        stop = offsets[high]
    yield start, stop + 1


def _dense(offsets: BitMap64, low: int, high: int, gap: int) -> Iterator[tuple[int, int]]:
    """Cut places [low, high] into pieces that certainly have no longer gap inside."""
    if offsets[high] - offsets[low] - (high - low) <= gap:
        yield low, high
        return
    middle = (low + high) // 2
    yield from _dense(offsets, low, middle, gap)
    yield from _dense(offsets, middle + 1, high, gap)


class LostRangeError(Exception):
    """Records that are wanted are not in the log; the message names the place and both ranges."""


class _Wanted:
    """What is wanted of one partition, and how far its client has come."""

    __slots__ = ("ahead", "next", "ranges")

    def __init__(self) -> None:
        self.ranges: deque[tuple[int, int]] = deque()
        self.ahead: list[Record] = []
        self.next: int | None = None  #: offset that the client delivers next; None: not assigned

    @property
    def is_near(self) -> bool:
        """Whether the client as it is assigned comes to what is wanted, and soon."""
        if not self.ranges:
            return True
        return self.next is not None and self.ranges[0][0] <= self.next + JUMP_RECORDS


class Ranges:
    """Reads ranges of any number of partitions, each in ascending order.

    Args:
        log: the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._reader: Reader | None = None
        self._wanted: dict[Partition, _Wanted] = {}
        self._open = 0  #: partitions of which anything is wanted
        self._is_stale = False  #: the client delivers of a partition that nobody wants any more
        self._silent_s = 0.0

    @property
    def is_wanting(self) -> bool:
        """Whether anything wanted has not been returned yet."""
        return self._open > 0

    def want(self, partition: Partition, start: int, stop: int) -> None:
        """Add a range above all that were wanted of the partition before."""
        if start >= stop:
            return
        wanted = self._wanted.get(partition)
        if wanted is None:
            wanted = self._wanted[partition] = _Wanted()
        if not wanted.ranges:
            self._open += 1
        elif wanted.ranges[-1][1] == start:
            start = wanted.ranges.pop()[0]
        wanted.ranges.append((start, stop))

    def passed(self, partition: Partition, stop: int) -> bool:
        """Whether all that is wanted of the partition below `stop` was returned."""
        wanted = self._wanted.get(partition)
        return wanted is None or not wanted.ranges or wanted.ranges[0][0] >= stop

    def poll(self, timeout_s: float) -> list[tuple[Partition, list[Record]]]:
        """Records that are wanted, by partition, each list in the order of offsets.

        Raises:
            LostRangeError: the log does not hold what is wanted.
            UnavailableError: it does not answer.
        """
        found = [
            (partition, records)
            for partition, wanted in self._wanted.items()
            if wanted.ahead and wanted.ranges and (records := self._take(partition, wanted, []))
        ]
        if found or not self._open:
            return found
        if self._is_stale or not all(wanted.is_near for wanted in self._wanted.values()):
            self._assign()
        assert self._reader is not None
        try:
            polled = self._reader.poll(POLL_RECORDS, timeout_s)
        except PositionLostError as error:
            if not self._wanted[error.partition].ranges:
                self._is_stale = True  # nobody wants more of it
                return found
            raise self._lost(error.partition, error.bounds) from error
        self._silent_s = 0.0 if polled else self._silent_s + timeout_s
        if self._silent_s >= SILENT_S_MAX:
            raise UnavailableError(f"the requests in {list(self._wanted)} do not come")
        delivered: dict[Partition, list[Record]] = {}
        for partition, run in groupby(polled, _PLACE):
            if partition in delivered:
                delivered[partition] += run
            else:
                delivered[partition] = list(run)
        for partition, wanted in self._wanted.items():
            if wanted.next is not None:
                taken = self._take(partition, wanted, delivered.get(partition, []))
                if taken:
                    found.append((partition, taken))
        return found

    def _take(self, partition: Partition, wanted: _Wanted, new: list[Record]) -> list[Record]:
        """Of what is there, what is wanted; the rest above it is kept, up to a limit."""
        assert self._reader is not None
        if new:
            wanted.next = new[-1].offset + 1
        there = wanted.ahead + new if wanted.ahead else new
        taken: list[Record] = []
        at = 0
        ranges = wanted.ranges
        while ranges:
            start, stop = ranges[0]
            low = bisect_left(there, start, lo=at, key=_OFFSET)
            at = bisect_left(there, stop, lo=low, key=_OFFSET)
            taken = there[low:at] if not taken else taken + there[low:at]
            if at == len(there) and not self._has_passed(partition, wanted, stop):
                if at > low:
                    ranges[0] = (there[at - 1].offset + 1, stop)
                break
            ranges.popleft()
            if not ranges:
                self._open -= 1
        wanted.ahead = there[at:]
        if len(wanted.ahead) > AHEAD_MAX:
            wanted.ahead, wanted.next = [], None
            self._is_stale = True
        return taken

    def _has_passed(self, partition: Partition, wanted: _Wanted, stop: int) -> bool:
        assert self._reader is not None
        if wanted.next is None:
            return False
        return wanted.next >= stop or self._reader.reached(partition, stop)

    def _assign(self) -> None:
        """Begin anew, with what is wanted and at its first offset."""
        self.close()
        self._is_stale = False
        self._reader = reader = self._log.reader()
        positions: dict[Partition, int] = {}
        for partition, wanted in self._wanted.items():
            wanted.ahead, wanted.next = [], None
            if not wanted.ranges:
                continue
            bounds = reader.bounds(partition)
            start, stop = wanted.ranges[0][0], wanted.ranges[-1][1]
            if start < bounds.low or stop > bounds.end:
                raise self._lost(partition, bounds)
            positions[partition] = wanted.next = start
        reader.assign(positions)

    def _lost(self, partition: Partition, bounds: Bounds) -> LostRangeError:
        ranges = self._wanted[partition].ranges
        return LostRangeError(
            f"{partition[0]}[{partition[1]}]: offsets {ranges[0][0]}..{ranges[-1][1]} are needed, "
            f"the log holds {bounds.low}..{bounds.end}"
        )

    def close(self) -> None:
        """Free the client."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
