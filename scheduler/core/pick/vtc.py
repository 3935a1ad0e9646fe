"""A second selector beside deficit round robin: virtual token counters.

Theory (Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Each
tenant has a counter of the service it got, divided by its weight. The tenant with the
smallest counter goes next:

    pick:    counter += cost / weight
    return:  counter  = max(counter, least counter of those that have work;
                                     if nobody has, that of who left last)

so two tenants that both have work differ by at most one dearest request over their weight,
and nobody who comes back is repaid for the time it was away.

The paper charges output tokens as they come. Here a pick is charged its estimate and
`settle` posts the difference when the truth is known: a scheduler before the engine sees no
tokens come. Where estimates are exact, both are the same after each request. What is posted
to who left last, while nobody has work, moves the counter that a return is lifted to.

A tenant that is served in advance of its turn simply has the larger counter: there is
nothing to forgive or to cap, so debt limits, credits and half-lives play no part. Nobody
falls below zero: a refund of what another account was charged buys nothing.

Counters are integers in units of 2**-40 of `cost / (quantum * weight)`. What a division
leaves over is kept for the next charge, so that many small ones add up exactly. Ties end in
the order of the seats. The turn of a pick is the counter before it, of which the lower 62
bits fit into a record.

Trade-off against deficit round robin: turns are as small as requests whatever the batch,
and a counter has no meaning of its own in an explanation.

This file knows nothing of tiers, of requests' order, of clocks or logs.
"""

from typing import Any, Final

from scheduler.core.pick import Selector
from scheduler.core.pick.turns import Member, Seat, Turns

#: Fraction bits of a counter: costs of 1 stay apart at the largest quantum times weight.
_FRACTION_BITS: Final = 40
#: A counter grows without end, a recorded number has 63 bits.
_TURN_BITS: Final = 62
_TURN_MASK: Final = (1 << 62) - 1


class Counter(Seat):
    """What the selector keeps of one tenant in one ring."""

    __slots__ = ("counter", "counter_there", "rest", "rest_there")

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0  #: service over weight, scaled
        self.rest = 0  #: what the division by the weight left over, scaled
        self.counter_there = 0  #: `counter` in the sister ring, see `cross`
        self.rest_there = 0  #: likewise `rest`


class VirtualTokenCounter(Selector):
    """One ring. A member is any object that has an `account` of the type above."""

    __slots__ = ("last", "next_seat", "turns")

    def __init__(self) -> None:
        self.half_life_ms = 0  #: plays no part
        self.last = 0  #: counter of the member that left last
        self.next_seat = 1
        self.turns = Turns()  #: index: the counter of each member

    def account(self) -> Counter:
        """Make a counter."""
        return Counter()

    def cross(self, account: Counter) -> None:
        """The member comes from the sister ring, whose counters are others."""
        account.counter, account.counter_there = account.counter_there, account.counter
        account.rest, account.rest_there = account.rest_there, account.rest

    def enter(self, member: Member, cost: int, now_ms: int) -> None:
        """Seat a member, lifted to the least of those who have work."""
        del now_ms
        account: Counter = member.account
        first = self.turns.first()
        least = self.last if first is None else first[1]
        if account.counter < least:
            account.counter, account.rest = least, 0
        account.seat = self.next_seat
        self.next_seat += 1
        self.reprice(member, cost)

    def reprice(self, member: Member, cost: int) -> None:
        """Its counter may have changed; what its head costs plays no part."""
        del cost
        self.turns.put(member, member.account.counter)

    def leave(self, member: Member, cost_max: int, now_ms: int) -> None:
        """Take its seat; the counter stays."""
        del cost_max, now_ms
        self.turns.drop(member)
        self.last = member.account.counter

    def peek(self) -> tuple[Any, int] | None:
        """Whose counter is the smallest, and the turn; changes nothing."""
        first = self.turns.first()
        return None if first is None else (first[0], first[1] & _TURN_MASK)

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`; changes nothing."""
        return self.turns.following(limit)

    def turn_of(self, member: Member, cost: int) -> int:
        """Its counter, whatever the head costs: there are no rounds."""
        del cost
        counter: int = member.account.counter
        return counter & _TURN_MASK

    def charge(self, member: Member, cost: int, turn: int) -> None:
        """Add the cost over the weight."""
        del turn
        _add(member.account, cost)

    def serve(self, member: Member, cost: int, turn: int, next_cost: int) -> None:
        """`charge`, then `reprice`: what nearly every pick does."""
        del turn, next_cost
        account: Counter = member.account
        _add(account, cost)
        self.turns.put(member, account.counter)

    def borrow(self, member: Member, cost: int) -> None:
        """The same charge as of any pick; the caller reprices the member, or takes its seat."""
        _add(member.account, cost)

    def may_borrow(self, member: Member, cost: int, cost_max: int) -> bool:
        """Its counter only grows: it is served the later."""
        del member, cost, cost_max
        return True

    def settle(
        self, member: Member, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Post true minus estimated cost; a seated member must be repriced after it."""
        del debt_max, cost_max, now_ms
        account: Counter = member.account
        _add(account, surcharge)
        if not self.turns:
            self.last = max(self.last, account.counter)

    def retune(self, member: Member, increment: int) -> None:
        """Another weight, from the next charge on."""
        account: Counter = member.account
        if increment != account.increment:
            account.increment = increment
            account.rest = account.rest_there = 0

    def dump_account(self, account: Counter) -> list[int]:
        """An account as it stands."""
        here, there = _split(account.counter), _split(account.counter_there)
        rests = account.rest, account.rest_there
        return [*here, *there, *rests, account.seat, account.increment]

    def load_account(self, account: Counter, dumped: list[int]) -> None:
        """Reverse `dump_account`."""
        high, low, high_there, low_there = dumped[:4]
        account.rest, account.rest_there, account.seat, account.increment = dumped[4:]
        account.counter = high << _TURN_BITS | low
        account.counter_there = high_there << _TURN_BITS | low_there

    def dump(self) -> list[int]:
        """The last counter and the next seat; the heap is derived."""
        return [*_split(self.last), self.next_seat]

    def load(self, dumped: list[int]) -> None:
        """Reverse `dump`; members are repriced by the caller."""
        high, low, self.next_seat = dumped
        self.last = high << _TURN_BITS | low


def _add(account: Counter, cost: int) -> None:
    more, account.rest = divmod((cost << _FRACTION_BITS) + account.rest, account.increment)
    account.counter += more
    if account.counter < 0:
        account.counter = account.rest = 0


def _split(counter: int) -> tuple[int, int]:
    return counter >> _TURN_BITS, counter & _TURN_MASK
