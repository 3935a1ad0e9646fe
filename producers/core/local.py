"""The limit without Redis: the same counters in this process, for the time it is down.

The same shape as `adapters/lua/limiter.lua`: 13 counters of 5 s, all counted whole, a charge
id at most once. Each ingress then counts alone, so that n of them admit up to n times the
limit: the price of going on. Bounded: `Window`s of tenants and endpoints of the policy only,
each with as many charges as its limit admits.
"""

from collections import deque

from schemas.front import SLOT_MS, SLOTS, Admission, Charge, Verdict


class _Window:
    """One tenant at one endpoint: (slot, cost, id) of each charge still counted."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.used = 0
        self.charges: deque[tuple[int, int, str]] = deque()
        self.ids: dict[str, None] = {}

    def advance(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        oldest = self.now_ms // SLOT_MS - SLOTS + 1
        while self.charges and self.charges[0][0] < oldest:
            _, cost, charge_id = self.charges.popleft()
            self.used -= cost
            del self.ids[charge_id]

    def take(self, charge: Charge) -> None:
        self.charges.append((self.now_ms // SLOT_MS, charge.cost, charge.id))
        self.ids[charge.id] = None
        self.used += charge.cost

    def wait_ms(self, excess: int) -> int:
        for slot, cost, _ in self.charges:
            excess -= cost
            if excess <= 0:
                return (slot + SLOTS) * SLOT_MS - self.now_ms
        return SLOTS * SLOT_MS


class LocalLimits:
    """Counters of one process."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._windows: dict[tuple[str, str], _Window] = {}

    def charge(self, charge: Charge, now_ms: int) -> Verdict:
        """Take the charge or nothing, as the script does."""
        if charge.limit < 1 or charge.cost > charge.limit:
            return Verdict(Admission.NEVER, charge.limit, 0, max(0, charge.limit), 0)
        window = self._windows.setdefault((charge.tenant, charge.endpoint), _Window())
        window.advance(now_ms)
        excess = window.used + charge.cost - charge.limit
        admission, retry_ms = Admission.CHARGED, 0
        if charge.id in window.ids:
            admission = Admission.REPEATED
        elif excess > 0:
            admission, retry_ms = Admission.REFUSED, window.wait_ms(excess)
        else:
            window.take(charge)
        remaining = max(0, charge.limit - window.used)
        return Verdict(admission, charge.limit, window.used, remaining, retry_ms)
