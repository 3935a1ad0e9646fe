"""Deficit round robin as the textbook has it: a pointer that walks from seat to seat.

Written from the theory, not from the code it judges, and kept slow and obvious:

    walk over the seats in order, round after round:
        deficit += increment                         (one grant a visit, one visit a round)
        while the head's cost <= deficit: serve it, deficit -= cost

A visit goes on for as long as the pointer stands on the seat. Who has nothing has no seat.
What is left of a deficit on leaving becomes credit, at most one greatest cost; credit buys
nothing, it only cancels what a settlement asks for later. A debt stays.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

#: A walk this long has lost its way: costs in these tests are at most a few thousand grants.
STEPS_MAX = 1_000_000
#: Who returns within the round takes its seat again.
RETAKES_SEAT = True


@dataclass
class Member:
    """One tenant's account: what it may spend, and what it was granted in all."""

    name: str
    increment: int
    deficit: int = 0
    credit: int = 0
    seat: int = 0  # its place in the ring; 0: none
    left: int = 0  # the seat that it had before
    round: int = 0  # in which it was granted last
    granted: int = 0  # all grants together
    visits: int = 0  # and their number
    lost: int = 0  # what the cap of the credit took


@dataclass
class PlainRing:
    """Seats by number, and the pointer: the round, and the seat that it stands on."""

    cost_max: int
    members: dict[str, Member] = field(default_factory=dict)
    round: int = 1
    seat: int = 0
    seats: int = 0

    def member(self, name: str, increment: int) -> Member:
        return self.members.setdefault(name, Member(name, increment))

    def seated(self) -> list[Member]:
        return sorted((m for m in self.members.values() if m.seat), key=lambda m: m.seat)

    def enter(self, name: str) -> None:
        """Take a seat at the tail; who had this round's grant takes its old seat again.

        The tail of a circular list is just behind the pointer: whoever returns there waits until
        everybody else was visited once. Had it a later seat, it would have to be passed over in
        this round (two grants in one), and others would be visited twice before it.
        """
        member = self.members[name]
        assert not member.seat, name
        if member.round == self.round:
            member.seat = member.left
            return
        self.seats += 1
        member.seat = self.seats

    def leave(self, name: str) -> None:
        member = self.members[name]
        member.left, member.seat = member.seat, 0
        self._keep(member)

    def settle(self, name: str, surcharge: int) -> None:
        """Post true minus estimated cost."""
        member = self.members[name]
        if surcharge > 0:
            cancelled = min(member.credit, surcharge)
            member.credit -= cancelled
            surcharge -= cancelled
        member.deficit -= surcharge
        if not member.seat:
            self._keep(member)

    def _keep(self, member: Member) -> None:
        if member.deficit > 0:
            whole = member.credit + member.deficit
            member.credit, member.deficit = min(whole, self.cost_max), 0
            member.lost += whole - member.credit

    def step(self) -> Member:
        """Move the pointer to the next seat and grant; nobody is granted twice in a round."""
        seated = self.seated()
        member = next((m for m in seated if m.seat > self.seat), None)
        if member is None:
            member = seated[0]
            self.round += 1
        self.seat = member.seat
        if member.round < self.round:
            member.round = self.round
            member.deficit += member.increment
            member.granted += member.increment
            member.visits += 1
        return member

    def under_pointer(self) -> Member | None:
        """Whose visit it is, if its grant of this round is in its deficit."""
        at = next((m for m in self.members.values() if m.seat and m.seat == self.seat), None)
        return at if at is not None and at.round == self.round else None

    def next(self, cost_of: Callable[[str], int]) -> str | None:
        """Who is served next; the walk is made on a copy, nothing changes."""
        if not self.seated():
            return None
        trial = PlainRing(self.cost_max, {n: copy(m) for n, m in self.members.items()})
        trial.round, trial.seat, trial.seats = self.round, self.seat, self.seats
        return trial.walk(cost_of)

    def walk(self, cost_of: Callable[[str], int]) -> str:
        """Walk until somebody's head is covered."""
        for _ in range(STEPS_MAX):
            member = self.under_pointer()
            if member is not None and cost_of(member.name) <= member.deficit:
                return member.name
            self.step()
        raise AssertionError("the walk never ends")

    def walk_to(self, turn: int, name: str) -> None:
        """Walk to a recorded pick: its round, and its tenant's seat."""
        while True:
            member = self.under_pointer()
            if member is not None and (self.round, member.name) == (turn, name):
                return
            assert self.round <= turn, f"{name} is passed over: there is no visit in round {turn}"
            self.step()

    def serve(self, name: str, cost: int) -> None:
        member = self.members[name]
        member.deficit -= cost
