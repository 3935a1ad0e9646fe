"""A control, not a policy to run: one queue by priority, deadline and arrival.

Theory. The member whose head sorts first goes next, whoever it is. That is the queue that
a burst blocks; the demo and the benchmarks show it beside deficit round robin, behind the
same interface, so that a difference is the selector's alone.

Nothing is granted, charged or settled here.
"""

from heapq import heapify, heappop, heappush
from typing import Any


class Seat:
    """Whether a member is in the queue, and what another selector would need of it."""

    __slots__ = ("increment", "seat", "stamp")

    def __init__(self) -> None:
        self.increment = 1
        self.seat = 0
        self.stamp = 0


class FirstInFirstOut:
    """One queue over all members; a member's turn is the order of its head."""

    __slots__ = ("_heap", "half_life_ms")

    def __init__(self) -> None:
        self.half_life_ms = 0  #: plays no part
        self._heap: list[tuple[Any, int, Any]] = []

    def account(self) -> Seat:
        """Make a seat."""
        return Seat()

    def cross(self, account: Seat) -> None:
        """Nothing to do."""

    def enter(self, member: Any, cost: int, now_ms: int) -> None:
        """A member has eligible work again."""
        del now_ms
        member.account.seat = 1
        self.reprice(member, cost)

    def reprice(self, member: Any, cost: int) -> None:
        """Its head is another one now; what that costs plays no part."""
        del cost
        member.account.stamp += 1
        heappush(self._heap, (member.head_order(), member.account.stamp, member))

    def leave(self, member: Any, cost_max: int, now_ms: int) -> None:
        """It has nothing eligible any more."""
        del cost_max, now_ms
        member.account.seat = 0
        member.account.stamp += 1

    def peek(self) -> tuple[Any, int] | None:
        """Whose head is first, in round 0; changes nothing."""
        heap = self._heap
        while heap:
            _, stamp, member = heap[0]
            if stamp == member.account.stamp:
                return member, 0
            heappop(heap)
        return None

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order."""
        heap = self._heap
        taken: list[tuple[Any, int, Any]] = []
        while heap and len(taken) <= limit:
            entry = heappop(heap)
            if entry[1] == entry[2].account.stamp:
                taken.append(entry)
        for entry in taken:
            heappush(heap, entry)
        return [entry[2] for entry in taken[1:]]

    def turn_of(self, member: Any, cost: int) -> int:
        """There are no rounds."""
        del member, cost
        return 0

    def charge(self, member: Any, cost: int, turn: int) -> None:
        """Nothing is charged."""

    def serve(self, member: Any, cost: int, turn: int, next_cost: int) -> None:
        """The next head takes its place."""
        del cost, turn
        self.reprice(member, next_cost)

    def borrow(self, member: Any, cost: int) -> None:
        """Nothing is charged."""

    def settle(
        self, member: Any, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Nothing is settled."""

    def retune(self, member: Any, increment: int) -> None:
        """Kept for a change of the policy back to another selector."""
        member.account.increment = increment

    def dump_account(self, account: Seat) -> list[int]:
        """A seat as it stands."""
        return [account.seat, account.increment]

    def load_account(self, account: Seat, dumped: list[int]) -> None:
        """Reverse `dump_account`."""
        account.seat, account.increment = dumped

    def dump(self) -> list[int]:
        """Nothing to remember."""
        return []

    def load(self, dumped: list[int]) -> None:
        """Nothing was remembered."""

    def compact(self, members: int) -> None:
        """Drop stale heap entries when they outnumber the members three to one."""
        if len(self._heap) > 64 + 4 * members:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].account.stamp]
            heapify(self._heap)
