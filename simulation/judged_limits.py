"""The rules about who may be picked and who may wait: pauses, limits, and work that is due.

Like the rest of the judge it is folded from the log alone: every question is answered by
counting the requests that are live, not by counters that are kept.

What belongs here: pauses, limits in flight, waiting and of batches, idle lanes. What does
not: the order of decisions, and who holds a request (simulation.judged_shard).
"""

from collections.abc import Callable, Iterator

from schemas.decisions import Unpaused
from schemas.policy import Endpoint, Policy, Tenant
from schemas.records import Pause, Request, Resume
from simulation.judged import Life
from simulation.rules import Rule

#: Above every count: no limit.
NO_LIMIT = 1 << 62


class Limits:
    """Judges against the policy that holds; `lives` are the shard's requests, kept elsewhere."""

    def __init__(self, lives: dict[int, Life], breaks: Callable[[Rule, str], None]) -> None:
        """`breaks` is told the rule and the case."""
        self._lives = lives
        self._breaks = breaks
        self._pauses: dict[tuple[str, str], int] = {}
        self._policy: Policy | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self._tenants: dict[str, Tenant] = {}
        self._is_limited = False

    def follow(self, policy: Policy) -> None:
        """Another policy holds."""
        self._policy = policy
        self._endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
        self._tenants = {tenant.name: tenant for tenant in policy.tenants}
        own = any(tenant.in_flight for tenant in policy.tenants)
        self._is_limited = own or any(e.in_flight is not None for e in policy.endpoints)

    # --- pauses

    def control(self, record: Pause | Resume) -> None:
        """An operator paused or resumed."""
        if isinstance(record, Pause):
            self._pauses[record.tenant, record.endpoint] = record.until_ms
        else:
            self._pauses.pop((record.tenant, record.endpoint), None)

    def unpaused(self, step: Unpaused, now_ms: int) -> None:
        """A pause is said to be over by itself."""
        until_ms = self._pauses.pop((step.tenant, step.endpoint), None)
        if not until_ms or until_ms > now_ms:
            self._breaks(Rule.PAUSED, f"{step} at {now_ms}, of a pause until {until_ms}")

    def _pause(self, tenant: str, endpoint: str) -> tuple[str, str] | None:
        """The pause that covers a tenant at an endpoint, its parent's too."""
        if not self._pauses:
            return None
        for who in ("", *self._lineage(tenant)):
            for where in ("", endpoint):
                if (who, where) in self._pauses:
                    return who, where
        return None

    # --- counting

    def _lineage(self, tenant: str) -> tuple[str, ...]:
        """A tenant, and the parent whose limits and pauses are its own as well."""
        known = self._tenants.get(tenant)
        return (tenant, known.parent) if known and known.parent else (tenant,)

    def _is_known(self, life: Life) -> bool:
        tenant = self._tenants.get(life.meta.tenant)
        is_here = life.meta.endpoint in self._endpoints
        return is_here and tenant is not None and life.asked.tier in tenant.tiers

    def _of(self, tenant: str, endpoint: str) -> Iterator[Life]:
        """Requests that count for a tenant: its own and its children's."""
        for life in self._lives.values():
            if life.meta.endpoint == endpoint and tenant in self._lineage(life.meta.tenant):
                yield life

    def _in_flight(self, tenant: str, endpoint: str) -> int:
        return sum(life.is_flying for life in self._of(tenant, endpoint))

    def _guaranteed(self, tenant: str, endpoint: str) -> int:
        assert self._policy is not None
        most = self._policy.in_flight(self._tenants[tenant], self._endpoints[endpoint])
        return NO_LIMIT if most is None else most

    def _most(self, tenant: str, endpoint: str) -> int:
        assert self._policy is not None
        burst = self._policy.burst(self._tenants[tenant], self._endpoints[endpoint])
        return self._guaranteed(tenant, endpoint) + burst

    # --- waiting

    def waiting_is_full(self, meta: Request) -> str:
        """Whose limit of waiting requests is reached, for a request that comes; "": nobody's."""
        policy, endpoint = self._policy, self._endpoints.get(meta.endpoint)
        if policy is None or endpoint is None or meta.tenant not in self._tenants:
            return ""
        for name in self._lineage(meta.tenant):
            most = policy.waiting(self._tenants[name], endpoint)
            if most is None:
                continue
            lives = self._of(name, endpoint.name)
            count = sum(life.is_waiting and self._is_known(life) for life in lives)
            if count >= most:
                return f"{count} of {name} wait and {most} may"
        return ""

    # --- picks

    def picked(self, life: Life) -> None:
        """A pick of what may run by the policy; it is not in flight yet."""
        meta = life.meta
        tenant, endpoint = meta.tenant, meta.endpoint
        pause = self._pause(tenant, endpoint)
        if pause is not None:
            self._breaks(Rule.PAUSED, f"{meta.id} of {tenant} at {endpoint} is picked: {pause}")
        if not self._is_limited:
            return
        for name in self._lineage(tenant):
            count, most = self._in_flight(name, endpoint), self._most(name, endpoint)
            if count >= most:
                case = f"{meta.id} is picked, {name} has {count} in flight and may have {most}"
                self._breaks(Rule.IN_FLIGHT, case)
            if count >= self._guaranteed(name, endpoint):
                self._burst(life, name)

    def _burst(self, life: Life, name: str) -> None:
        """Beyond the guarantee of `name`: nobody beside it is below its own and has work."""
        endpoint, root = life.meta.endpoint, self._lineage(life.meta.tenant)[-1]
        for other in self._eligible(endpoint):
            if other.asked.tier != life.asked.tier:
                continue
            their = self._lineage(other.meta.tenant)
            rival = their[-1] if name == root else their[0]
            if rival == name or (name != root and their[-1] != root):
                continue  # itself, or of another family
            is_own = name != root and rival == root  # the parent's own requests
            if is_own or self._in_flight(rival, endpoint) < self._guaranteed(rival, endpoint):
                case = f"{life.meta.id} is a burst of {name} while {other.meta.id} of {rival} waits"
                self._breaks(Rule.IN_FLIGHT, case)

    def _eligible(self, endpoint: str) -> list[Life]:
        """What may be picked now."""
        found, open_to = [], dict[str, bool]()
        for life in self._lives.values():
            tenant = life.meta.tenant
            is_candidate = life.meta.endpoint == endpoint and life.is_waiting and not life.is_held
            if not is_candidate or not self._is_known(life):
                continue
            if tenant not in open_to:
                open_to[tenant] = self._pause(tenant, endpoint) is None and (
                    not self._is_limited or self._has_room(tenant, endpoint)
                )
            if open_to[tenant]:
                found.append(life)
        return found

    def _has_room(self, tenant: str, endpoint: str) -> bool:
        return all(
            self._in_flight(name, endpoint) < self._most(name, endpoint)
            for name in self._lineage(tenant)
        )

    # --- after a decision

    def is_idle(self, pools: list[str], now_ms: int) -> None:
        """After a decision: nothing is due in these pools, which have room; no pause is over.

        A cycle that was cut short because its record is full may leave work; histories have
        none that large.
        """
        for who, until_ms in self._pauses.items():
            if 0 < until_ms <= now_ms:
                self._breaks(Rule.PAUSED, f"the pause of {who} is over since {until_ms}")
        for endpoint in self._endpoints.values():
            lives = self._eligible(endpoint.name) if endpoint.pool in pools else []
            if not lives:
                continue
            waited_ms = now_ms - min(life.asked.arrived_ms for life in lives)
            inputs = sum(max(1, life.meta.inputs) for life in lives)
            if inputs >= endpoint.batch_requests or waited_ms >= endpoint.batch_wait_ms:
                case = (
                    f"{lives[0].meta.id} and {len(lives) - 1} more wait, {endpoint.pool} has room"
                )
                self._breaks(Rule.IDLE, case)


def batch_fault(lives: list[Life], endpoint: Endpoint) -> str:
    """What is wrong with a batch of these; "": nothing."""
    if len(lives) == 1:  # alone it always fits, or it would wait for ever
        return ""
    inputs = sum(max(1, life.meta.inputs) for life in lives)
    size = sum(life.asked.size for life in lives)
    if inputs > endpoint.batch_requests or size > endpoint.batch_bytes:
        return f"{inputs} inputs, {size} bytes"
    return "what killed a worker is not alone" if any(life.attempt for life in lives) else ""
