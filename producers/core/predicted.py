"""How long a request would wait, if it were let in now: a pure function of published numbers.

Theory. A pool serves work at rate R. What is served before a request of tenant i, of cost s,
in tier t is

    H   all that waits in the tiers above t,
    x   what is ahead in the tenant's own queue, and s itself, which it has to be granted,
    N   what deficit round robin gives the tenant's neighbours meanwhile.

In deficit round robin (M. Shreedhar and G. Varghese, SIGCOMM 1995) a tenant of weight w_i that
owes a debt d is granted x + d until x is served, and each neighbour j that has work all the time
w_j / w_i as much. It can't be served more than it has waiting:

    N = sum over j of min(queue_j, (w_j / w_i) (x + d))

Tenants with a parent share the parent's turns: the same sum is taken over the siblings first,
and its result is the x of the family among its neighbours.

While the request waits the tiers above go on taking what they took lately (T), and tiers below
take their floors where they have work (F). A tier with a floor f gets at least that, with
nobody above it in front:

    wait = residual + min( (H + x - s + N - E) / max(R - T - F, R / 100),  (x - s + N) / (f R) )

`residual` is the time until a batch can be sent again, E what empty slots take up at once
besides s. The end is the wait and the service, in which s is: so it is no part of the wait.
It is a fluid's wait: quanta, batches and what comes meanwhile make it a little wrong, and
published numbers are measured again several times a second.

When is it good enough? If nobody else were let in, the end comes nearer as time passes, by a
second each second: the pool works off what is ahead. So a request that would end `over_ms` too
late would be let in after `over_ms`; `core.advice` learns which part of that it really takes.
"""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.backlog import LEVELS, RATE_MS, level

#: Beside tiers that take everything a request moves on at this part of the pool's rate.
LEAST_PART = 100
#: Longer waits are all the same.
WAIT_MS_MAX = 24 * 3_600_000
#: Nobody is told to come back later than this (and a fifth): by then a pool has more workers, or
#: others have given up.
AFTER_MS_MAX = 600_000
PERCENT = 100
#: Retry-After is up to so many percent later than the moment it aims at, so that those who were
#: refused together don't come back together.
JITTER_PERCENT = 20
#: Parts that chance is given in.
CHANCES = 1 << 32


class Levels:
    """Members of a ring by how much they have waiting for their weight: sums, by `level`.

    Those of lower levels than a request are served to their end before it, those of higher ones
    as much as their weight gives; so that two sums are all that is asked for.
    """

    __slots__ = ("weights", "works")

    def __init__(self, sums: Iterable[tuple[int, int, int]] = ()) -> None:
        """`sums` are levels with the work and the weight of their members."""
        self.works, self.weights = [0] * LEVELS, [0] * LEVELS
        for step, work, weight in sums:
            self.works[step], self.weights[step] = work, weight

    def add(self, work: int, weight: int) -> None:
        """A member with something waiting."""
        if work > 0:
            step = level(work, weight)
            self.works[step] += work
            self.weights[step] += weight

    def copy(self) -> "Levels":
        """The same sums, apart."""
        made = Levels.__new__(Levels)
        made.works, made.weights = self.works.copy(), self.weights.copy()
        return made

    def remove(self, work: int, weight: int) -> None:
        """Reverse `add`; what was published a moment ago may not have all of it."""
        if work > 0:
            step = level(work, weight)
            self.works[step] = max(0, self.works[step] - work)
            self.weights[step] = max(0, self.weights[step] - weight)


class Ring(NamedTuple):
    """One ring that a tenant, or its family, is served in.

    `levels` are of all members; `weight` and `waits` are the own ones among them.
    """

    levels: Levels
    weight: int
    waits: int = 0

    def served_meanwhile(self, granted: int) -> int:
        """What neighbours are served while this member is granted so much."""
        works, weights = self.levels.works, self.levels.weights
        here = level(granted, self.weight)
        below, above = sum(works[:here]), sum(weights[here + 1 :])
        work, weight = works[here], weights[here]
        if self.waits > 0:
            own = level(self.waits, self.weight)
            if own < here:
                below = max(0, below - self.waits)
            elif own > here:
                above = max(0, above - self.weight)
            else:
                work, weight = max(0, work - self.waits), max(0, weight - self.weight)
        return below + min(work, weight * granted // self.weight) + above * granted // self.weight


class Standing(NamedTuple):
    """What stands between a request and its start; work in the pool's unit.

    Attributes:
        residual_ms: until a batch can be sent again.
        higher: what waits in the tiers above.
        ahead: what waits in the tenant's own queue before it.
        debt: what the tenant owes.
        cost: what the request costs.
        rings: from the innermost to the tier's own.
        rate: of the pool, in 1,000 s.
        lost: what other tiers take of it meanwhile.
        floor: percent of it that the tier gets at least.
        empty: what empty slots take up at once.
    """

    residual_ms: int
    higher: int
    ahead: int
    debt: int
    cost: int
    rings: tuple[Ring, ...]
    rate: int
    lost: int
    floor: int
    empty: int = 0


def wait_ms(standing: Standing) -> int:
    """Predicted wait from now until the request is picked."""
    rate = standing.rate
    work = standing.ahead + standing.cost
    for depth, ring in enumerate(standing.rings):
        granted = work + (standing.debt if depth == 0 else 0)
        work += ring.served_meanwhile(granted)
    work -= standing.cost
    left = max(rate - standing.lost, rate // LEAST_PART, 1)
    at_once = max(0, standing.empty - standing.cost)
    passed_ms = max(0, standing.higher + work - at_once) * RATE_MS // left
    if standing.floor:
        passed_ms = min(passed_ms, work * RATE_MS * PERCENT // max(1, standing.floor * rate))
    return min(standing.residual_ms + passed_ms, WAIT_MS_MAX)


def retry_after_s(after_ms: int, chance: int) -> int:
    """Retry-After: whole seconds, rounded up, and a little more by chance; at least 1.

    Args:
        after_ms: the moment that it aims at; at most `AFTER_MS_MAX`.
        chance: from 0 to below `CHANCES`.
    """
    after_ms = min(after_ms, AFTER_MS_MAX)
    later_ms = after_ms * JITTER_PERCENT * chance // (PERCENT * CHANCES)
    return max(1, -(-(after_ms + later_ms) // 1_000))
