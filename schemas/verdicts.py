"""From what the limiter counted to what a caller is told: one reading for script and twin.

A tally is what either of them answers to a charge, whole numbers in this order: admission, now,
end of the month (epoch milliseconds), place of the first limit that refused (from 1, 0: none),
what is used of each limit, and of a refusal the wait for each (0: room, -1: never). There are
four limits in the order of `schemas.policy.LIMITS`, the tenant's, then its parent's if it has one.

A limit in shadow is counted by the limiter as any other; that it refuses nobody is done by not
naming it there, and what it would have done is found here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from schemas.front import SLOT_MS, SLOTS, Admission, Charge, LimitState, Verdict
from schemas.policy import LIMITS, Allowance

#: Names of the limits in answers, in the order of `LIMITS`.
NAMES = ("requests/minute", "tokens/minute", "requests/month", "tokens/month")
MINUTE_S = 60
#: Window of a month in answers: the longest; `reset_s` says when this one ends.
MONTH_S = 31 * 86_400
#: In a tally before the figures of the limits.
_HEAD = 4
_MINUTES = 2  # limits of a minute among the four
_KINDS = len(LIMITS)


class _Limit(NamedTuple):
    """One limit with what became of it; `place` counts from 0 over both levels."""

    place: int
    limit: int
    used: int
    wait_ms: int
    is_shadow: bool


def enforced(allowance: Allowance) -> list[int]:
    """The four limits as the limiter is told them: -1 for none, and for those in shadow."""
    return [
        -1 if limit is None or field in allowance.shadow else limit
        for field, limit in zip(LIMITS, allowance.limits, strict=True)
    ]


def verdict(charge: Charge, tally: Sequence[int]) -> Verdict:
    """Read a tally."""
    admission, now_ms, month_ms, decisive = tally[:_HEAD]
    limits = _limits(charge, tally)
    tightest = dict[int, _Limit]()
    for one in limits:
        kind = one.place % _KINDS
        known = tightest.get(kind)
        if not one.is_shadow and (known is None or _is_tighter(one, known, decisive - 1)):
            tightest[kind] = one
    return Verdict(
        Admission(admission),
        tuple(_state(one, now_ms, month_ms) for one in tightest.values()),
        max((one.wait_ms for one in limits), default=0) if admission == Admission.REFUSED else 0,
        NAMES[(decisive - 1) % _KINDS] if decisive else "",
        (charge.parent if decisive > _KINDS else charge.tenant) if decisive else "",
        tuple(NAMES[one.place % _KINDS] for one in limits if _would_refuse(one, charge, admission)),
    )


def _limits(charge: Charge, tally: Sequence[int]) -> list[_Limit]:
    levels = [charge.allowance]
    if charge.parent:
        levels.append(charge.parent_allowance)
    count = _KINDS * len(levels)
    waits = tally[_HEAD + count :] or [0] * count
    found: list[_Limit] = []
    for level, allowance in enumerate(levels):
        for kind, limit in enumerate(allowance.limits):
            if limit is not None:
                place = level * _KINDS + kind
                is_shadow = LIMITS[kind] in allowance.shadow
                used = tally[_HEAD + place]
                found.append(_Limit(place, limit, used, waits[place], is_shadow))
    return found


def _is_tighter(one: _Limit, known: _Limit, decisive: int) -> bool:
    """Whose to tell of two limits of a kind: the one that refused, else what has less left."""
    if decisive in {one.place, known.place}:
        return one.place == decisive
    return one.limit - one.used < known.limit - known.used


def _state(one: _Limit, now_ms: int, month_ms: int) -> LimitState:
    kind = one.place % _KINDS
    is_minute = kind < _MINUTES
    if one.wait_ms > 0:
        reset_ms = one.wait_ms
    elif not one.used:
        reset_ms = 0
    elif is_minute:
        reset_ms = (now_ms // SLOT_MS + SLOTS) * SLOT_MS - now_ms
    else:
        reset_ms = month_ms - now_ms
    return LimitState(
        NAMES[kind],
        one.limit,
        one.used,
        max(0, one.limit - one.used),
        MINUTE_S if is_minute else MONTH_S,
        -(-reset_ms // 1_000),
    )


def _would_refuse(one: _Limit, charge: Charge, admission: int) -> bool:
    """Of what was taken now: all that is used, with this cost, is more than the limit."""
    if not one.is_shadow or admission != Admission.CHARGED:
        return False
    cost = charge.tokens if one.place % 2 else charge.requests
    return one.used > one.limit or cost > one.limit or one.limit < 1
