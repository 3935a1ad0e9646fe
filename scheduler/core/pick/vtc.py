"""A second selector beside deficit round robin: virtual token counters.

Theory (Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Each
tenant has a counter of the service it got, divided by its weight. The tenant with the
smallest counter goes next:

    pick:    counter += cost / weight
    return:  counter  = max(counter, least counter of those that have work;
                                     if nobody has, the one that left last)

so two tenants that both have work differ by at most one dearest request over their weight,
and nobody who comes back is repaid for the time it was away.

The paper charges output tokens as they come. Here a pick is charged its estimate and
`settle` posts the difference when the truth is known: a scheduler before the engine sees no
tokens come. Where estimates are exact, both are the same after each request.

A tenant that is served in advance of its turn simply has the larger counter: there is
nothing to forgive or to cap, so debt limits, credits and half-lives play no part.

Counters are integers, in units of 2**-40 of a cost at a weight of one; ties end in the
order of the seats. Trade-off against deficit round robin: turns are as small as requests
whatever the batch, and a counter has no meaning of its own in an explanation.

This file knows nothing of tiers, of requests' order, of clocks or logs.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

#: Fraction bits of a counter.
_FRACTION_BITS = 40


class Counter:
    """What the selector keeps of one tenant in one ring."""

    __slots__ = ("counter", "increment", "seat", "stamp")

    def __init__(self) -> None:
        self.counter = 0  #: service over weight, scaled
        self.increment = 1  #: quantum * weight
        self.seat = 0  #: place in the ring; 0: none
        self.stamp = 0  #: of the heap entry that is valid, in whichever ring; grows for ever


class VirtualTokenCounter:
    """One ring. A member is any object that has an `account` of the type above."""

    __slots__ = ("_heap", "half_life_ms", "last", "next_seat")

    def __init__(self) -> None:
        self.half_life_ms = 0  #: plays no part
        self.last = 0  #: counter of the member that left last
        self.next_seat = 1
        self._heap: list[tuple[int, int, int, Any]] = []

    def account(self) -> Counter:
        """Make a counter."""
        return Counter()

    def cross(self, account: Counter) -> None:
        """Nothing to do: entering lifts."""

    def enter(self, member: Any, cost: int, now_ms: int) -> None:
        """Seat a member, lifted to the least of those who have work."""
        del now_ms
        account: Counter = member.account
        least = self.peek()
        account.counter = max(account.counter, self.last if least is None else least[1])
        account.seat = self.next_seat
        self.next_seat += 1
        self.reprice(member, cost)

    def reprice(self, member: Any, cost: int) -> None:
        """Its counter may have changed; what its head costs plays no part."""
        del cost
        account: Counter = member.account
        account.stamp += 1
        heappush(self._heap, (account.counter, account.seat, account.stamp, member))

    def leave(self, member: Any, cost_max: int, now_ms: int) -> None:
        """Take its seat; the counter stays."""
        del cost_max, now_ms
        account: Counter = member.account
        account.seat = 0
        account.stamp += 1
        self.last = account.counter

    def peek(self) -> tuple[Any, int] | None:
        """Whose counter is the smallest, and the counter; changes nothing."""
        heap = self._heap
        while heap:
            counter, _, stamp, member = heap[0]
            if stamp == member.account.stamp:
                return member, counter
            heappop(heap)
        return None

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order."""
        heap = self._heap
        taken: list[tuple[int, int, int, Any]] = []
        while heap and len(taken) <= limit:
            entry = heappop(heap)
            if entry[2] == entry[3].account.stamp:
                taken.append(entry)
        for entry in taken:
            heappush(heap, entry)
        return [entry[3] for entry in taken[1:]]

    def turn_of(self, member: Any, cost: int) -> int:
        """Its counter: there are no rounds."""
        del cost
        counter: int = member.account.counter
        return counter

    def charge(self, member: Any, cost: int, turn: int) -> None:
        """Add the cost over the weight."""
        del turn
        account: Counter = member.account
        account.counter += _scaled(cost, account.increment)

    def serve(self, member: Any, cost: int, turn: int, next_cost: int) -> None:
        """Charge and reprice."""
        self.charge(member, cost, turn)
        heap = self._heap
        account: Counter = member.account
        if heap and heap[0][2] == account.stamp:
            account.stamp += 1
            heapreplace(heap, (account.counter, account.seat, account.stamp, member))
        else:
            self.reprice(member, next_cost)

    def borrow(self, member: Any, cost: int) -> None:
        """The same charge as of any pick."""
        self.charge(member, cost, 0)

    def settle(
        self, member: Any, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Post true minus estimated cost."""
        del debt_max, cost_max, now_ms
        account: Counter = member.account
        account.counter += _scaled(surcharge, account.increment)

    def retune(self, member: Any, increment: int) -> None:
        """Another weight, from the next charge on."""
        member.account.increment = increment

    def dump_account(self, account: Counter) -> list[int]:
        """An account as it stands."""
        return [account.counter, account.seat, account.increment]

    def load_account(self, account: Counter, dumped: list[int]) -> None:
        """Reverse `dump_account`."""
        account.counter, account.seat, account.increment = dumped

    def dump(self) -> list[int]:
        """The last counter and the next seat; the heap is derived."""
        return [self.last, self.next_seat]

    def load(self, dumped: list[int]) -> None:
        """Reverse `dump`; members are repriced by the caller."""
        self.last, self.next_seat = dumped

    def compact(self, members: int) -> None:
        """Drop stale heap entries when they outnumber the members three to one."""
        if len(self._heap) > 64 + 4 * members:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].account.stamp]
            heapify(self._heap)


def _scaled(cost: int, increment: int) -> int:
    """Cost over weight, rounded towards zero, so that both signs cancel."""
    magnitude = (abs(cost) << _FRACTION_BITS) // increment
    return magnitude if cost >= 0 else -magnitude
