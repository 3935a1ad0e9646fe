"""First selector: which tier goes next.

Theory. Tiers are ranked by the policy's order. The choice is strict: the first tier that
has eligible work is served, whatever waits below it. So a tier's service depends on the
tiers above it alone, and inside a tier fairness is the second selector's business.

A tier may have a floor of f percent: that much of what is picked in the pool is its own
while it has eligible work, whatever the tiers above it want. A tier is pressed while it and
a tier above it have eligible work; a floor acts on pressed tiers alone. It is kept by a
credit, in hundredths of a cost:

    a pick of cost c from another tier     credit += f * c           (while it is pressed)
    the tier goes before those above it    when credit >= (100 - f) * cost of its head
    such a pick of cost c                  credit -= (100 - f) * c
    the tier has nothing eligible          credit  = 0

So over any stretch in which it is pressed, with T picked in the pool and S of it from the
tier, the credit moves by f * T - 100 * S. As the credit is bounded, S is f percent of T up
to a constant: a head's cost for a single floor. (Several floors that are due at once wait
for one another, the highest first; they add up to less than a hundred, so each is met.)
A pick that strict order gives it anyway costs nothing and earns nothing. What is not picked
spends nothing, and a tier that comes back starts from nothing: it has no advantage from the
time it was away.

This file knows nothing of tenants or of requests: it sees, in rank order, what each tier
has ready, what its head costs, its floor and its credit.
"""

from collections.abc import Sequence


def first_with_floors(
    ready: Sequence[bool], costs: Sequence[int], floors: Sequence[int], earned: Sequence[int]
) -> int | None:
    """Rank of the tier that goes next; None when none is ready.

    Args:
        ready: whether each tier has eligible work, in rank order.
        costs: what each tier's head costs; read only where it is ready.
        floors: percent.
        earned: credits, hundredths of cost.

    Of several tiers whose credit suffices the highest goes first. Without floors it is the
    first that is ready.
    """
    first = None
    for rank, is_ready in enumerate(ready):
        if not is_ready:
            continue
        if first is None:
            first = rank
        elif floors[rank] and earned[rank] >= (100 - floors[rank]) * costs[rank]:
            return rank
    return first


def credits_after(
    rank: int, cost: int, ready: Sequence[bool], floors: Sequence[int], earned: Sequence[int]
) -> list[int]:
    """Credits of all tiers after a pick of this cost from the tier of this rank.

    `ready` is as it was at the pick.
    """
    after = []
    is_pressed = False  # a tier above has eligible work
    for other, credit in enumerate(earned):
        floor = floors[other]
        if not floor or not ready[other]:
            after.append(0)
        elif not is_pressed:
            after.append(credit)
        elif other == rank:
            after.append(credit - (100 - floor) * cost)
        else:
            after.append(credit + floor * cost)
        is_pressed = is_pressed or ready[other]
    return after
