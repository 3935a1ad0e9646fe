"""What waits, and whose it is: requests, a tenant's queue, its use of a pool, its family.

Data with the look-ups that belong to it; `scheduler.core.queues` moves it about. A queue
holds what one tenant has waiting in one ring (pool and tier). A `Use` is the tenant in the
pool, across the tiers: what its limits count and what was learned of its costs. A `Family`
is a parent in one ring: its children's queues share the parent's turns.

What is marked *index* follows from the rest of the state, see `scheduler.core.state`.
"""

from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final

from scheduler.core.pick.order import KEY_MASK, arrived_of, deadline_of, key_of
from scheduler.core.pick.turns import Member
from schemas.policy import CostModel

if TYPE_CHECKING:
    from scheduler.core.pick import Selector
    from scheduler.core.state import Ring

#: Stale entries that an index may hold beside as many valid ones before it is tidied.
STALE_MAX: Final = 256
#: Above every count: no limit.
NO_LIMIT: Final = 1 << 62
#: What was learned of costs halves in about eleven settlements: a sixteenth is forgotten each.
FORGET_SHIFT: Final = 4
#: Assumed of a model that nothing is known of.
TOKEN_US: Final = 1_000


#: A key is the index of a partition and an offset: `schemas.records.pack_key`.
OFFSET_BITS: Final = 44
OFFSET_MASK: Final = (1 << 44) - 1

_REQUEST: Final = CostModel.REQUEST
_TOKEN: Final = CostModel.TOKEN


class Status:
    """Where a request is: plain integers, that a compiler takes for constants."""

    WAITING: Final = 0  #: may be picked, unless its tenant is blocked
    HELD: Final = 1  #: waits, not before its time, or for a policy that knows it
    PICKED: Final = 2  #: in the batch that is being filled
    DISPATCHED: Final = 3  #: in a worker's hands
    RETURNED: Final = 4  #: in nobody's hands: queued again or ended by the next sweep
    ENDED: Final = 5  #: terminal


#: Their names, for messages.
STATUS_NAMES: Final = ("waiting", "held", "picked", "dispatched", "returned", "ended")


class Past:
    """What few requests have: earlier attempts, a cancel, a pause before the next attempt."""

    __slots__ = ("attempt", "cancelled", "not_before_ms")

    def __init__(self) -> None:
        self.attempt = 0  #: hand-backs of batches seen started
        self.cancelled = False
        self.not_before_ms = 0


class Live:
    """A request that has not ended. Small: a million of them wait in one process."""

    __slots__ = (
        "arrived_ms", "given", "id", "inputs", "key", "order", "past", "queue", "size", "status",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        queue: "TenantQueue",
        key: int,
        order: int,
        size: int,
        given: int,
        inputs: int,
    ) -> None:
        self.id = request_id
        self.queue = queue
        self.key = key  #: see `schemas.records.pack_key`
        self.order = order  #: its place inside the tenant: `pick.order`
        self.arrived_ms = arrived_of(order)  #: when the log took it
        self.size = size  #: bytes
        self.given = given  #: tokens as the request was let in
        self.tokens = given  #: estimate, clamped by the endpoint
        self.inputs = inputs
        self.status: int = Status.HELD
        self.past: Past | None = None

    @property
    def tenant(self) -> str:
        """Name of the tenant."""
        return self.queue.tenant

    @property
    def endpoint(self) -> str:
        """Name of the endpoint."""
        return self.queue.endpoint

    @property
    def tier(self) -> str:
        """Name of the tier."""
        return self.queue.tier

    @property
    def deadline_ms(self) -> int:
        """When it has to be finished; 0: no matter."""
        return deadline_of(self.order)

    @property
    def cost(self) -> int:
        """What picking it would be charged now, in the pool's unit."""
        return self.queue.cost(self)

    @property
    def attempt(self) -> int:
        """Hand-backs of batches seen started."""
        return self.past.attempt if self.past else 0

    @property
    def cancelled(self) -> bool:
        """Whether its caller wants it no more, while it is in a worker's hands."""
        return self.past is not None and self.past.cancelled

    @property
    def not_before_ms(self) -> int:
        """Until when it is held."""
        return self.past.not_before_ms if self.past else 0

    def remember(self) -> Past:
        """Its past, to be written to."""
        if self.past is None:
            self.past = Past()
        return self.past


