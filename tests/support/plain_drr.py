"""The textbook's deficit round robin as a plain loop: the oracle of the heap in pick/drr.

Written from the header of scheduler/core/pick/drr.py alone, and kept slow and obvious.
"""

from dataclasses import dataclass, field


@dataclass
class PlainTenant:
    name: str
    increment: int
    queue: list[int] = field(default_factory=list)
    deficit: int = 0
    granted_round: int = 0


class PlainRing:
    """Seats in order; `at` is the seat that the pointer stands on."""

    def __init__(self) -> None:
        self.seats: list[PlainTenant] = []
        self.at = -1
        self.is_between = False  #: who had the seat is gone: no visit goes on
        self.round = 1

    def add(self, tenant: PlainTenant, cost: int) -> None:
        tenant.queue.append(cost)
        if tenant not in self.seats:
            self.seats.append(tenant)

    def pick(self) -> tuple[str, int] | None:
        if not self.seats:
            return None
        while True:
            if not self.is_between and 0 <= self.at < len(self.seats):
                tenant = self.seats[self.at]
                if tenant.granted_round == self.round and tenant.queue[0] <= tenant.deficit:
                    return self._serve(tenant)
            self.at += 1
            self.is_between = False
            if self.at >= len(self.seats):
                self.at = 0
                self.round += 1
            tenant = self.seats[self.at]
            if tenant.granted_round < self.round:
                tenant.granted_round = self.round
                tenant.deficit += tenant.increment

    def _serve(self, tenant: PlainTenant) -> tuple[str, int]:
        cost = tenant.queue.pop(0)
        tenant.deficit -= cost
        if not tenant.queue:
            self._leave(tenant)
        return tenant.name, cost

    def _leave(self, tenant: PlainTenant) -> None:
        seat = self.seats.index(tenant)
        del self.seats[seat]
        if seat <= self.at:
            self.is_between |= seat == self.at
            self.at -= 1
        tenant.deficit = min(tenant.deficit, 0)

    def settle(self, tenant: PlainTenant, surcharge: int) -> None:
        tenant.deficit -= surcharge
