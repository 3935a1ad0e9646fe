"""What an ingress let in and the scheduler has not read yet, until published numbers have it.

Pure. Where a request stands in the log is known when its publish is acknowledged, and a head
says how far the scheduler has read; so neither clocks nor the time that a publish takes make
anybody be counted twice, or not at all. Of a request whose publish is in doubt nobody knows
where it stands: it counts until a head was made after it came.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from schemas.log import Partition

#: A request of which nothing was heard for so long is gone: its caller left before it was in.
UNHEARD_MS = 60_000
#: One that was not read for so long stands where nobody reads: its tier has left the policy.
UNREAD_MS = 3_600_000
#: More are not counted, while a scheduler is far behind.
LETS_MAX = 50_000


class Place(NamedTuple):
    """Whose queue a request waits in: rank of the tier, the tenant, its family or itself."""

    rank: int
    tenant: str
    member: str


class Let(NamedTuple):
    """A request that was let in: when, where, and what it adds."""

    at_ms: int
    place: Place
    work: int
    tokens: int
    head: int


class LetIns:
    """Requests by number, in the order in which they came."""

    def __init__(self) -> None:
        """Begin with none."""
        self._number = 0
        self._lets: dict[int, Let] = {}
        self._unheard: dict[int, None] = {}
        self._doubtful: list[int] = []
        self._standing: dict[Partition, list[tuple[int, int]]] = {}  #: heaps of offset, number
        self._read: dict[Partition, int] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._lets)

    def __contains__(self, number: object) -> bool:
        """Whether one is counted."""
        return number in self._lets

    def add(self, let: Let) -> int:
        """Count one; returns its number."""
        self._number += 1
        self._lets[self._number] = let
        self._unheard[self._number] = None
        return self._number

    def drop(self, number: int) -> Let | None:
        """Count one no more; returns it, None: it was not counted any more."""
        self._unheard.pop(number, None)
        return self._lets.pop(number, None)

    def clear(self) -> None:
        """Drop all; numbers go on."""
        self._lets.clear()
        self._unheard.clear()
        self._doubtful.clear()
        self._standing.clear()

    def stands(self, number: int, partition: Partition, offset: int) -> Let | None:
        """One is in the log; returns it if that was read already: it is dropped."""
        if number not in self._lets:
            return None
        self._unheard.pop(number, None)
        if offset < self._read.get(partition, 0):
            return self._lets.pop(number)
        heappush(self._standing.setdefault(partition, []), (offset, number))
        return None

    def doubt(self, number: int) -> None:
        """One may be in the log: nobody says any more where."""
        if number in self._unheard:
            del self._unheard[number]
            self._doubtful.append(number)

    def read(
        self, positions: Iterable[tuple[str, int, int]], before_ms: int, now_ms: int
    ) -> list[Let]:
        """Drop and return what was read, those in doubt that came by `before_ms`, and lost ones.

        `positions` are topics, partitions and the next offset that is read there.
        """
        self._read = {(topic, partition): position for topic, partition, position in positions}
        gone: list[int] = []
        for at, position in self._read.items():
            heap = self._standing.get(at, [])
            while heap and heap[0][0] < position:
                gone.append(heappop(heap)[1])
        doubtful, self._doubtful = self._doubtful, []
        for number in doubtful:
            let = self._lets.get(number)
            if let is not None:
                (gone if let.at_ms <= before_ms else self._doubtful).append(number)
        for numbers, patience_ms in ((self._unheard, UNHEARD_MS), (self._lets, UNREAD_MS)):
            for number in numbers:
                if now_ms - self._lets[number].at_ms <= patience_ms:
                    break
                gone.append(number)
        dropped = [self.drop(number) for number in gone]
        return [let for let in dropped if let is not None]