class Use:
    """A tenant in one pool: limits, what counts against them, and learned costs."""

    __slots__ = (
        "aging_ms", "families", "guaranteed", "in_flight", "is_limited", "is_paused",
        "learned_tokens", "learned_us", "most", "parent", "queues", "tenant", "waiting",
        "waiting_most",
    )  # fmt: skip

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.parent: Use | None = None
        self.queues: list[TenantQueue] = []  #: one a tier
        self.families: list[Family] = []  #: as a parent, one a tier
        self.aging_ms = 0  #: waiting that is worth a step of priority; 0: none is
        self.guaranteed = self.most = self.waiting_most = NO_LIMIT
        self.is_limited = False  #: index: whether `in_flight` matters
        self.is_paused = False
        self.in_flight = 0  #: index: picked or in workers' hands, its children's too
        self.waiting = 0  #: index: waiting or held, its children's too
        #: decayed sums of measured time and of the tokens that were estimated for it
        self.learned_us = 0
        self.learned_tokens = 0

    def learn(self, us: int, tokens: int) -> None:
        """Take a measurement in: an exponential average, weighted by tokens."""
        self.learned_us += us - (self.learned_us >> FORGET_SHIFT)
        self.learned_tokens += tokens - (self.learned_tokens >> FORGET_SHIFT)

    def milliseconds(self, tokens: int) -> int:
        """Estimated service of so many tokens, to the nearest."""
        per = 1_000 * max(1, self.learned_tokens)
        return (tokens * self.learned_us + per // 2) // per


class TenantQueue(Member):
    """What waits of one tenant in one ring, and its account there.

    `ring` is None while no policy knows the tenant or the endpoint. A child's turns are its
    parent's, see `Family`.
    """

    __slots__ = (
        "count", "endpoint", "family", "first", "heap", "inputs", "last", "ring",
        "seated", "tenant", "tier", "tokens", "use",
    )  # fmt: skip

    def __init__(self, use: Use, endpoint: str, tier: str, ring: "Ring | None" = None) -> None:
        self.tenant = use.tenant
        self.endpoint = endpoint
        self.tier = tier
        self.ring = ring
        self.use = use
        self.family: Family | None = None
        self.seated: Selector | None = None  #: index: the selector that it has a seat in
        self.last: Selector | None = None  #: ... or had one in last
        self.count = 0  #: index: requests that may be picked
        self.inputs = 0  #: index: their inputs
        self.tokens = 0  #: index: their estimates
        self.heap: list[int] = []  #: index: their orders
        self.first: Live | None = None  #: index: the head, when it is known

    def head(self) -> Live:
        """First request of those that may be picked; there must be one (`count` > 0)."""
        first = self.first
        if first is None:
            self.first = first = self._find_first()
        return first

    def _find_first(self) -> Live:
        assert self.ring is not None
        parts = self.ring.pool.parts
        heap = self.heap
        while True:
            key = heap[0] & KEY_MASK
            live = parts[key >> OFFSET_BITS].window.get(key & OFFSET_MASK)
            if live is not None and live.status == Status.WAITING and live.queue is self:
                return live
            heappop(heap)

    def head_order(self) -> int:
        """Order of the head, for selectors that look across tenants."""
        return self.head().order

    def cost(self, live: Live) -> int:
        """What picking a request of this queue is charged now, in the pool's unit."""
        assert self.ring is not None
        pool = self.ring.pool
        unit = pool.unit
        if unit is _REQUEST:
            return live.inputs
        if unit is _TOKEN:
            return live.tokens
        return min(max(1, self.use.milliseconds(live.tokens)), pool.cost_max)

    def lives(self) -> list[Live]:
        """Those that may be picked, in no order."""
        assert self.ring is not None
        parts = self.ring.pool.parts
        keys = map(key_of, self.heap)
        found = (parts[key >> OFFSET_BITS].window.get(key & OFFSET_MASK) for key in keys)
        return [
            live
            for live in found
            if live is not None and live.status == Status.WAITING and live.queue is self
        ]

    def tidy(self) -> None:
        """Drop entries of requests that left other than by the head."""
        if len(self.heap) > STALE_MAX + 2 * self.count:
            self.sort()

    def sort(self) -> None:
        """Build the heap anew from what may be picked."""
        self.heap = [live.order for live in self.lives()]
        heapify(self.heap)
        self.first = None


class Family(Member):
    """A parent in one ring: it has the seat there and pays, its children's ring names the head.

    A child's visit goes on across its parent's: the children's ring keeps its pointer.
    """

    __slots__ = (
        "base", "burst", "count", "inputs", "last", "ring", "seated", "tokens", "use",
    )  # fmt: skip

    def __init__(self, ring: "Ring", use: Use, base: "Selector", burst: "Selector") -> None:
        self.ring = ring
        self.use = use
        self.base = base  #: children below what is guaranteed to them
        self.burst = burst  #: children above it
        self.seated: Selector | None = None  #: index
        self.last: Selector | None = None
        self.count = self.inputs = self.tokens = 0  #: index: sums of the seated children

    def peek(self) -> tuple[TenantQueue, int] | None:
        """The child whose head is next, and its turn in the ring of the children."""
        chosen = self.base.peek() or self.burst.peek()
        if chosen is None:
            return None
        child, turn = chosen
        assert isinstance(child, TenantQueue)
        return child, turn

    def head_order(self) -> int:
        """Order of the head."""
        chosen = self.peek()
        assert chosen is not None
        return chosen[0].head_order()
