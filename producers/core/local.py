"""The limiter of one process: what it counts while Redis is down, and in the embedded mode.

The rules are the script's (`adapters/lua/limiter.lua`) and so are its names: counters of 5 s all
counted whole, calendar months in UTC, all of a charge or nothing of it over the tenant's limits
and its parent's, a charge id at most once, refund and settlement where it was charged. Bounded:
`_Counters` of tenants and endpoints of the policy only; ids are forgotten when their time is
over, and there are at most `IDS_MAX` of them.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.front import (
    CHARGE_TTL_MS,
    OPEN_CHARGE_TTL_MS,
    SLOT_MS,
    SLOTS,
    Admission,
    Charge,
    Settlement,
    Verdict,
)
from schemas.policy import Allowance
from schemas.verdicts import enforced, verdict

#: Ids that are known at a time, 100 MB of them; the oldest is forgotten before another is taken.
IDS_MAX = 200_000
DAY_MS = 86_400_000
_KINDS = 4


def month_end_ms(now_ms: int) -> int:
    """End of the UTC month that holds a time.

    Years begin in March, so that the leap day is their last: the first day of month m (March: 0)
    is (153 m + 2) / 5 days into the year.
    """
    era, day = divmod(now_ms // DAY_MS + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    before = 365 * year + year // 4 - year // 100
    month = (5 * (day - before) + 2) // 153
    first = era * 146_097 + before - 719_468
    if month < 11:  # noqa: PLR2004 - every month but February, whose end is the year's
        return (first + (153 * (month + 1) + 2) // 5) * DAY_MS
    following = year + 1
    is_leap = following % 4 == 0 and (following % 100 != 0 or following % 400 == 0)
    return (first + 366 if is_leap else first + 365) * DAY_MS


class Amount(NamedTuple):
    """Requests and tokens, both weighted."""

    requests: int
    tokens: int


class _Part(NamedTuple):
    """What one charge took, in the counter and the month in which it did."""

    slot: int
    month_ms: int
    taken: Amount


@dataclass(slots=True)
class _Paid:
    """What an id was charged."""

    weight: int
    until_ms: int
    parts: list[_Part] = field(default_factory=list)
    is_settled: bool = False

    def total(self) -> Amount:
        taken = [part.taken for part in self.parts]
        return Amount(sum(one.requests for one in taken), sum(one.tokens for one in taken))


class _Counters:
    """One tenant at one endpoint, seen from `now_ms`; looking changes nothing, adding does.

    Waits are told by the clock, which may have gone back behind it.
    """

    def __init__(self) -> None:
        self.latest_ms = 0  #: greatest time of a charge
        self.now_ms = self.clock_ms = 0
        self._month_ms = 0
        self._month = Amount(0, 0)
        self._ring: deque[tuple[int, Amount]] = deque()  #: counters by slot, oldest first

    @property
    def month_ms(self) -> int:
        return self._month_ms if self.now_ms < self._month_ms else month_end_ms(self.now_ms)

    def _counted(self) -> list[tuple[int, Amount]]:
        oldest = self.now_ms // SLOT_MS - SLOTS + 1
        return [one for one in self._ring if one[0] >= oldest]

    def add(self, slot: int, month_ms: int, more: Amount) -> None:
        self.latest_ms = self.now_ms
        if self.month_ms != self._month_ms:
            self._month_ms, self._month = self.month_ms, Amount(0, 0)
        if month_ms == self._month_ms:
            self._month = _sum(self._month, more)
        if self._ring and self._ring[-1][0] == slot:  # the usual case: not a new counter
            self._ring[-1] = slot, _sum(self._ring[-1][1], more)
            return
        self._ring = deque(self._counted())
        for place, (number, taken) in enumerate(self._ring):
            if number == slot:
                self._ring[place] = slot, _sum(taken, more)
                return
        if slot == self.now_ms // SLOT_MS:
            self._ring.append((slot, _sum(Amount(0, 0), more)))

    def used(self) -> list[int]:
        counted = self._counted()
        requests = sum(taken.requests for _, taken in counted)
        tokens = sum(taken.tokens for _, taken in counted)
        return [requests, tokens, *(self._month if self.now_ms < self._month_ms else (0, 0))]

    def wait_ms(self, kind: int, excess: int) -> int:
        """Until what is used is less by `excess`."""
        if kind > 1:
            return self.month_ms - self.clock_ms
        for slot, taken in self._counted():
            excess -= taken[kind]
            if excess <= 0:
                return (slot + SLOTS) * SLOT_MS - self.clock_ms
        return (self.now_ms // SLOT_MS + SLOTS) * SLOT_MS - self.clock_ms


def _sum(one: Amount, other: Amount) -> Amount:
    requests, tokens = one.requests + other.requests, one.tokens + other.tokens
    return Amount(max(0, requests), max(0, tokens))


class LocalLimits:
    """Counters of one process."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._counters = defaultdict[tuple[str, str], _Counters](_Counters)
        self._paid: dict[tuple[str, str, str], _Paid] = {}

    def charge(self, charge: Charge, now_ms: int) -> Verdict:
        """Take the charge or nothing, as the script does."""
        counters, now_ms = self._open(charge, now_ms)
        name = charge.tenant, charge.endpoint, charge.id
        paid = self._known(name, now_ms)
        before = paid.total() if paid else Amount(0, 0)
        more = Amount(
            max(0, charge.requests - before.requests), max(0, charge.tokens - before.tokens)
        )
        waits: list[int] = []
        decisive = 0
        if paid and (paid.is_settled or not any(more)):
            admission = Admission.REPEATED
            if len(paid.parts) == 1:  # another call counts on it now: it is not given back
                paid.parts.append(paid.parts[0]._replace(taken=Amount(0, 0)))
        else:
            for one, allowance in zip(
                counters, (charge.allowance, charge.parent_allowance), strict=False
            ):
                waits += _waits(one, allowance, Amount(charge.requests, charge.tokens), more)
            admission = _admission(waits)
        if admission is Admission.CHARGED:
            self._take(charge, counters, more)
        elif admission <= 0:
            decisive = 1 + next(
                place
                for place, wait_ms in enumerate(waits)
                if (wait_ms < 0 if admission is Admission.NEVER else wait_ms > 0)
            )
        used = [number for one in counters for number in one.used()]
        tally = [int(admission), now_ms, counters[0].month_ms, decisive, *used]
        return verdict(charge, tally + (waits if admission <= 0 else []))

    def note(self, charge: Charge, now_ms: int) -> None:
        """Count requests that were admitted by others' counters, in this minute.

        Not their tokens, which are settled there and not here, and not their month, of which a
        process sees a part.
        """
        counters, now_ms = self._open(charge, now_ms)
        for one in counters:
            one.add(now_ms // SLOT_MS, 0, Amount(charge.requests, 0))

    def refund(self, charge: Charge, now_ms: int) -> bool:
        """Give a charge back: its request was certainly not published."""
        counters, now_ms = self._open(charge, now_ms)
        name = charge.tenant, charge.endpoint, charge.id
        paid = self._known(name, now_ms)
        if paid is None or paid.is_settled or len(paid.parts) > 1:
            return False
        ((slot, month_ms, taken),) = paid.parts
        for one in counters:
            one.add(slot, month_ms, Amount(-taken.requests, -taken.tokens))
        del self._paid[name]
        return True

    def settle(self, settlement: Settlement, now_ms: int) -> bool:
        """Put the true tokens in the place of the estimate."""
        counters, now_ms = self._open(settlement, now_ms)
        name = settlement.tenant, settlement.endpoint, settlement.id
        paid = self._known(name, now_ms)
        if paid is None or paid.is_settled:
            return False
        more = 0
        if settlement.tokens is not None:
            more = settlement.tokens * paid.weight - paid.total().tokens
        for part in reversed(paid.parts):
            here = max(more, -part.taken.tokens) if more < 0 else more
            more -= here
            for one in counters if here else ():
                one.add(part.slot, part.month_ms, Amount(0, here))
        paid.is_settled, paid.until_ms = True, now_ms + CHARGE_TTL_MS
        self._keep(name, paid)
        return True

    def _open(self, asked: Charge | Settlement, now_ms: int) -> tuple[list[_Counters], int]:
        """The counters on their present time: the latest that any of them has seen."""
        names = [asked.tenant, asked.parent] if asked.parent else [asked.tenant]
        counters = [self._counters[name, asked.endpoint] for name in names]
        clock_ms, now_ms = now_ms, max(now_ms, *(one.latest_ms for one in counters))
        for one in counters:
            one.now_ms, one.clock_ms = now_ms, clock_ms
        return counters, now_ms

    def _known(self, name: tuple[str, str, str], now_ms: int) -> _Paid | None:
        paid = self._paid.get(name)
        return paid if paid and paid.until_ms > now_ms else None

    def _take(self, charge: Charge, counters: list[_Counters], more: Amount) -> None:
        now_ms, month_ms = counters[0].now_ms, counters[0].month_ms
        for one in counters:
            one.add(now_ms // SLOT_MS, month_ms, more)
        name = charge.tenant, charge.endpoint, charge.id
        paid = self._known(name, now_ms) or _Paid(charge.weight, 0)
        paid.until_ms = now_ms + id_ttl_ms(charge)
        paid.parts.append(_Part(now_ms // SLOT_MS, month_ms, more))
        self._keep(name, paid)

    def _keep(self, name: tuple[str, str, str], paid: _Paid) -> None:
        """Note what an id was charged, as the newest; forget what is over at the old end."""
        self._paid.pop(name, None)
        self._paid[name] = paid
        now_ms = self._counters[name[0], name[1]].now_ms
        while self._paid:
            oldest = next(iter(self._paid))
            if self._paid[oldest].until_ms > now_ms and len(self._paid) <= IDS_MAX:
                break
            del self._paid[oldest]


def id_ttl_ms(charge: Charge) -> int:
    """How long the id of a charge is kept: until it can be settled, or for its window."""
    return OPEN_CHARGE_TTL_MS if charge.keeps_id else CHARGE_TTL_MS


def _waits(counters: _Counters, allowance: Allowance, cost: Amount, more: Amount) -> list[int]:
    waits: list[int] = []
    limits = zip(enforced(allowance), counters.used(), strict=True)
    for kind, (limit, used) in enumerate(limits):
        wait_ms, unit = 0, kind % 2
        if limit >= 0 and (limit < 1 or cost[unit] > limit):
            wait_ms = -1
        elif limit >= 0 and more[unit] and used + more[unit] > limit:
            wait_ms = counters.wait_ms(kind, used + more[unit] - limit)
        waits.append(wait_ms)
    return waits


def _admission(waits: list[int]) -> Admission:
    if any(wait_ms < 0 for wait_ms in waits):
        return Admission.NEVER
    return Admission.REFUSED if any(waits) else Admission.CHARGED
