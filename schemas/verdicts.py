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
    """One limit of a policy; `at` is where a tally says how much of it is used."""

    at: int
    name: str
    limit: int
    window_s: int
    is_minute: bool


class _Plan(NamedTuple):
    """The limits of a charge: those that are enforced, by kind, and those in shadow.

    `plain` has the enforced ones where there is one of each kind.
    """

    enforced: tuple[tuple[_Limit, ...], ...]
    plain: tuple[_Limit, ...] | None
    shadow: tuple[_Limit, ...]


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
    limits = plan.plain
    if limits is None:
        limits = tuple(_tightest(some, tally, decisive) for some in plan.enforced)
    states: list[LimitState] = []
    for at, name, limit, window_s, is_minute in limits:
        used = tally[at]
        left = limit - used
        reset_s = (minute_s if is_minute else month_s) if used else 0
        states.append(LimitState(name, limit, used, max(0, left), window_s, reset_s))
    if decisive:
        return _refusal(charge, tally, limits, states)
    shadowed: tuple[str, ...] = ()
    if plan.shadow and admission == Admission.CHARGED:
        shadowed = tuple(one.name for one in plan.shadow if _would_refuse(one, charge, tally))
    return Verdict(_ADMISSIONS[admission], tuple(states), shadowed=shadowed)


def _refusal(
    charge: Charge, tally: Sequence[int], limits: Sequence[_Limit], states: Sequence[LimitState]
) -> Verdict:
    """The same for a tally with waits: a state tells its own."""
    admission, decisive = tally[0], tally[_HEAD - 1]
    waits = tally[_HEAD + (2 * _KINDS if charge.parent else _KINDS) :]
    told = tuple(
        state._replace(reset_s=-(-wait_ms // 1_000)) if wait_ms > 0 else state
        for one, state in zip(limits, states, strict=True)
        for wait_ms in (waits[one.at - _HEAD],)
    )
    return Verdict(
        _ADMISSIONS[admission],
        told,
        max(waits) if admission == Admission.REFUSED else 0,
        NAMES[(decisive - 1) % _KINDS],
        charge.parent if decisive > _KINDS else charge.tenant,
    )


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
                at = _HEAD + level * _KINDS + kind
                one = _Limit(at, NAMES[kind], limit, window_s, is_minute)
                (shadow if LIMITS[kind] in allowance.shadow else by_kind[kind]).append(one)
    told = tuple(tuple(limits) for limits in by_kind if limits)
    is_plain = all(len(limits) == 1 for limits in told)
    plain = tuple(limits[0] for limits in told) if is_plain else None
    return _Plan(told, plain, tuple(shadow))


def _tightest(limits: Sequence[_Limit], tally: Sequence[int], decisive: int) -> _Limit:
    """Which to tell of a kind's limits: the one that refused, else what has less left."""
    refused_at = _HEAD + decisive - 1
    return min(limits, key=lambda one: (one.at != refused_at, one.limit - tally[one.at]))


def _would_refuse(one: _Limit, charge: Charge, tally: Sequence[int]) -> bool:
    """Of what was taken now: all that is used, with this cost, is more than the limit."""
    cost = charge.tokens if (one.at - _HEAD) % 2 else charge.requests
    return max(tally[one.at], cost, 1) > one.limit
