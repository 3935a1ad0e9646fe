"""The memory of one shard: nothing but data, and the indexes that follow from it.

`State` is the fold of the shard's decisions. Only `scheduler.core.apply` changes it, live
and in recovery alike; `dump` is its canonical form, so that two states can be compared and
a snapshot is a value. What is marked *index* follows from the rest, is left out of `dump`
and rebuilt by `restore`: reading may tidy it up.

A request is named by its key: (index of its partition in `parts`, offset), see
`schemas.records.pack_key`. All containers are ordered; all numbers are integers.
"""

from collections import deque
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

from scheduler.core.pick.drr import Account, DeficitRoundRobin
from scheduler.core.pick.fifo import FirstInFirstOut
from scheduler.core.pick.order import Order, order
from schemas.log import Partition
from schemas.policy import CostModel, Endpoint, Fairness, Policy, Tenant, decode_policy
from schemas.policy_check import INPUTS_MAX
from schemas.records import Request

#: How long an ended request's id is remembered: a later publish of it is dropped.
RECENT_MS = 3_600_000
#: ... and how many at the most; the oldest go first.
RECENT_MAX = 500_000
#: Cancels kept for offsets that have not come yet, per partition; more are not waited for.
CANCELS_MAX = 100_000
#: Stale entries that an index may hold beside as many valid ones before it is tidied.
STALE_MAX = 256
#: An estimate is at least one token per so many bytes of body.
FLOOR_BYTES_PER_TOKEN = 16


class Status(IntEnum):
    """Where a live request is."""

    WAITING = 0  # may be picked
    HELD = 1  # waits, not before its time
    PICKED = 2  # in the batch that is being filled
    DISPATCHED = 3  # in a worker's hands
    RETURNED = 4  # in nobody's hands: queued again or ended by the next sweep


class Live:
    """A request that has not ended."""

    __slots__ = (
        "arrived_ms", "attempt", "batch", "cancelled", "cost", "deadline_ms", "endpoint",
        "expires_ms", "id", "inputs", "key", "not_before_ms", "priority", "queue", "size",
        "status", "tenant", "tier", "timer", "tokens", "tokens_given",
    )  # fmt: skip

    def __init__(self, key: int, tier: str, meta: Request, size: int, arrived_ms: int) -> None:
        self.key = key
        self.id = meta.id
        self.tenant = meta.tenant
        self.endpoint = meta.endpoint
        self.tier = tier
        self.priority = meta.priority
        self.deadline_ms = meta.deadline_ms
        self.arrived_ms = arrived_ms
        self.size = size
        #: As it was let in: a policy that now lets fewer in makes it no cheaper.
        self.inputs = min(max(1, meta.inputs), INPUTS_MAX)
        self.tokens_given = meta.input_tokens + meta.output_tokens_max
        self.tokens = 0  #: estimate, clamped by the endpoint
        self.cost = 0  #: estimate in the pool's unit
        self.expires_ms = 0
        self.attempt = 0  #: hand-backs of batches seen started
        self.status = Status.WAITING
        self.not_before_ms = 0
        self.cancelled = False
        self.queue: TenantQueue | None = None
        self.batch: tuple[str, int, int] | None = None  #: index: pool, lane, number
        self.timer = 0  #: index: second in `State.timers`

    def order(self) -> Order:
        """Its place inside the tenant."""
        return order(self.priority, self.deadline_ms, self.arrived_ms, self.key)


class TenantQueue:
    """What waits of one tenant in one ring, and its account there."""

    __slots__ = ("account", "count", "heap", "ring", "tenant")

    def __init__(self, tenant: str, ring: "Ring") -> None:
        self.tenant = tenant
        self.ring = ring
        self.account = Account()
        self.count = 0  #: index: requests that may be picked
        self.heap: list[tuple[Order, Live]] = []  #: index

    def head(self) -> Live:
        """First eligible request; the queue must not be empty (`count` > 0)."""
        heap = self.heap
        while True:
            live = heap[0][1]
            if live.status is Status.WAITING and live.queue is self:
                return live
            heappop(heap)

    def tidy(self) -> None:
        """Drop entries of requests that left other than by the head."""
        if len(self.heap) > STALE_MAX + 2 * self.count:
            self.heap = [
                e for e in self.heap if e[1].status is Status.WAITING and e[1].queue is self
            ]
            heapify(self.heap)

    def head_order(self) -> Order:
        """Order of the head, for selectors that look across tenants."""
        return self.head().order()


