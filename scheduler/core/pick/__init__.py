"""The selectors, each alone in its file; none knows the others.

`Selector` is what the second one, who goes next among tenants, has to offer: deficit round
robin (`drr`), virtual token counters (`vtc`), and one queue as a control (`fifo`).
"""

from abc import ABC, abstractmethod
from typing import Any

from scheduler.core.pick.turns import Member


class Selector(ABC):
    """One ring of members. Costs are integers in the pool's unit, times in milliseconds.

    A member's `account` is made by `account()` here. Who has a seat in it, and what its head
    costs, is told by the caller; a turn is the selector's own number for when a member is
    served: a round, a counter, or nothing.
    """

    __slots__ = ("half_life_ms",)

    half_life_ms: int  #: idle time after which a debt is halved

    @abstractmethod
    def account(self) -> Any:
        """Make what is kept of a member; `seat` is 0 while it has none."""

    @abstractmethod
    def cross(self, account: Any) -> None:
        """The member comes from the sister ring, where it was granted other turns."""

    @abstractmethod
    def enter(self, member: Member, cost: int, now_ms: int) -> None:
        """Seat a member that has eligible work again; `cost` is its head's."""

    @abstractmethod
    def reprice(self, member: Member, cost: int) -> None:
        """A seated member's head is another one, or its account changed."""

    @abstractmethod
    def leave(self, member: Member, cost_max: int, now_ms: int) -> None:
        """Take the seat of a member that has nothing eligible any more."""

    @abstractmethod
    def peek(self) -> tuple[Any, int] | None:
        """Whose turn it is, and the turn; changes nothing."""

    @abstractmethod
    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`; changes nothing."""

    @abstractmethod
    def turn_of(self, member: Member, cost: int) -> int:
        """Turn in which a seated member's head of this cost is served; changes nothing."""

    @abstractmethod
    def charge(self, member: Member, cost: int, turn: int) -> None:
        """A pick in this turn; the caller reprices the member, or takes its seat."""

    @abstractmethod
    def serve(self, member: Member, cost: int, turn: int, next_cost: int) -> None:
        """`charge`, then `reprice` for the head that follows; in one go, since all picks do it."""

    @abstractmethod
    def borrow(self, member: Member, cost: int) -> None:
        """A pick before the member's turn: it pays, nobody's turn moves."""

    @abstractmethod
    def may_borrow(self, member: Member, cost: int, cost_max: int) -> bool:
        """Whether it may be served before its turn once more; changes nothing."""

    @abstractmethod
    def settle(
        self, member: Member, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Post true minus estimated cost; a seated member must be repriced after it."""

    @abstractmethod
    def retune(self, member: Member, increment: int) -> None:
        """Another quantum times weight, from the next grant on; then reprice if seated."""

    @abstractmethod
    def dump_account(self, account: Any) -> list[int]:
        """An account in canonical form."""

    @abstractmethod
    def load_account(self, account: Any, dumped: list[int]) -> None:
        """Reverse `dump_account`."""

    @abstractmethod
    def dump(self) -> list[int]:
        """What the ring itself remembers; seats and turns follow from the accounts."""

    @abstractmethod
    def load(self, dumped: list[int]) -> None:
        """Reverse `dump`; members are repriced by the caller."""
