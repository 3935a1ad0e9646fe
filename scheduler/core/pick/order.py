"""Third selector: which of a tenant's requests goes next.

Theory. Inside its own share a tenant decides: explicit priority (0 is the most urgent),
then the earliest deadline (none is the latest), then arrival. Arrival is the log's append
time; ties end in the request's place in the log, so that the order is total and the same
in every run.

Aging, if the tenant wants it: each `aging_ms` of waiting are worth one step of priority.
At any moment t a request's aged priority is

    priority - (t - arrived) / aging_ms

and t is the same for all that are compared, so the order is that of

    priority * aging_ms + arrived

which needs no clock, never saturates, and lets an old request pass any that comes
999 * aging_ms later. It compares requests of one tenant alone: nobody ages into the share
of others.

All of it is one integer, so that a heap compares and keeps nothing else:

    urgency << 160 | deadline << 112 | arrived << 64 | key

This file knows nothing of other tenants.
"""

from typing import Final

#: Bits of a time: epoch milliseconds until the year 10,889.
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << 48) - 1
#: The latest arrival that an order holds as it is.
AT_MS_MAX: Final = (1 << 48) - 1
_KEY_BITS: Final = 64
KEY_MASK: Final = (1 << 64) - 1
_DEADLINE_SHIFT: Final = 112
_URGENCY_SHIFT: Final = 160
#: A request without a deadline sorts after every one that has one.
_NO_DEADLINE: Final = _TIME_MASK
#: Where an order has all of these bits, there is no deadline.
DEADLINE_BITS: Final = _TIME_MASK << _DEADLINE_SHIFT
#: Above this, urgency and deadline: what order there is before arrivals.
HEAD_SHIFT: Final = 112
#: What stands above the arrival of a request with this priority, without deadline and aging.
_USUAL: Final = [priority << _URGENCY_SHIFT | DEADLINE_BITS for priority in range(1_000)]
_USUAL_MAX: Final = 999


def order(priority: int, deadline_ms: int, arrived_ms: int, key: int, aging_ms: int = 0) -> int:
    """Sort key of a request inside its tenant: the smallest goes first.

    Args:
        priority: 0 is the most urgent.
        deadline_ms: epoch milliseconds, 0 for none.
        arrived_ms: epoch milliseconds.
        key: the request's place in the log (`schemas.records.pack_key`).
        aging_ms: waiting that is worth a step of priority, 0: none is.

    Times that no clock shows are brought into range, so that they can't spill over into
    what stands beside them.
    """
    is_usual = not deadline_ms and not aging_ms and 0 <= priority <= _USUAL_MAX
    if is_usual and 0 <= arrived_ms <= _TIME_MASK:
        return _USUAL[priority] | (arrived_ms << _KEY_BITS | key)
    if not (0 <= deadline_ms <= _TIME_MASK and 0 <= arrived_ms <= _TIME_MASK):
        arrived_ms = min(max(arrived_ms, 0), _TIME_MASK)
        deadline_ms = min(max(deadline_ms, 1), _NO_DEADLINE) if deadline_ms else 0
    urgency = priority * aging_ms + arrived_ms if aging_ms else priority
    return (
        urgency << _URGENCY_SHIFT
        | (deadline_ms or _NO_DEADLINE) << _DEADLINE_SHIFT
        | arrived_ms << _KEY_BITS
        | key
    )


def key_of(packed: int) -> int:
    """The key in an order."""
    return packed & KEY_MASK


def arrived_of(packed: int) -> int:
    """The arrival in an order, epoch milliseconds."""
    return packed >> _KEY_BITS & _TIME_MASK


def deadline_of(packed: int) -> int:
    """The deadline in an order, epoch milliseconds; 0: none."""
    deadline_ms = packed >> _DEADLINE_SHIFT & _TIME_MASK
    return 0 if deadline_ms == _NO_DEADLINE else deadline_ms


def priority_of(packed: int, aging_ms: int = 0) -> int:
    """The priority in an order that was made with this `aging_ms`."""
    urgency = packed >> _URGENCY_SHIFT
    return (urgency - arrived_of(packed)) // aging_ms if aging_ms else urgency
