"""A scheduler that does everything the long way: all requests in one list, sorted at each pick.

Written from the rules, not from the code it judges. It reads the same inputs as the core and
says which batches must come of them, on which lanes, and what must be ended:

- the first tier with something eligible is served;
- there, the plain loop of deficit round robin says whose turn it is (tests.support.oracle_ring);
- of that tenant, the first by priority, deadline (none is the latest) and arrival;
- a batch is filled until its limits; what could not finish in time is dropped at the pick.

Costs are tokens or requests as the endpoint says. It knows neither snapshots nor policies
that change, and supposes that nobody is idle for as long as a debt's half-life.
"""

from dataclasses import dataclass, field

from scheduler.core.arrivals import Arrival
from schemas.policy import CostModel, Endpoint, Policy
from schemas.records import (
    Cancel,
    End,
    Finished,
    HandedBack,
    Outcome,
    Request,
    Started,
    WorkerRecord,
    pack_key,
)
from tests.support.oracle_history import Turn
from tests.support.oracle_ring import PlainRing

NEVER_MS = 1 << 48
#: The pause after a worker died on a request: the first, the longest; it doubles between.
PAUSE_MS, PAUSE_MS_MAX = 100, 30_000
BYTES_A_TOKEN = 16


@dataclass
class Item:
    """One request and where it is: waiting, held, out (in a worker's hands), back or ended."""

    key: int
    meta: Request
    tier: str
    size: int
    arrived_ms: int
    tokens: int
    cost: int
    expires_ms: int
    state: str = "waiting"
    attempt: int = 0
    held_ms: int = 0
    cancelled: bool = False

    @property
    def rank(self) -> tuple[int, int, int, int]:
        deadline_ms = self.meta.deadline_ms or NEVER_MS
        return self.meta.priority, deadline_ms, self.arrived_ms, self.key


@dataclass
class Flight:
    number: int
    items: list[Item]
    started: bool = False