class Ring:
    """The tenants of one tier that use one pool."""

    __slots__ = ("pool", "queues", "selector", "tier", "waiting")

    def __init__(self, pool: str, tier: str, fairness: Fairness) -> None:
        self.pool = pool
        self.tier = tier
        self.queues: dict[str, TenantQueue] = {}
        self.selector = new_selector(fairness)
        self.waiting = 0  #: index: eligible requests


def new_selector(fairness: Fairness) -> DeficitRoundRobin | FirstInFirstOut:
    """Second selector by its name in the policy."""
    return DeficitRoundRobin() if fairness is Fairness.DRR else FirstInFirstOut()


class Flight:
    """A batch in a worker's hands: (request, what it was charged) in the batch's order.

    `unit` is the cost model it was charged in: after a change of the model nothing is settled.
    """

    __slots__ = ("charged", "started", "unit")

    def __init__(self, charged: list[tuple[int, int]], unit: CostModel) -> None:
        self.charged = charged
        self.unit = unit
        self.started = False


class Lane:
    """One partition of the pool's batch topic; `slots` is 0 until a holder was seen."""

    __slots__ = ("flights", "slots")

    def __init__(self) -> None:
        self.slots = 0
        self.flights: dict[int, Flight] = {}


class PoolState:
    """One pool: its rings in tier order, its lanes, what waits in it."""

    __slots__ = ("endpoint", "inputs", "lanes", "oldest", "prefetch", "rings", "tokens", "waiting")

    def __init__(self, endpoint: Endpoint, prefetch: int) -> None:
        self.endpoint = endpoint
        self.prefetch = prefetch
        self.rings: dict[str, Ring] = {}
        self.lanes: list[Lane] = []
        self.waiting = 0  #: index: eligible requests
        self.inputs = 0  #: index: their inputs
        self.tokens = 0  #: index: their estimates
        self.oldest: list[tuple[int, int, Live]] = []  #: index: heap by arrival

    def oldest_ms(self) -> int | None:
        """Arrival of the oldest eligible request."""
        oldest = self.oldest
        while oldest:
            if oldest[0][2].status is Status.WAITING:
                return oldest[0][0]
            heappop(oldest)
        return None

    def tidy(self) -> None:
        """Drop entries of requests that were served before older ones."""
        if len(self.oldest) > STALE_MAX + 2 * self.waiting:
            self.oldest = [e for e in self.oldest if e[2].status is Status.WAITING]
            heapify(self.oldest)

    def free_lane(self) -> int | None:
        """The lane with most room for another batch, the first of equals; None: no room."""
        best, most = None, 0
        for number, lane in enumerate(self.lanes):
            room = lane.slots + self.prefetch - len(lane.flights) if lane.slots else 0
            if room > most:
                best, most = number, room
        return best


class Part:
    """One request partition, and the next offset to take in."""

    __slots__ = ("outstanding", "partition", "position", "tier")

    def __init__(self, partition: Partition, tier: str, position: int) -> None:
        self.partition = partition
        self.tier = tier
        self.position = position
        self.outstanding: deque[int] = deque()  #: index: offsets taken in, ascending


