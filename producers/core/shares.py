"""What one of several ingresses may let in by itself, when none knows what the others did.

Each limit is divided by the number of ingresses, rounded down, so that all of them together
admit no more than the limit; but a cost that fits the limit fits the share as well: a small limit
would lock everybody out otherwise. So together they exceed a limit at most where a share is less
than one request. What others let in by Redis before it went is not known here.
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
    def part(limit: int | None, cost: int) -> int | None:
        return None if limit is None else max(limit // ingresses, min(limit, cost))

    requests_per_minute, tokens_per_minute, requests_per_month, tokens_per_month = allowance.limits
    return Allowance(
        part(requests_per_minute, charge.requests),
        part(tokens_per_minute, charge.tokens),
        part(requests_per_month, charge.requests),
        part(tokens_per_month, charge.tokens),
        allowance.shadow,
    )
