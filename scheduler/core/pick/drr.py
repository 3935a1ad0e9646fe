"""Second selector: deficit round robin over the tenants that have eligible work.

Theory (M. Shreedhar and G. Varghese, "Efficient fair queuing using deficit round robin",
SIGCOMM 1995). Tenants sit in a ring, in the order of their seats. A round visits every
seat once. A visit grants `quantum * weight` to the tenant's deficit, then serves its head
while the deficit covers the head's cost; what is left stays for the next round. The place
in the ring is kept from pick to pick: a visit goes on until its head is not affordable.

    loop over the seats in order, round after round:
        deficit += quantum * weight
        while the head's cost <= deficit:  serve it;  deficit -= cost

That loop is the meaning, and it stands in the tests as the oracle. It walks O(tenants)
seats a pick when quanta are small against costs. Here the same order comes from a heap:
a tenant whose head costs c, with deficit d after its grant of round g, is first served in

    round g + n,   n = ceil((c - d) / (quantum * weight)), at least 1 grant,
                   or 0 when the pointer stands on its seat (its visit goes on)

and within a round in the order of the seats. So the next to be served is the smallest
(round, seat), and the grants of everybody else up to there are implied: they are added
when a tenant is next touched (`_catch_up`). A pick costs O(log tenants), whatever the
quantum.

Coming and going. Who has nothing eligible has no seat and is granted nothing. Who returns
takes a new seat at the tail and is visited in the current round; but who had its grant of
this round already takes the seat again that it left. That is the tail of a circular list,
just behind the pointer: its next visit is in the next round, after everybody else's. So
leaving and returning earns no second grant, and nobody is ever passed over. On leaving, a
positive deficit becomes `credit` (at most one maximum cost), which never buys a pick and
only cancels later surcharges; debt stays, and halves with every `half_life_ms` of idleness.

Two levels. Tenants with a parent share the parent's turns: a member of this ring may be a
family, whose head is named by another ring, of its children. The outer ring pays and is
paid back, the inner one keeps the balance among the children; each is the loop above. The
inner pointer rests while the outer one is elsewhere, so a child's visit goes on across its
parent's.

Two rings beside each other. A member may move between sister rings (`cross`): it keeps its
balance, and in each ring its place in that ring's rounds.

Overtaking. A batch may be topped up with a request whose turn has not come, because the
one whose turn it is does not fit into what is left. It is borrowed: the tenant pays at
once, the pointer stays, nobody is granted anything for it.

Settlement. A pick is charged an estimate; `settle` posts true minus estimated cost to the
same account, in both directions. Debt has a floor (`debt_max`).

Unit of fairness: the cost model's unit. Trade-off: a small quantum serves in small turns
(latency), a large one in long turns (batches of one tenant); shares are the same.

This file knows nothing of tiers, of requests' order, of clocks or logs.
"""

from typing import Any, Final

from scheduler.core.pick import Selector
from scheduler.core.pick.turns import Member, Seat, Turns

#: Idle time after which a debt is halved, unless the policy says otherwise.
HALF_LIFE_MS: Final = 60_000
#: A debt that was halved so often is nothing; a larger shift would only take time.
_HALVINGS_MAX: Final = 64


