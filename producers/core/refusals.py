"""How many refusals are recorded one by one, and how the others are counted.

A client that hammers a closed door must not fill the log. Of each tenant so many a second
are recorded whole; what comes beyond is counted by (tenant, endpoint, reason) and goes out
as one record with its count when the second is over. Endpoints that the policy does not
know are recorded as "", so that the counts are bounded by the policy.
"""

from schemas.reasons import Reason
from schemas.records import VERSION, Refusal

#: Refusals of one tenant recorded whole within one second; enough to see who and why.
REFUSALS_PER_SECOND = 20
SECOND_MS = 1_000


class RefusalMeter:
    """Decides which refusals are recorded now."""

    def __init__(self) -> None:
        """Start an empty second."""
        self._second = -1
        self._seen: dict[str, int] = {}
        self._counted: dict[tuple[str, str, Reason], tuple[int, int]] = {}

    def note(self, refusal: Refusal, now_ms: int) -> list[Refusal]:
        """Take a refusal in; returns the records due now (its own, and counts of the past)."""
        due = self.tick(now_ms)
        seen = self._seen.get(refusal.tenant, 0)
        self._seen[refusal.tenant] = seen + 1
        if seen < REFUSALS_PER_SECOND:
            return [*due, refusal]
        name = (refusal.tenant, refusal.endpoint, Reason(refusal.reason))
        count, cost = self._counted.get(name, (0, 0))
        self._counted[name] = (count + 1, cost + refusal.cost)
        return due

    def tick(self, now_ms: int) -> list[Refusal]:
        """Counts that are due because their second is over."""
        if now_ms // SECOND_MS == self._second:
            return []
        self._second = now_ms // SECOND_MS
        return self.drain()

    def drain(self) -> list[Refusal]:
        """All counts, due or not: the process is about to stop."""
        counts = [
            Refusal(VERSION, "", tenant, endpoint, reason.value, cost, count=count)
            for (tenant, endpoint, reason), (count, cost) in self._counted.items()
        ]
        self._counted.clear()
        self._seen.clear()
        return counts
