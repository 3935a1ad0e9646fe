"""A control, not a policy to run: one queue by priority, deadline and arrival.

Theory. The member whose head sorts first goes next, whoever it is. That is the queue that
a burst blocks; the demo and the benchmarks show it beside deficit round robin, behind the
same interface, so that a difference is the selector's alone.

Nothing is granted, charged or settled here. Heads sort by `head_order()`, an integer that
no two requests share.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final

from scheduler.core.pick import Selector
from scheduler.core.pick.turns import Member, Seat

#: Stale entries that the heap may hold, beside three a member.
_STALE_MAX: Final = 64
#: Below every order: an account whose member has no head in the queue.
_NONE: Final = -1


class FirstInFirstOut(Selector):
    """One queue over all members; a member's turn is the order of its head."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self.half_life_ms = 0  #: plays no part
        self._heap: list[int] = []  # orders of heads; some are stale
        self._members: dict[int, Member] = {}  # whose head it is, by its order

    def account(self) -> Seat:
        """Make a seat."""
        seat = Seat()
        seat.entry = _NONE
        return seat

    def cross(self, account: Seat) -> None:
        """Nothing to do."""

    def enter(self, member: Member, cost: int, now_ms: int) -> None:
        """A member has eligible work again."""
        del now_ms
        member.account.seat = 1
        self.reprice(member, cost)

    def reprice(self, member: Member, cost: int) -> None:
        """Its head is another one now; what that costs plays no part."""
        del cost
        account: Seat = member.account
        order: int = member.head_order()
        if order == account.entry:
            return
        self._forget(member)
        account.entry = order
        self._members[order] = member
        heappush(self._heap, order)
        if len(self._heap) > _STALE_MAX + 4 * len(self._members):
            self._heap = list(self._members)
            heapify(self._heap)

    def leave(self, member: Member, cost_max: int, now_ms: int) -> None:
        """It has nothing eligible any more."""
        del cost_max, now_ms
        account: Seat = member.account
        self._forget(member)
        account.seat, account.entry = 0, _NONE

    def peek(self) -> tuple[Any, int] | None:
        """Whose head is first, in round 0; changes nothing."""
        heap = self._heap
        while heap:
            member = self._members.get(heap[0])
            if member is not None:
                return member, 0
            heappop(heap)
        return None

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`; changes nothing."""
        heap = self._heap
        taken: list[int] = []
        while heap and len(taken) <= limit:
            order = heappop(heap)
            if order in self._members and (not taken or taken[-1] != order):
                taken.append(order)
        for order in taken:
            heappush(heap, order)
        return [self._members[order] for order in taken[1:]]

    def turn_of(self, member: Member, cost: int) -> int:
        """There are no rounds."""
        del member, cost
        return 0

    def charge(self, member: Member, cost: int, turn: int) -> None:
        """Nothing is charged."""

    def serve(self, member: Member, cost: int, turn: int, next_cost: int) -> None:
        """The next head takes its place."""
        del cost, turn
        self.reprice(member, next_cost)

    def borrow(self, member: Member, cost: int) -> None:
        """Nothing is charged."""

    def may_borrow(self, member: Member, cost: int, cost_max: int) -> bool:
        """Nothing is charged."""
        del member, cost, cost_max
        return True

    def settle(
        self, member: Member, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Nothing is settled."""

    def retune(self, member: Member, increment: int) -> None:
        """Kept for a change of the policy back to another selector."""
        member.account.increment = increment

    def _forget(self, member: Member) -> None:
        account: Seat = member.account
        order = account.entry
        if self._members.get(order) is member:
            del self._members[order]

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
