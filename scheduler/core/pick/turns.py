"""Who is served when: the members of a ring in the order of their turns, then of their seats.

The mechanics that deficit round robin and virtual counters share; no theory. A turn is a
number of the selector's own (a round, a counter). An entry of the heap is one integer, turn
and seat, so that nothing but integers is compared; whose it is stands beside, by seat. A
member's valid entry is in its account: what the heap holds else is stale, and skipped.
"""

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final

#: Enough seats for a million returns a second in nine years.
_SEAT_BITS: Final = 48
_SEAT_MASK: Final = (1 << 48) - 1
#: Stale entries that the heap may hold, beside three a member.
_STALE_MAX: Final = 64


class Seat:
    """What every selector keeps of a member; the selectors add their own."""

    __slots__ = ("entry", "increment", "seat")

    def __init__(self) -> None:
        self.increment = 1  #: quantum * weight
        self.seat = 0  #: place among the members; 0: none
        self.entry = 0  #: index: its valid entry in the ring's heap; 0: none


class Member(ABC):
    """Who can sit in a ring: it has an `account`, made by the ring's selector."""

    __slots__ = ("account",)

    account: Any

    @abstractmethod
    def head_order(self) -> int:
        """Order of its head, for a selector that looks at requests across members."""


class Turns:
    """Members whose `account` has a `seat` above 0, and an `entry` that is 0 at first."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        """How many members have a turn."""
        return len(self._members)

    @property
    def held(self) -> int:
        """Entries in memory, stale ones too."""
        return len(self._heap)

    def put(self, member: Member, turn: int) -> None:
        """Give a seated member its turn, in place of the one that it had."""
        account: Seat = member.account
        entry = turn << _SEAT_BITS | account.seat
        before = account.entry
        if entry == before:
            return
        account.entry = entry
        if not before:
            self._members[account.seat] = member
        elif self._heap[0] == before:
            heapreplace(self._heap, entry)
            return
        heappush(self._heap, entry)
        if len(self._heap) > _STALE_MAX + 4 * len(self._members):
            self._heap = [seated.account.entry for seated in self._members.values()]
            heapify(self._heap)

    def drop(self, member: Member) -> None:
        """It has no turn any more, and no seat."""
        account: Seat = member.account
        self._members.pop(account.seat, None)
        account.seat = account.entry = 0

    def first(self) -> tuple[Any, int] | None:
        """Whose turn is the earliest, and the turn."""
        heap = self._heap
        while heap:
            entry = heap[0]
            member = self._members.get(entry & _SEAT_MASK)
            if member is not None:
                account: Seat = member.account
                if account.entry == entry:
                    return member, entry >> _SEAT_BITS
            heappop(heap)
        return None

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`."""
        heap, members = self._heap, self._members
        taken: list[int] = []
        while heap and len(taken) <= limit:
            entry = heappop(heap)
            member = members.get(entry & _SEAT_MASK)
            is_valid = member is not None and member.account.entry == entry
            if is_valid and (not taken or taken[-1] != entry):
                taken.append(entry)
        for entry in taken:
            heappush(heap, entry)
        return [members[entry & _SEAT_MASK] for entry in taken[1:]]
