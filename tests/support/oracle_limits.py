"""What the limits must say, found without counters: a list of what was taken, and a calendar.

Everything is looked up in the list by its time. A wait is found by asking again at each time at
which a counter or a month ends, not by arithmetic.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from schemas.front import Admission, Charge, Settlement
from schemas.policy import Allowance

EDGE_MS = 5_000
COUNTED = 13
KEPT_MS = 70_000
KEPT_OPEN_MS = (7 * 24 // 2 + 24) * 3_600_000


class Said(NamedTuple):
    """What is compared: the verdict without its presentation."""

    admission: Admission
    used: tuple[tuple[str, int], ...]
    retry_ms: int
    refused_by: str
    refused_of: str


@dataclass
class Taking:
    """An amount taken from one tenant's counters."""

    who: tuple[str, str]
    time_ms: int
    requests: int
    tokens: int


@dataclass
class Known:
    """What an id was charged: the amounts, each taken from a family together."""

    weight: int
    until_ms: int = 0
    takings: list[list[Taking]] = field(default_factory=list)
    is_settled: bool = False

    @property
    def requests(self) -> int:
        return sum(family[0].requests for family in self.takings)

    @property
    def tokens(self) -> int:
        return sum(family[0].tokens for family in self.takings)


def month_of(time_ms: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return moment.year, moment.month


def next_month_ms(time_ms: int) -> int:
    year, month = month_of(time_ms)
    following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return int(following.timestamp()) * 1_000


class Oracle:
    """All that was ever taken."""

    def __init__(self) -> None:
        self.takings: list[Taking] = []
        self.known: dict[tuple[str, str, str], Known] = {}
        self.latest: dict[tuple[str, str], int] = {}

    def charge(self, charge: Charge, now_ms: int) -> Said:
        family = _family(charge)
        clock_ms, now_ms = now_ms, self._now(family, now_ms)
        known = self._known(charge, now_ms)
        requests = max(0, charge.requests - (known.requests if known else 0))
        tokens = max(0, charge.tokens - (known.tokens if known else 0))
        limits = list(_limits(charge))
        if known and (known.is_settled or requests == tokens == 0):
            first = known.takings[0][0].time_ms
            shared = [Taking(who, first, 0, 0) for who in family]
            known.takings.append(shared)
            self.takings += shared
            return self._said(Admission.REPEATED, charge, now_ms)
        never = [one for one in limits if one.limit < 1 or one.cost(charge) > one.limit]
        if never:
            return self._said(Admission.NEVER, charge, now_ms, never[0])
        full = [
            one
            for one in limits
            if not self._has_room(one, now_ms, tokens if one.is_tokens else requests)
        ]
        if full:
            wait_ms = max(
                self._wait_ms(one, now_ms, tokens if one.is_tokens else requests) for one in full
            )
            wait_ms += now_ms - clock_ms
            return self._said(Admission.REFUSED, charge, now_ms, full[0], wait_ms)
        taken = [Taking(who, now_ms, requests, tokens) for who in family]
        self.takings += taken
        known = known or Known(charge.weight)
        known.until_ms = now_ms + (KEPT_OPEN_MS if _outlasts_a_minute(charge) else KEPT_MS)
        known.takings.append(taken)
        self.known[charge.tenant, charge.endpoint, charge.id] = known
        self._seen(family, now_ms)
        return self._said(Admission.CHARGED, charge, now_ms)

    def refund(self, charge: Charge, now_ms: int) -> bool:
        family = _family(charge)
        now_ms = self._now(family, now_ms)
        known = self._known(charge, now_ms)
        if known is None or known.is_settled or len(known.takings) > 1:
            return False
        for taking in known.takings[0]:
            self.takings.remove(taking)
        del self.known[charge.tenant, charge.endpoint, charge.id]
        self._seen(family, now_ms)
        return True

    def settle(self, settlement: Settlement, now_ms: int) -> bool:
        family = _family(settlement)
        now_ms = self._now(family, now_ms)
        known = self._known(settlement, now_ms)
        if known is None or known.is_settled:
            return False
        known.is_settled, known.until_ms = True, now_ms + KEPT_MS
        if settlement.tokens is None or settlement.tokens * known.weight == known.tokens:
            return True
        self._seen(family, now_ms)
        more = settlement.tokens * known.weight - known.tokens
        for taken in reversed(known.takings):
            here = max(more, -taken[0].tokens)
            for taking in taken:
                taking.tokens += here
            more -= here
        return True

    def used(self, who: tuple[str, str], field_name: str, now_ms: int) -> int:
        unit, _, window = field_name.partition("/")
        return sum(
            getattr(one, unit)
            for one in self.takings
            if one.who == who
            and (
                month_of(one.time_ms) == month_of(now_ms)
                if window == "month"
                else now_ms // EDGE_MS - one.time_ms // EDGE_MS < COUNTED
            )
        )

    def _now(self, family: list[tuple[str, str]], now_ms: int) -> int:
        return max(now_ms, *(self.latest.get(who, 0) for who in family))

    def _seen(self, family: list[tuple[str, str]], now_ms: int) -> None:
        for who in family:
            self.latest[who] = now_ms

    def _known(self, asked: Charge | Settlement, now_ms: int) -> Known | None:
        known = self.known.get((asked.tenant, asked.endpoint, asked.id))
        return known if known and known.until_ms > now_ms else None

    def _has_room(self, one: "Limit", now_ms: int, more: int) -> bool:
        return more == 0 or self.used(one.who, one.name, now_ms) + more <= one.limit

    def _wait_ms(self, one: "Limit", now_ms: int, more: int) -> int:
        if one.name.endswith("month"):
            return next_month_ms(now_ms) - now_ms
        edge_ms = now_ms // EDGE_MS * EDGE_MS + EDGE_MS
        while not self._has_room(one, edge_ms, more):
            edge_ms += EDGE_MS
        return edge_ms - now_ms

    def _left(self, one: "Limit", now_ms: int) -> int:
        return one.limit - self.used(one.who, one.name, now_ms)

    def _said(
        self,
        admission: Admission,
        charge: Charge,
        now_ms: int,
        one: "Limit | None" = None,
        wait_ms: int = 0,
    ) -> Said:
        """Of each name the limit that refused, else the one that has less left."""
        told: dict[str, Limit] = {}
        for other in _limits(charge):
            known = told.setdefault(other.name, other)
            if one in {known, other}:
                told[other.name] = one or other
            elif self._left(other, now_ms) < self._left(known, now_ms):
                told[other.name] = other
        order = ("requests/minute", "tokens/minute", "requests/month", "tokens/month")
        used = tuple(
            (name, self.used(told[name].who, name, now_ms)) for name in order if name in told
        )
        return Said(admission, used, wait_ms, one.name if one else "", one.who[0] if one else "")


class Limit(NamedTuple):
    """One enforced limit."""

    who: tuple[str, str]
    name: str
    limit: int

    @property
    def is_tokens(self) -> bool:
        return self.name.startswith("tokens")

    def cost(self, charge: Charge) -> int:
        return charge.tokens if self.is_tokens else charge.requests


def _family(asked: Charge | Settlement) -> list[tuple[str, str]]:
    names = [asked.tenant, asked.parent] if asked.parent else [asked.tenant]
    return [(name, asked.endpoint) for name in names]


def _limits(charge: Charge) -> list[Limit]:
    found: list[Limit] = []
    allowances = [charge.allowance, charge.parent_allowance]
    for who, allowance in zip(_family(charge), allowances, strict=False):
        for field_name in Allowance._fields[:4]:
            limit = getattr(allowance, field_name)
            if limit is not None and field_name not in allowance.shadow:
                found.append(Limit(who, field_name.replace("_per_", "/"), limit))
    return found


def _outlasts_a_minute(charge: Charge) -> bool:
    allowances = (charge.allowance, charge.parent_allowance)
    return any(
        limit is not None
        for one in allowances
        for limit in (one.tokens_per_minute, one.requests_per_month, one.tokens_per_month)
    )
