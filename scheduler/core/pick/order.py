"""Third selector: which of a tenant's requests goes next.

Theory. Inside its own share a tenant decides: explicit priority (0 is the most urgent),
then the earliest deadline (none is the latest), then arrival. Arrival is the log's append
time; ties end in the request's place in the log, so that the order is total and the same
in every run.

This file knows nothing of other tenants.
"""

#: A request without a deadline sorts after every one that has one.
NO_DEADLINE = 1 << 62

Order = tuple[int, int, int, int]


def order(priority: int, deadline_ms: int, arrived_ms: int, key: int) -> Order:
    """Sort key of a request inside its tenant: the smallest goes first."""
    return priority, deadline_ms or NO_DEADLINE, arrived_ms, key
