"""The limit without Redis: the same counters in this process, for the time it is down.

The same as `adapters/lua/limiter.lua`: 13 counters of 5 s, all counted whole, a charge id at
most once, and at a higher cost the difference. Each ingress then counts alone, so that n of
them admit up to n times the limit: the price of going on. Bounded: `Window`s of tenants and
endpoints of the policy only, each with as many charges as its limit admits.
"""

from collections import deque

from schemas.front import SLOT_MS, SLOTS, Admission, Charge, Verdict


class _Counter:
    """What was taken within one slot, and whose last part it is."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.used = 0
        self.paid: dict[str, int] = {}  #: by charge id, all that was taken for it


class _Window:
    """One tenant at one endpoint: the counters that count, oldest first."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.counters: deque[_Counter] = deque()
        self.counter_of: dict[str, _Counter] = {}

    @property
    def used(self) -> int:
        return sum(counter.used for counter in self.counters)

    def advance(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        oldest = self.now_ms // SLOT_MS - SLOTS + 1
        while self.counters and self.counters[0].slot < oldest:
            for charge_id in self.counters.popleft().paid:
                del self.counter_of[charge_id]

    def paid(self, charge_id: str) -> int:
        counter = self.counter_of.get(charge_id)
        return counter.paid[charge_id] if counter else 0

    def take(self, charge: Charge, more: int) -> None:
        slot = self.now_ms // SLOT_MS
        if not self.counters or self.counters[-1].slot != slot:
            self.counters.append(_Counter(slot))
        newest, before = self.counters[-1], self.counter_of.get(charge.id)
        if before:
            del before.paid[charge.id]
        newest.used += more
        newest.paid[charge.id] = charge.cost
        self.counter_of[charge.id] = newest

    def wait_ms(self, excess: int, charge_id: str) -> int:
        for counter in self.counters:
            excess += counter.paid.get(charge_id, 0) - counter.used
            if excess <= 0:
                return (counter.slot + SLOTS) * SLOT_MS - self.now_ms
        return SLOTS * SLOT_MS


class LocalLimits:
    """Counters of one process."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._windows: dict[tuple[str, str], _Window] = {}

    def charge(self, charge: Charge, now_ms: int) -> Verdict:
        """Take the charge or nothing, as the script does."""
        window = self._windows.setdefault((charge.tenant, charge.endpoint), _Window())
        window.advance(now_ms)
        more = charge.cost - window.paid(charge.id)
        excess = window.used + more - charge.limit
        admission, retry_ms = Admission.CHARGED, 0
        if more <= 0:
            admission = Admission.REPEATED
        elif charge.limit < 1 or charge.cost > charge.limit:
            admission = Admission.NEVER
        elif excess > 0:
            admission, retry_ms = Admission.REFUSED, window.wait_ms(excess, charge.id)
        else:
            window.take(charge, more)
        used = window.used
        return Verdict(admission, charge.limit, used, max(0, charge.limit - used), retry_ms)