class State:
    """All of it. See the module's header for the rules."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.seq = 0
        self.now_ms = 0
        self.document = b""  #: the policy as published
        self.policy: Policy | None = None
        self.endpoints: dict[str, Endpoint] = {}
        self.tenants: dict[str, Tenant] = {}
        self.topics: dict[str, str] = {}  #: identity of each request topic, as first met
        self.positions: dict[Partition, int] = {}  #: inputs other than requests
        self.parts: list[Part] = []
        self.part_of: dict[Partition, int] = {}
        self.live: dict[int, Live] = {}
        self.ids: dict[str, int] = {}  #: live ids
        self.recent: dict[str, int] = {}  #: ended ids -> when, oldest first
        self.aliases: dict[int, str] = {}  #: dropped duplicates -> their id, oldest first
        self.cancels: dict[Partition, dict[int, None]] = {}  #: offsets cancelled before they came
        self.pools: dict[str, PoolState] = {}
        self.next_number = 1
        self.open: list[Live] = []  #: picks since the last seal, in this cycle only
        self.returned: dict[int, None] = {}  #: index: keys that the next sweep decides about
        self.timers: dict[int, dict[int, None]] = {}  #: index: second -> keys that expire then
        self.seconds: list[int] = []  #: index: heap of the seconds in `timers`
        self.held: list[tuple[int, int]] = []  #: index: (not before, key)
        self.restoring: dict[int, Any] = {}  #: marks by key while a snapshot is loaded
        self.batches: dict[int, tuple[str, int, int]] = {}  #: batches by key, likewise

    def adopt(self, document: bytes) -> Policy:
        """Take over a published policy and the look-ups that follow from it."""
        policy = decode_policy(document)
        self.document = document
        self.policy = policy
        self.endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
        self.tenants = {tenant.name: tenant for tenant in policy.tenants}
        return policy

    def part(self, partition: Partition, tier: str, start: int) -> int:
        """Index of a request partition, given at its first use, when it begins at `start`."""
        index = self.part_of.get(partition)
        if index is None:
            index = self.part_of[partition] = len(self.parts)
            self.parts.append(Part(partition, tier, start))
        return index

    def frontier(self, part: Part) -> int:
        """Lowest offset of the partition that is not terminal yet."""
        index = self.part_of[part.partition]
        outstanding = part.outstanding
        while outstanding:
            if index << 44 | outstanding[0] in self.live:
                return outstanding[0]
            outstanding.popleft()
        return part.position

    def estimate(self, live: Live, endpoint: Endpoint) -> None:
        """Set what follows from the policy: tokens, cost, expiry."""
        floor = live.size // FLOOR_BYTES_PER_TOKEN + 1
        live.tokens = min(max(live.tokens_given, floor), _tokens_max(endpoint, live.inputs))
        live.cost = live.tokens if endpoint.cost is CostModel.TOKEN else live.inputs
        live.expires_ms = live.arrived_ms + endpoint.wait_ms_max
        if live.deadline_ms:
            live.expires_ms = min(live.expires_ms, live.deadline_ms)

    def cost_max(self, endpoint: Endpoint) -> int:
        """The dearest a request is that the endpoint lets in, in its pool's unit."""
        inputs = max(1, endpoint.inputs_max)
        return _tokens_max(endpoint, inputs) if endpoint.cost is CostModel.TOKEN else inputs

    def debt_max(self, pool: PoolState) -> int:
        """Floor of a debt: all slots of the pool filled with the dearest batches."""
        batches = sum(lane.slots + pool.prefetch for lane in pool.lanes)
        endpoint = pool.endpoint
        dearest = endpoint.batch_requests * self.cost_max(endpoint)
        if endpoint.inputs_max:  # without, it stays what the decisions made so far reckoned with
            full = max(endpoint.batch_requests, endpoint.inputs_max)
            holds = endpoint.batch_tokens if endpoint.cost is CostModel.TOKEN else full
            dearest = min(dearest, holds)
        return max(1, batches) * dearest

    def hold(self, live: Live) -> None:
        """Index a held request by its time."""
        heappush(self.held, (live.not_before_ms, live.key))

    def watch(self, live: Live) -> None:
        """Index a request by the second after which it has expired."""
        self.unwatch(live)
        live.timer = -(-live.expires_ms // 1000)
        bucket = self.timers.get(live.timer)
        if bucket is None:
            bucket = self.timers[live.timer] = {}
            heappush(self.seconds, live.timer)
        bucket[live.key] = None

    def unwatch(self, live: Live) -> None:
        """Forget its timer."""
        bucket = self.timers.get(live.timer)
        if bucket is not None:
            bucket.pop(live.key, None)


def _tokens_max(endpoint: Endpoint, inputs: int) -> int:
    """Clamp of an estimate: each input's share, and together they have to fit in a batch."""
    return min(inputs * endpoint.tokens_max, endpoint.batch_tokens)