class Account(Seat):
    """What the selector keeps of one tenant in one ring. Costs are in the pool's unit."""

    __slots__ = (
        "credit", "deficit", "granted", "granted_there", "idle_since_ms", "left", "left_there",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.deficit = 0  #: unspent grants; negative: debt
        self.credit = 0  #: left over when it emptied; cancels surcharges only
        self.granted = 0  #: last round whose grant is in `deficit`
        self.left = 0  #: the place that it had before
        self.idle_since_ms = 0  #: when it last emptied
        self.granted_there = 0  #: `granted` in the sister ring, see `cross`
        self.left_there = 0  #: likewise `left`


class DeficitRoundRobin(Selector):
    """One ring. A member is any object that has an `account` of the type above."""

    __slots__ = ("next_seat", "round", "seat", "turns")

    def __init__(self) -> None:
        self.half_life_ms = HALF_LIFE_MS
        self.round = 1  #: the round the pointer is in
        self.seat = 0  #: the seat the pointer stands on
        self.next_seat = 1
        self.turns = Turns()  #: index: in which round each member is served

    def account(self) -> Account:
        """Make an account."""
        return Account()

    def cross(self, account: Account) -> None:
        """The member comes from the sister ring, whose rounds and seats are others."""
        account.granted, account.granted_there = account.granted_there, account.granted
        account.left, account.left_there = account.left_there, account.left

    def enter(self, member: Member, cost: int, now_ms: int) -> None:
        """Seat a member that has eligible work again; `cost` is its head's."""
        account: Account = member.account
        self._decay(account, now_ms)
        if account.granted == self.round:
            account.seat = account.left
        else:
            account.granted = self.round - 1
            account.seat = self.next_seat
            self.next_seat += 1
        self.reprice(member, cost)

    def reprice(self, member: Member, cost: int) -> None:
        """Its head is another one now, or its account changed: compute its turn anew."""
        account: Account = member.account
        self._catch_up(account)
        self.turns.put(member, self.turn_of(member, cost))

    def leave(self, member: Member, cost_max: int, now_ms: int) -> None:
        """Take the seat of a member that has nothing eligible any more."""
        account: Account = member.account
        self._catch_up(account)
        _keep(account, cost_max)
        account.left = account.seat
        self.turns.drop(member)
        account.idle_since_ms = now_ms

    def peek(self) -> tuple[Any, int] | None:
        """Whose turn it is, and in which round; changes nothing."""
        return self.turns.first()

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`; changes nothing."""
        return self.turns.following(limit)

    def turn_of(self, member: Member, cost: int) -> int:
        """Round in which a seated member's head of this cost is served; changes nothing."""
        account: Account = member.account
        deficit, granted, seat = account.deficit, account.granted, account.seat
        passed = self.round if seat <= self.seat else self.round - 1
        if passed > granted:
            deficit += (passed - granted) * account.increment
            granted = passed
        if cost > deficit:
            return granted - (deficit - cost) // account.increment
        return granted if seat == self.seat else granted + 1  # its visit goes on, or the next

    def charge(self, member: Member, cost: int, turn: int) -> None:
        """A pick in round `turn`: move the pointer there, add the grants, take the cost."""
        account: Account = member.account
        account.deficit += (turn - account.granted) * account.increment - cost
        account.granted = self.round = turn
        self.seat = account.seat

    def serve(self, member: Member, cost: int, turn: int, next_cost: int) -> None:
        """`charge`, then `reprice` at the head that follows: what nearly every pick does.

        The pointer stands on the member's seat now: its visit goes on while the deficit
        covers the head, else it needs so many more grants.
        """
        account: Account = member.account
        increment = account.increment
        deficit = account.deficit + (turn - account.granted) * increment - cost
        account.deficit = deficit
        account.granted = self.round = turn
        self.seat = account.seat
        if next_cost > deficit:
            turn -= (deficit - next_cost) // increment
        self.turns.put(member, turn)

    def borrow(self, member: Member, cost: int) -> None:
        """A pick before the member's turn: it pays, the pointer stays.

        The caller reprices the member, or takes its seat.
        """
        account: Account = member.account
        self._catch_up(account)
        account.deficit -= cost

    def may_borrow(self, member: Member, cost: int, cost_max: int) -> bool:
        """Whether the debt that it would have then is no more than a dearest request."""
        account: Account = member.account
        passed = self.round if account.seat <= self.seat else self.round - 1
        grants = max(0, passed - account.granted) * account.increment
        return account.deficit + grants - cost >= -cost_max

    def settle(
        self, member: Member, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Post true minus estimated cost; a seated member must be repriced after it."""
        account: Account = member.account
        if account.seat:
            self._catch_up(account)
        else:  # what is posted now was not idled away: only older debt decays
            self._decay(account, now_ms)
            account.idle_since_ms = now_ms
        if surcharge > 0:
            cancelled = min(account.credit, surcharge)
            account.credit -= cancelled
            surcharge -= cancelled
        account.deficit = max(account.deficit - surcharge, -debt_max)
        if not account.seat:
            _keep(account, cost_max)

    def retune(self, member: Member, increment: int) -> None:
        """Another quantum or weight, from the next grant on; then reprice if seated."""
        account: Account = member.account
        if account.seat:
            self._catch_up(account)
        account.increment = increment

    def _decay(self, account: Account, now_ms: int) -> None:
        if account.deficit < 0:
            halvings = (now_ms - account.idle_since_ms) // self.half_life_ms
            account.deficit = -(-account.deficit >> min(halvings, _HALVINGS_MAX))

    def _catch_up(self, account: Account) -> None:
        """Add the grants of the visits that a seated member had since it was last touched."""
        passed = self.round if account.seat <= self.seat else self.round - 1
        if passed > account.granted:
            account.deficit += (passed - account.granted) * account.increment
            account.granted = passed

    def dump_account(self, account: Account) -> list[int]:
        """An account in canonical form: the grants implied so far are in it."""
        deficit, granted = account.deficit, account.granted
        if account.seat:
            passed = self.round if account.seat <= self.seat else self.round - 1
            passed = max(passed, granted)
            deficit += (passed - granted) * account.increment
            granted = passed
        return [
            deficit,
            account.credit,
            granted,
            account.seat,
            account.increment,
            account.idle_since_ms,
            account.granted_there,
            account.left,
            account.left_there,
        ]

    def load_account(self, account: Account, dumped: list[int]) -> None:
        """Reverse `dump_account`."""
        (
            account.deficit,
            account.credit,
            account.granted,
            account.seat,
            account.increment,
            account.idle_since_ms,
            account.granted_there,
            account.left,
            account.left_there,
        ) = dumped

    def dump(self) -> list[int]:
        """The pointer, for snapshots and equality; the heap is derived."""
        return [self.round, self.seat, self.next_seat]

    def load(self, dumped: list[int]) -> None:
        """Reverse `dump`; members are repriced by the caller."""
        self.round, self.seat, self.next_seat = dumped


def _keep(account: Account, cost_max: int) -> None:
    """What is left of the grants of a member without a seat becomes credit."""
    if account.deficit > 0:
        account.credit = min(account.credit + account.deficit, cost_max)
        account.deficit = 0
