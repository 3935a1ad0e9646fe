"""First selector: which tier goes next.

Theory. Tiers are ranked by the policy's order. The choice is strict: the first tier that
has eligible work is served, whatever waits below it. So a tier's service depends on the
tiers above it alone, and inside a tier fairness is the second selector's business.

This file knows nothing of tenants, costs or requests: it sees how much each tier has
ready, in rank order.
"""

from collections.abc import Iterable


def first_ready(ready: Iterable[int]) -> int | None:
    """Rank of the first tier with something ready; None when no tier has.

    Args:
        ready: eligible requests of each tier, in rank order.
    """
    for rank, count in enumerate(ready):
        if count:
            return rank
    return None
