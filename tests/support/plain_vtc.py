"""Virtual token counters as the paper has them, in fractions.

The oracle of scheduler/core/pick/vtc.py, written from its header alone.
Counters are compared, and lifted to, in units of 2**-40.
"""

from dataclasses import dataclass, field
from fractions import Fraction

UNITS = 2**40


@dataclass(eq=False)
class PlainClient:
    name: str
    weight: int
    queue: list[int] = field(default_factory=list)
    service: Fraction = Fraction(0)  # over the weight

    def counter(self) -> int:
        return self.service * UNITS // 1

    def charge(self, cost: int) -> None:
        self.service = max(Fraction(0), self.service + Fraction(cost, self.weight))

    def reweigh(self, weight: int) -> None:
        """What is less than a unit is forgotten when the weight changes."""
        if weight != self.weight:
            self.service = Fraction(self.counter(), UNITS)
            self.weight = weight


class PlainCounters:
    """Those who have work, in the order in which they came."""

    def __init__(self) -> None:
        self.present: list[PlainClient] = []
        self.last = 0

    def enter(self, client: PlainClient) -> None:
        least = min((one.counter() for one in self.present), default=self.last)
        if client.counter() < least:
            client.service = Fraction(least, UNITS)
        self.present.append(client)

    def leave(self, client: PlainClient) -> None:
        self.present.remove(client)
        self.last = client.counter()

    def next(self) -> PlainClient | None:
        """The first of those with the least counter."""
        return min(self.present, key=PlainClient.counter, default=None)

    def settle(self, client: PlainClient, surcharge: int) -> None:
        client.charge(surcharge)
        if not self.present:
            self.last = max(self.last, client.counter())
