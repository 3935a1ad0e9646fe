"""The selectors, each alone in its file; none knows the others.

`Selector` is what the second one, who goes next among tenants, has to offer: deficit round
robin (`drr`), virtual token counters (`vtc`), and one queue as a control (`fifo`).
"""

from typing import Any, Protocol


class Selector(Protocol):
    """One ring of members. Costs are integers in the pool's unit, times in milliseconds.

    A member is any object with an `account` made by `account()`, and `head_order()`. Who
    has a seat in it, and what its head costs, is told by the caller; a turn is the
    selector's own number for when a member is served: a round, a counter, or nothing.
    """

    half_life_ms: int  #: idle time after which a debt is halved

    def account(self) -> Any:
        """Make what is kept of a member; `seat` is 0 while it has none."""

    def cross(self, account: Any) -> None:
        """The member comes from the sister ring, where it was granted other turns."""

    def enter(self, member: Any, cost: int, now_ms: int) -> None:
        """Seat a member that has eligible work again; `cost` is its head's."""

    def reprice(self, member: Any, cost: int) -> None:
        """A seated member's head is another one, or its account changed."""

    def leave(self, member: Any, cost_max: int, now_ms: int) -> None:
        """Take the seat of a member that has nothing eligible any more."""

    def peek(self) -> tuple[Any, int] | None:
        """Whose turn it is, and the turn; changes nothing."""

    def following(self, limit: int) -> list[Any]:
        """The next members after the first, in order, at most `limit`; changes nothing."""

    def turn_of(self, member: Any, cost: int) -> int:
        """Turn in which a seated member's head of this cost is served; changes nothing."""

    def charge(self, member: Any, cost: int, turn: int) -> None:
        """A pick in this turn; the caller reprices the member, or takes its seat."""

    def serve(self, member: Any, cost: int, turn: int, next_cost: int) -> None:
        """`charge`, then `reprice` for the head that follows; in one go, since all picks do it."""

    def borrow(self, member: Any, cost: int) -> None:
        """A pick before the member's turn: it pays, nobody's turn moves."""

    def may_borrow(self, member: Any, cost: int, cost_max: int) -> bool:
        """Whether it may be served before its turn once more; changes nothing."""

    def settle(
        self, member: Any, surcharge: int, debt_max: int, cost_max: int, now_ms: int
    ) -> None:
        """Post true minus estimated cost; a seated member must be repriced after it."""

    def retune(self, member: Any, increment: int) -> None:
        """Another quantum times weight, from the next grant on; then reprice if seated."""

    def dump_account(self, account: Any) -> list[int]:
        """An account in canonical form."""

    def load_account(self, account: Any, dumped: list[int]) -> None:
        """Reverse `dump_account`."""

    def dump(self) -> list[int]:
        """What the ring itself remembers; seats and turns follow from the accounts."""

    def load(self, dumped: list[int]) -> None:
        """Reverse `dump`; members are repriced by the caller."""
