"""What one of several ingresses may let in by itself, when none knows what the others did.

Each limit is divided by the number of ingresses, rounded down, so that all of them together
admit no more than the limit; but a cost that fits the limit fits the share as well: a small limit
would lock everybody out otherwise. So together they exceed a limit at most where a share is less
than one request. What was counted in Redis before it went is not known here.
"""

from schemas.front import Charge
from schemas.policy import Allowance


def shared(charge: Charge, ingresses: int) -> Charge:
    """The charge against this ingress's share of its limits."""
    if ingresses <= 1:
        return charge
    return charge._replace(
        allowance=_part(charge.allowance, charge, ingresses),
        parent_allowance=_part(charge.parent_allowance, charge, ingresses),
    )


def _part(allowance: Allowance, charge: Charge, ingresses: int) -> Allowance:
    costs = (charge.requests, charge.tokens) * 2
    parts = (
        None if limit is None else max(limit // ingresses, min(limit, cost))
        for limit, cost in zip(allowance.limits, costs, strict=True)
    )
    return Allowance(*parts, shadow=allowance.shadow)
