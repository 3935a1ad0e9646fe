"""What is served before a request, by playing the textbook's loop to its end.

Written apart from the formula that it judges: lists of costs, a pointer, grants one by one.
Nobody comes meanwhile, and the pool serves one unit of work after the other.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Waiting(NamedTuple):
    """A tenant's queue in order, its weight, and what it was served in advance."""

    weight: int
    queue: tuple[int, ...]
    debt: int = 0


def served_until(ring: Sequence[Waiting], who: int, *, quantum: int = 1) -> int:
    """Work that is done when the last request of a tenant's queue is, its own included."""
    left = [list(tenant.queue) for tenant in ring]
    deficits = [-tenant.debt for tenant in ring]
    done = 0
    while True:
        for index, tenant in enumerate(ring):
            if not left[index]:
                continue
            deficits[index] += quantum * tenant.weight
            while left[index] and left[index][0] <= deficits[index]:
                cost = left[index].pop(0)
                deficits[index] -= cost
                done += cost
                if index == who and not left[index]:
                    return done