@dataclass
class Expected:
    """What a cycle must do: batches as (pool, lane, number, keys), ends as (key, reason)."""

    batches: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Rings:
    """One tier of one pool: a ring of families, and in each family a ring of its tenants."""

    cost_max: int
    quantum: int
    policy: Policy
    outer: PlainRing = field(init=False)
    inner: dict[str, PlainRing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outer = PlainRing(self.cost_max)

    def family(self, tenant: str) -> str:
        known = self.policy.tenant(tenant)
        return (known.parent if known else "") or tenant

    def weight(self, tenant: str) -> int:
        known = self.policy.tenant(tenant)
        return known.weight if known else 1

    def inside(self, tenant: str) -> PlainRing:
        """The ring of the tenant's family, with both accounts opened."""
        family = self.family(tenant)
        self.outer.member(family, self.quantum * self.weight(family))
        ring = self.inner.setdefault(family, PlainRing(self.cost_max))
        ring.member(tenant, self.quantum * (1 if tenant == family else self.weight(tenant)))
        return ring

    def update(self, tenant: str, *, waits: bool) -> None:
        """Seat or unseat a tenant, and its family with it."""
        ring, family = self.inside(tenant), self.family(tenant)
        if waits != bool(ring.members[tenant].seat):
            (ring.enter if waits else ring.leave)(tenant)
        if bool(ring.seated()) != bool(self.outer.members[family].seat):
            (self.outer.enter if waits else self.outer.leave)(family)

    def next(self, costs: dict[str, int]) -> str | None:
        """Whose turn it is; `costs` are those of the heads."""
        heads: dict[str, str] = {}
        for family, ring in self.inner.items():
            child = ring.next(costs.__getitem__)
            if child is not None:
                heads[family] = child
        chosen = self.outer.next(lambda family: costs[heads[family]])
        return None if chosen is None else heads[chosen]

    def serve(self, tenant: str, costs: dict[str, int]) -> None:
        """Move both pointers to the tenant and charge it."""
        family, cost = self.family(tenant), costs[tenant]
        inner = self.inner[family]
        assert inner.walk(costs.__getitem__) == tenant
        inner.serve(tenant, cost)
        heads = {
            name: ring.next(costs.__getitem__) or "" if name != family else tenant
            for name, ring in self.inner.items()
        }
        assert self.outer.walk(lambda name: costs[heads[name]]) == family
        self.outer.serve(family, cost)

    def settle(self, tenant: str, surcharge: int) -> None:
        self.inside(tenant).settle(tenant, surcharge)
        self.outer.settle(self.family(tenant), surcharge)


class PlainScheduler:
    """One shard; every lane has `slots` free slots at first."""

    def __init__(self, policy: Policy, *, slots: int) -> None:
        self.policy = policy
        self.items: list[Item] = []
        self.now_ms = 0
        self.parts: list[str] = []
        self.number = 1
        self.endpoint_of = {endpoint.pool: endpoint for endpoint in policy.endpoints}
        self.room = {pool.name: slots + pool.prefetch for pool in policy.pools}
        self.lanes: dict[str, list[list[Flight]]] = {
            pool.name: [[] for _ in range(pool.lanes)] for pool in policy.pools
        }
        self.rings = {
            (pool.name, tier.name): Rings(
                dearest(self.endpoint_of[pool.name]),
                self.endpoint_of[pool.name].quantum,
                policy,
            )
            for pool in policy.pools
            for tier in policy.tiers
        }

    def turn(self, turn: Turn) -> Expected:
        """What the cycle of these inputs must do."""
        expected = Expected()
        self.now_ms = turn.now_ms
        for cancel in turn.inputs.control:
            assert isinstance(cancel, Cancel)
            self._cancel(pack_key(self.parts.index(cancel.topic), cancel.offset), expected)
        for pool, lane, record in turn.inputs.workers:
            self._worker(pool, lane, record, expected)
        self._timers(expected)
        for read in turn.inputs.requests:
            for arrival in read.arrivals:
                assert arrival.meta is not None
                self._arrive(read.tier, arrival)
        return self._fill(expected)

    def _cancel(self, key: int, expected: Expected) -> None:
        item = next((item for item in self.items if item.key == key), None)
        if item is not None and item.state == "out":
            item.cancelled = True
        elif item is not None and item.state in ("waiting", "held"):
            self._end(item, "cancelled", expected)

    def _worker(self, pool: str, lane: int, record: WorkerRecord, expected: Expected) -> None:
        flights = self.lanes[pool][lane]
        if isinstance(record, Started):
            for flight in flights:
                flight.started |= flight.number == record.number
        if not isinstance(record, Finished | HandedBack):
            return
        flight = next(one for one in flights if one.number == record.number)
        flights.remove(flight)
        model = self.endpoint_of[pool].cost
        for place, item in enumerate(flight.items):
            if isinstance(record, Finished):
                self._settle(item, true_cost(model, item.cost, record.outcomes[place]) - item.cost)
                item.state = "ended"
            else:
                item.attempt += flight.started
                self._settle(item, -item.cost)
                item.state = "back"
        for item in flight.items:
            if item.state == "back":
                self._returned(item, expected)

    def _timers(self, expected: Expected) -> None:
        now_ms = self.now_ms
        for item in self.items:
            second = -(-item.expires_ms // 1000)
            if item.state in ("waiting", "held") and second * 1000 <= now_ms:
                is_late = item.meta.deadline_ms == item.expires_ms
                self._end(item, "deadline" if is_late else "expired", expected)
        held = [item for item in self.items if item.state == "held" and item.held_ms <= now_ms]
        for item in sorted(held, key=lambda item: (item.held_ms, item.key)):
            item.state = "waiting"
            self._update(item)

    def _arrive(self, tier: str, arrival: Arrival) -> None:
        topic, meta = f"requests.{tier}", arrival.meta
        if topic not in self.parts:
            self.parts.append(topic)
        assert meta is not None
        endpoint = self.policy.endpoint(meta.endpoint)
        assert endpoint is not None
        tokens = max(meta.input_tokens + meta.output_tokens_max, arrival.size // BYTES_A_TOKEN + 1)
        tokens = min(tokens, endpoint.tokens_max, endpoint.batch_tokens)
        item = Item(
            key=pack_key(self.parts.index(topic), arrival.offset),
            meta=meta,
            tier=tier,
            size=arrival.size,
            arrived_ms=arrival.timestamp_ms,
            tokens=tokens,
            cost=tokens if endpoint.cost is CostModel.TOKEN else 1,
            expires_ms=min(
                arrival.timestamp_ms + endpoint.wait_ms_max, meta.deadline_ms or NEVER_MS
            ),
        )
        self.items.append(item)
        self._update(item)

    # --- what follows

    def _fill(self, expected: Expected) -> Expected:
        """Fill batches for as long as one is due and a lane is free."""
        for pool, endpoint in self.endpoint_of.items():
            while self._is_due(pool, endpoint):
                room = [self.room[pool] - len(flights) for flights in self.lanes[pool]]
                if max(room) <= 0:
                    break
                lane = room.index(max(room))
                picked = self._batch(pool, endpoint, expected)
                if picked:
                    keys = [item.key for item in picked]
                    expected.batches.append((pool, lane, self.number, keys))
                    self.lanes[pool][lane].append(Flight(self.number, picked))
                    self.number += 1
        return expected

    def waiting(self, pool: str) -> list[Item]:
        name = self.endpoint_of[pool].name
        return [i for i in self.items if i.state == "waiting" and i.meta.endpoint == name]

    def _is_due(self, pool: str, endpoint: Endpoint) -> bool:
        waiting = self.waiting(pool)
        return bool(waiting) and (
            len(waiting) >= endpoint.batch_requests
            or sum(item.tokens for item in waiting) >= endpoint.batch_tokens
            or self.now_ms - min(item.arrived_ms for item in waiting) >= endpoint.batch_wait_ms
        )

    def _batch(self, pool: str, endpoint: Endpoint, expected: Expected) -> list[Item]:
        picked: list[Item] = []
        while len(picked) < endpoint.batch_requests:
            chosen = self._next(pool)
            if chosen is None:
                break
            item, rings, costs = chosen
            late_ms = self.now_ms + endpoint.service_ms
            if item.meta.deadline_ms and late_ms > item.meta.deadline_ms:
                self._end(item, "deadline", expected)
                continue
            together = [*picked, item]
            if picked and (
                sum(one.tokens for one in together) > endpoint.batch_tokens
                or sum(one.size for one in together) > endpoint.batch_bytes
                or item.attempt
            ):
                break
            rings.serve(item.meta.tenant, costs)
            item.state = "out"
            self._update(item)
            picked.append(item)
            if item.attempt:
                break
        return picked

    def _next(self, pool: str) -> tuple[Item, Rings, dict[str, int]] | None:
        """The next pick: tier, tenant, request; and the costs of all heads of that tier."""
        waiting = self.waiting(pool)
        for tier in self.policy.tiers:
            heads: dict[str, Item] = {}
            for item in sorted((i for i in waiting if i.tier == tier.name), key=lambda i: i.rank):
                heads.setdefault(item.meta.tenant, item)
            if heads:
                rings = self.rings[pool, tier.name]
                costs = {name: head.cost for name, head in heads.items()}
                tenant = rings.next(costs)
                assert tenant is not None
                return heads[tenant], rings, costs
        return None

    def _returned(self, item: Item, expected: Expected) -> None:
        endpoint = self.policy.endpoint(item.meta.endpoint)
        assert endpoint is not None
        if item.cancelled:
            self._end(item, "cancelled", expected)
        elif item.attempt >= endpoint.attempts_max:
            self._end(item, "attempts", expected)
        elif item.attempt:
            pause_ms = min(PAUSE_MS * 2 ** (item.attempt - 1), PAUSE_MS_MAX)
            item.state, item.held_ms = "held", self.now_ms + pause_ms
        else:
            item.state = "waiting"
            self._update(item)

    def _end(self, item: Item, reason: str, expected: Expected) -> None:
        item.state = "ended"
        self._update(item)
        expected.ended.append((item.key, reason))

    def _settle(self, item: Item, surcharge: int) -> None:
        if surcharge:
            self._rings_of(item).settle(item.meta.tenant, surcharge)

    def _rings_of(self, item: Item) -> Rings:
        endpoint = self.policy.endpoint(item.meta.endpoint)
        assert endpoint is not None
        return self.rings[endpoint.pool, item.tier]

    def _update(self, item: Item) -> None:
        waits = any(
            one.state == "waiting"
            and (one.meta.tenant, one.meta.endpoint, one.tier)
            == (item.meta.tenant, item.meta.endpoint, item.tier)
            for one in self.items
        )
        self._rings_of(item).update(item.meta.tenant, waits=waits)


def dearest(endpoint: Endpoint) -> int:
    """The greatest cost of a request."""
    is_token = endpoint.cost is CostModel.TOKEN
    return min(endpoint.tokens_max, endpoint.batch_tokens) if is_token else 1


def true_cost(model: CostModel, charged: int, outcome: Outcome) -> int:
    """What a request turned out to cost: nothing if it never ran; uncounted, its estimate."""
    tokens = outcome.usage.tokens
    if outcome.end in (End.CANCELLED, End.EXPIRED) and not tokens:
        return 0
    if model is CostModel.REQUEST or (outcome.end is End.SUCCEEDED and not tokens):
        return charged
    return tokens
