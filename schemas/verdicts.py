"""From what the limiter counted to what a caller is told: one reading for script and twin.

A tally is what either of them answers to a charge, whole numbers in this order: admission, now,
end of the month (epoch milliseconds), place of the first limit that refused (from 1, 0: none),
what is used of each limit, and of a refusal the wait for each (0: room, -1: never). There are
four limits in the order of `schemas.policy.LIMITS`, the tenant's, then its parent's if it has one.

A limit in shadow is counted by the limiter as any other; that it refuses nobody is done by not
naming it there, and what it would have done is found here.
"""

from collections.abc import Sequence
from functools import lru_cache
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
#: Plans that are kept: one for each allowance of a policy, mostly far fewer.
_PLANS_MAX = 4_096
_ADMISSIONS = {int(one): one for one in Admission}


class _Limit(NamedTuple):
    """One limit of a policy; `place` in a tally, from 0 over both levels."""

    place: int
    name: str
    limit: int
    window_s: int
    is_minute: bool


class _Plan(NamedTuple):
    """The limits of a charge: those that are enforced, by kind, and those in shadow."""

    enforced: tuple[tuple[_Limit, ...], ...]
    shadow: tuple[_Limit, ...]
    places: int


def enforced(allowance: Allowance) -> list[int]:
    """The four limits as the limiter is told them: -1 for none, and for those in shadow."""
    return [
        -1 if limit is None or field in allowance.shadow else max(0, limit)
        for field, limit in zip(LIMITS, allowance.limits, strict=True)
    ]


def verdict(charge: Charge, tally: Sequence[int]) -> Verdict:
    """Read a tally."""
    admission, now_ms, month_ms, decisive = tally[:_HEAD]
    plan = _plan(charge.allowance, charge.parent_allowance if charge.parent else None)
    minute_s = -(-((now_ms // SLOT_MS + SLOTS) * SLOT_MS - now_ms) // 1_000)
    month_s = -(-(month_ms - now_ms) // 1_000)
    waits = tally[_HEAD + plan.places :]
    states: list[LimitState] = []
    for limits in plan.enforced:
        one = limits[0]
        if len(limits) > 1:
            one = _tightest(limits, tally, decisive - 1)
        place, name, limit, window_s, is_minute = one
        used = tally[_HEAD + place]
        reset_s = (minute_s if is_minute else month_s) if used else 0
        if waits and waits[place] > 0:
            reset_s = -(-waits[place] // 1_000)
        states.append(LimitState(name, limit, used, max(0, limit - used), window_s, reset_s))
    if decisive:
        retry_ms = max(waits) if admission == Admission.REFUSED else 0
        owner = charge.parent if decisive > _KINDS else charge.tenant
        name = NAMES[(decisive - 1) % _KINDS]
        return Verdict(_ADMISSIONS[admission], tuple(states), retry_ms, name, owner)
    shadowed = tuple(one.name for one in plan.shadow if _would_refuse(one, charge, tally))
    return Verdict(_ADMISSIONS[admission], tuple(states), shadowed=shadowed)


@lru_cache(_PLANS_MAX)
def _plan(own: Allowance, parent: Allowance | None) -> _Plan:
    levels = [own] if parent is None else [own, parent]
    by_kind: list[list[_Limit]] = [[] for _ in LIMITS]
    shadow: list[_Limit] = []
    for level, allowance in enumerate(levels):
        for kind, limit in enumerate(allowance.limits):
            if limit is not None:
                is_minute = kind < _MINUTES
                window_s = MINUTE_S if is_minute else MONTH_S
                one = _Limit(level * _KINDS + kind, NAMES[kind], limit, window_s, is_minute)
                (shadow if LIMITS[kind] in allowance.shadow else by_kind[kind]).append(one)
    told = tuple(tuple(limits) for limits in by_kind if limits)
    return _Plan(told, tuple(shadow), _KINDS * len(levels))


def _tightest(limits: Sequence[_Limit], tally: Sequence[int], decisive: int) -> _Limit:
    """Which to tell of two limits of a kind: the one that refused, else what has less left."""
    return min(
        limits,
        key=lambda one: (one.place != decisive, one.limit - tally[_HEAD + one.place]),
    )


def _would_refuse(one: _Limit, charge: Charge, tally: Sequence[int]) -> bool:
    """Of what was taken now: all that is used, with this cost, is more than the limit."""
    if tally[0] != Admission.CHARGED:
        return False
    cost = charge.tokens if one.place % 2 else charge.requests
    return max(tally[_HEAD + one.place], cost, 1) > one.limit
