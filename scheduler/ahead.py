"""What to read again: which bodies are needed soon, and which pieces of the log hold them.

Theory. Requests of one queue leave in its order, whatever the other queues do. So after a
queue's first missing body the next ones are known, and how far to read ahead for a queue
follows from how often it is picked (`Pace`). Then all queues run out at about the same time,
and each piece of the log is read about once for each group of queues that go through it
together, whatever their number.

Nothing is read here; sizes are those of the metadata.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduler.core.pick.order import KEY_MASK
from scheduler.core.state import State
from scheduler.core.tenants import OFFSET_BITS, OFFSET_MASK, Live, Status, TenantQueue
from schemas.log import Partition

#: What Python's objects around one body take: the body's, its bytes', its key's, its entry's.
BODY_OVERHEAD = 240

#: Picks by which the pace of queues is judged, about: rounds of many tenants are long.
PACE_PICKS = 100_000

#: By partition: the first offset to read, and the one behind the last.
Pass = dict[Partition, tuple[int, int]]


@dataclass(slots=True)
class Spans:
    """Pieces of the log, ascending in each partition."""

    pieces: dict[Partition, list[tuple[int, int]]]
    needed_bytes: int  #: of what they are read for
    read_bytes: int  #: of all that stands there, by estimate

    def passes(self) -> Iterator[Pass]:
        """What to read at once: one piece of each partition."""
        for rank in range(max(map(len, self.pieces.values()), default=0)):
            yield {
                partition: pieces[rank]
                for partition, pieces in self.pieces.items()
                if rank < len(pieces)
            }


@dataclass(slots=True)
class Resident:
    """What is in memory of a queue."""

    orders: list[int] = field(default_factory=list)  #: see `scheduler.core.pick.order`
    size: int = 0  #: bytes, with `BODY_OVERHEAD`


class Pace:
    """How often each queue is picked, of late."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[TenantQueue, int] = {}

    def count(self, lives: Iterable[Live]) -> None:
        """Note picks."""
        counts = self._counts
        for live in lives:
            queue = live.queue
            counts[queue] = counts.get(queue, 0) + 1

    def fade(self) -> None:
        """Halve what was noted when it is much; who was not picked for long is forgotten."""
        if sum(self._counts.values()) > PACE_PICKS:
            self._counts = {queue: n // 2 for queue, n in self._counts.items() if n > 1}

    def following(self, state: State, most: int) -> dict[int, int]:
        """Keys and sizes of what is picked next, if it goes on like this.

        Args:
            state: where requests are looked up.
            most: bytes in memory, shared out to the queues by their pace.
        """
        total = sum(self._counts.values())
        found: dict[int, int] = {}
        for queue, count in self._counts.items():
            left = most * count // total
            for live in in_order(state, queue):
                left -= live.size + BODY_OVERHEAD
                if left < 0:
                    break
                found[live.key] = live.size
        return found

    def cut(
        self, queues: Mapping[TenantQueue, Resident], most: int
    ) -> tuple[list[int], dict[TenantQueue, int]]:
        """Keys of what goes last, and for each queue that has some of it the first such order.

        The rest has `most` bytes, shared out by pace; who needs less leaves it to the others
        (water-filling: who would be full first comes first).

        Args:
            queues: what is in memory.
            most: bytes that may stay.
        """
        paces = {queue: self._counts.get(queue, 0) + 1 for queue in queues}
        total = sum(paces.values())
        late: list[int] = []
        horizons: dict[TenantQueue, int] = {}
        for queue, resident in sorted(queues.items(), key=lambda q: q[1].size / paces[q[0]]):
            share = most * paces[queue] // total
            total -= paces[queue]
            if resident.size <= share:
                most -= resident.size
                continue
            most -= share
            orders = sorted(resident.orders)
            keep = len(orders) * share // resident.size
            horizons[queue] = orders[keep]
            late += [order & KEY_MASK for order in orders[keep:]]
        return late, horizons


def in_order(state: State, queue: TenantQueue) -> Iterator[Live]:
    """A queue's requests as they will go, without taking the heap apart.

    The next of a heap is a child of one that was met: so n of a million cost n log n.
    """
    heap = queue.heap
    size = len(heap)
    front = [(heap[0], 0)] if heap else []
    while front:
        order, at = heappop(front)
        for child in (2 * at + 1, 2 * at + 2):
            if child < size:
                heappush(front, (heap[child], child))
        live = state.find(order & KEY_MASK)
        if live is not None and live.status == Status.WAITING and live.queue is queue:
            yield live


def spans_of(state: State, sizes: dict[int, int], merge_bytes: int) -> Spans:
    """Pieces of the log that hold these keys.

    Args:
        state: tells the partitions.
        sizes: bytes by key.
        merge_bytes: two are read as one when no more stands between them, by estimate.
    """
    needed = sum(sizes.values())
    mean = max(1, needed // max(1, len(sizes)))
    gap_max = merge_bytes // mean
    pieces: dict[Partition, list[tuple[int, int]]] = {}
    offsets = 0
    start = stop = last = -1
    for key in sorted(sizes):
        if key - last > gap_max or key >> OFFSET_BITS != last >> OFFSET_BITS:
            if start >= 0:
                offsets += _add(pieces, state, start, stop)
            start = key
        last = key
        stop = key + 1
    if start >= 0:
        offsets += _add(pieces, state, start, stop)
    return Spans(pieces, needed, offsets * mean)


def _add(
    pieces: dict[Partition, list[tuple[int, int]]], state: State, start: int, stop: int
) -> int:
    partition = state.parts[start >> OFFSET_BITS].partition
    piece = start & OFFSET_MASK, (stop - 1 & OFFSET_MASK) + 1
    pieces.setdefault(partition, []).append(piece)
    return piece[1] - piece[0]
