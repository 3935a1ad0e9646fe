"""Who asked, who was served, who waits: the figures of one run, kept as it goes.

Fed by `Tally.asked` and `Tally.ended`, whatever runs behind: the virtual world, or
processes on a real Kafka. Times are milliseconds since the beginning of the run.

A request waits until its engine begins: ended - arrived - service. Percentiles are by
nearest rank.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from schemas.policy import Policy
from schemas.records import End, Result

#: The throughput shown is that of the last second.
WINDOW_MS = 1_000


class Waits(NamedTuple):
    """Percentiles of waits in milliseconds; zeros when nobody was served."""

    p50: int = 0
    p95: int = 0
    p99: int = 0
    max: int = 0


def waits_of(values: Sequence[int]) -> Waits:
    """Percentiles by nearest rank."""
    if not values:
        return Waits()
    ranked = sorted(values)
    return Waits(*(ranked[-(-len(ranked) * percent // 100) - 1] for percent in (50, 95, 99, 100)))


class TenantTally:
    """Figures of one tenant. `waits_ms` are of those who were served, in order of their end."""

    def __init__(self, name: str, tier: str, weight: int) -> None:
        self.name = name
        self.tier = tier
        self.weight = weight
        self.arrived_ms: list[int] = []
        self.ended = 0
        self.failed = 0
        self.last_ended_ms = 0
        self.last_picked_ms = 0
        self.waits_ms: list[int] = []
        self.longest_ms = 0

    @property
    def waiting(self) -> int:
        """Requests without a result; a result may be seen before its request's acceptance."""
        return max(0, len(self.arrived_ms) - self.ended)

    def longest_wait_ms(self, now_ms: int, service_ms: int) -> int:
        """Longest wait so far, of the served and of those who still wait.

        Who waits may be in an engine's hands already: at most `service_ms` are left out.
        """
        if self.waiting:
            # Some of the first `ended` + 1 requests has no result yet.
            age_ms = now_ms - self.arrived_ms[self.ended] - service_ms
            self.longest_ms = max(self.longest_ms, age_ms)
        return self.longest_ms


class Tally:
    """Figures of all tenants of a policy, in its order of tiers."""

    def __init__(self, policy: Policy) -> None:
        ranks = {tier.name: rank for rank, tier in enumerate(policy.tiers)}
        tenants = [TenantTally(t.name, t.tiers[0], t.weight) for t in policy.tenants]
        tenants.sort(key=lambda tenant: ranks[tenant.tier])
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.asked_count = 0
        self.ended_count = 0
        self.service_ms: list[int] = []
        self._recent: deque[tuple[int, int]] = deque()
        self._fills: list[tuple[int, int]] = []

    def asked(self, tenant: str, at_ms: int) -> None:
        """A request came."""
        self.tenants[tenant].arrived_ms.append(at_ms)
        self.asked_count += 1

    def refused(self, tenant: str, at_ms: int) -> None:
        """A request came and was not let in: nothing of it waits."""
        self.asked(tenant, at_ms)
        self.tenants[tenant].failed += 1
        self.tenants[tenant].ended += 1
        self.ended_count += 1

    def ended(self, result: Result, start_ms: int) -> None:
        """A request has its result; `start_ms` is when the run began, on the result's clock."""
        tenant = self.tenants[result.tenant]
        tenant.ended += 1
        self.ended_count += 1
        at_ms = result.ended_ms - start_ms
        tenant.last_ended_ms = max(tenant.last_ended_ms, at_ms)
        tenant.last_picked_ms = max(tenant.last_picked_ms, result.picked_ms - start_ms)
        if self._recent and self._recent[-1][0] == at_ms:
            self._recent[-1] = (at_ms, self._recent[-1][1] + 1)
        else:
            self._recent.append((at_ms, 1))
        if result.end is not End.SUCCEEDED:
            tenant.failed += 1
            return
        service_ms = result.usage.service_ms
        wait_ms = max(0, result.ended_ms - result.arrived_ms - service_ms)
        tenant.waits_ms.append(wait_ms)
        tenant.longest_ms = max(tenant.longest_ms, wait_ms)
        self.service_ms.append(service_ms)

    def batch(self, picked_ms: int, requests: int) -> None:
        """A batch of so many requests was sent."""
        self._fills.append((picked_ms, requests))

    def per_second(self, now_ms: int) -> int:
        """Requests that ended within the last second."""
        while self._recent and self._recent[0][0] <= now_ms - WINDOW_MS:
            self._recent.popleft()
        return sum(count for _, count in self._recent)

    def fill(self, from_ms: int, until_ms: int, batch_requests: int) -> float:
        """How full the batches picked in [from, until) were, 0..1; 0 when there was none."""
        sizes = [size for picked_ms, size in self._fills if from_ms <= picked_ms < until_ms]
        return sum(sizes) / (len(sizes) * batch_requests) if sizes else 0.0

    def last_ended_ms(self) -> int:
        """When the last request ended."""
        return max(tenant.last_ended_ms for tenant in self.tenants.values())

    def longest_service_ms(self) -> int:
        """Longest time of an engine so far."""
        return max(self.service_ms, default=0)

    def batch_ms(self) -> int:
        """One batch's time in the engine: the median over the served requests."""
        return waits_of(self.service_ms).p50

    def waits(self, tenant: str) -> Waits:
        """Percentiles of one tenant's waits."""
        return waits_of(self.tenants[tenant].waits_ms)
