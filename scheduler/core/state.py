"""The memory of one shard: nothing but data, and the indexes that follow from it.

`State` is the fold of the shard's decisions. Only `scheduler.core.apply` changes it, live
and in recovery alike; `scheduler.core.snapshot.dump` is its canonical form, so that two
states can be compared and a snapshot is a value. What is marked *index* follows from the
rest, is left out of a dump and rebuilt by loading: reading may tidy it up.

A request is named by its key: (index of its partition in `parts`, offset), see
`schemas.records.pack_key`. All containers are ordered; all numbers are integers.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappush
from typing import Any

from scheduler.core.pick import Selector
from scheduler.core.pick.drr import DeficitRoundRobin
from scheduler.core.pick.fifo import FirstInFirstOut
from scheduler.core.pick.order import deadline_of
from scheduler.core.pick.vtc import VirtualTokenCounter
from scheduler.core.recent import Recent
from scheduler.core.tenants import (
    OFFSET_BITS,
    OFFSET_MASK,
    STALE_MAX,
    Family,
    Live,
    Status,
    TenantQueue,
    Use,
)
from scheduler.core.window import Window
from schemas.log import Partition
from schemas.policy import CostModel, Endpoint, Fairness, Policy, Tenant, decode_policy

#: Dropped duplicates that are remembered, so that a cancel of one finds its twin.
ALIASES_MAX = 500_000
#: Cancels kept for offsets that have not come yet, per partition; more are not waited for.
CANCELS_MAX = 100_000
#: How long a request waits for a policy that knows its tenant and endpoint: the policy may
#: reach the scheduler a poll later than the request.
POLICY_WAIT_MS = 10_000
#: ... and how many do; more are refused at once.
UNKNOWN_MAX = 10_000
#: A lane's room differs little from another's below this part of its slots.
LITTLE_OF_SLOTS = 8
#: An estimate is at least one token per so many bytes of body.
FLOOR_BYTES_PER_TOKEN = 16

_SELECTORS: dict[Fairness, type[Any]] = {
    Fairness.DRR: DeficitRoundRobin,
    Fairness.VTC: VirtualTokenCounter,
    Fairness.FIFO: FirstInFirstOut,
}


class Ring:
    """The tenants of one tier that use one pool.

    Who has more in flight than is guaranteed to it sits in `burst`, which is asked only when
    nobody sits in `base`.
    """

    __slots__ = (
        "active", "base", "burst", "credit", "fairness", "families", "floor", "pool", "queues",
        "tier", "waiting",
    )  # fmt: skip

    def __init__(self, pool: "PoolState", tier: str, fairness: Fairness) -> None:
        self.pool = pool
        self.tier = tier
        self.fairness = fairness
        self.queues: dict[str, TenantQueue] = {}
        self.families: dict[str, Family] = {}
        self.base = self.new_selector()
        self.burst = self.new_selector()
        self.floor = 0  #: percent of what is picked that is the tier's while it has work
        self.credit = 0  #: what it earned of that, in hundredths of cost
        self.active: dict[str, TenantQueue] = {}  #: index: queues that hold anything to pick
        self.waiting = 0  #: index: eligible requests

    def new_selector(self) -> Selector:
        """Another selector of the ring's kind."""
        made: Selector = _SELECTORS[self.fairness]()
        made.half_life_ms = self.pool.endpoint.half_life_ms
        return made

    def peek(self) -> tuple[Any, int] | None:
        """Whose turn it is in the ring, and the turn."""
        return self.base.peek() or self.burst.peek()


class Flight:
    """A batch in a worker's hands: its requests in order, and what each was charged.

    `unit` is the cost model it was charged in: after a change of the model nothing is settled.
    """

    __slots__ = ("costs", "lives", "started", "unit")

    def __init__(self, lives: list[Live], costs: list[int], unit: CostModel) -> None:
        self.lives = lives
        self.costs = costs
        self.unit = unit
        self.started = False

    @property
    def charged(self) -> list[tuple[int, int]]:
        """Key and charge of each."""
        return [(live.key, cost) for live, cost in zip(self.lives, self.costs, strict=True)]


class Lane:
    """One partition of the pool's batch topic; `slots` is 0 until a holder was seen."""

    __slots__ = ("flights", "slots")

    def __init__(self) -> None:
        self.slots = 0
        self.flights: dict[int, Flight] = {}


class PoolState:
    """One pool: its rings in tier order, its lanes, what waits in it, who uses it."""

    __slots__ = (
        "bytes_max", "cost_max", "debt_max", "endpoint", "has_floors", "inputs", "lanes",
        "learned", "name", "oldest", "parts", "prefetch", "rings", "tokens", "tokens_one",
        "unit", "uses", "wait_ms_max", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, endpoint: Endpoint, prefetch: int, parts: "list[Part]") -> None:
        self.name = name
        self.endpoint = endpoint
        self.prefetch = prefetch
        self.parts = parts  #: the state's, where requests are looked up
        self.rings: dict[str, Ring] = {}
        self.lanes: list[Lane] = []
        self.uses: dict[str, Use] = {}
        self.learned = Use("")  #: what was learned of everybody's costs
        self.has_floors = False
        self.unit = endpoint.cost  #: index
        self.cost_max = self.debt_max = 1  #: index
        self.tokens_one = 0  #: index: tokens up to which no request's estimate is clamped
        self.bytes_max = endpoint.batch_bytes  #: index
        self.wait_ms_max = endpoint.wait_ms_max  #: index
        self.waiting = 0  #: index: eligible requests
        self.inputs = 0  #: index: their inputs
        self.tokens = 0  #: index: their estimates
        self.oldest = -1  #: index: arrival of the oldest of them; -1: not known

    def measure(self) -> None:
        """Compute what follows from the endpoint and the lanes' slots.

        `cost_max`: the dearest a request is that the endpoint lets in, in the pool's unit.
        `debt_max`: floor of a debt: all slots of the pool filled with the dearest batches.
        """
        endpoint = self.endpoint
        self.unit = unit = endpoint.cost
        self.tokens_one = min(endpoint.tokens_max, endpoint.batch_tokens)
        self.bytes_max, self.wait_ms_max = endpoint.batch_bytes, endpoint.wait_ms_max
        inputs = max(1, endpoint.inputs_max)
        if unit is CostModel.REQUEST:
            self.cost_max = inputs
        elif unit is CostModel.TOKEN:
            self.cost_max = tokens_max(endpoint, inputs)
        else:
            self.cost_max = endpoint.service_ms_max
        batches = sum(lane.slots + self.prefetch for lane in self.lanes)
        dearest = endpoint.batch_requests * self.cost_max
        if endpoint.inputs_max and unit is not CostModel.ADAPTIVE:
            full = max(endpoint.batch_requests, endpoint.inputs_max)
            dearest = min(dearest, endpoint.batch_tokens if unit is CostModel.TOKEN else full)
        self.debt_max = max(1, batches) * dearest

    def oldest_ms(self) -> int | None:
        """Arrival of the oldest eligible request."""
        if not self.waiting:
            return None
        if self.oldest < 0:
            self.oldest = min(
                live.arrived_ms
                for ring in self.rings.values()
                if ring.waiting
                for queue in ring.active.values()
                if is_eligible(queue)
                for live in queue.lives()
            )
        return self.oldest

    def free_lane(self, last: int | None = None) -> int | None:
        """The lane with most room for another batch, the first of equals; None: no room.

        `last` took the batch before this one in the cycle, and takes this one as well if a slot
        of its is free and others have little more room: a transaction waits for each partition.
        """
        best, most = None, 0
        for number, lane in enumerate(self.lanes):
            room = lane.slots + self.prefetch - len(lane.flights) if lane.slots else 0
            if room > most:
                best, most = number, room
        if last is not None:
            lane = self.lanes[last]
            free = lane.slots - len(lane.flights)
            if free > 0 and most - free - self.prefetch < lane.slots // LITTLE_OF_SLOTS:
                return last
        return best


class Part:
    """One request partition, and the next offset to take in."""

    __slots__ = ("known", "partition", "position", "tier", "window")

    def __init__(self, partition: Partition, tier: str, position: int) -> None:
        self.partition = partition
        self.tier = tier
        self.position = position
        self.window: Window[Live] = Window()  #: requests that have not ended
        #: index: queues by endpoint and tenant, of those that the policy lets in here
        self.known: dict[str, dict[str, TenantQueue]] = {}


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
        self.parents: set[str] = set()  #: tenants that others name as theirs
        self.topics: dict[str, str] = {}  #: identity of each request topic, as first met
        self.positions: dict[Partition, int] = {}  #: inputs other than requests
        self.parts: list[Part] = []
        self.part_of: dict[Partition, int] = {}
        self.ids: dict[str, Live] = {}  #: requests that have not ended, by id
        self.recent = Recent()  #: ids that ended
        self.aliases: OrderedDict[int, str] = OrderedDict()  #: dropped duplicates -> their id
        self.cancels: dict[Partition, dict[int, None]] = {}  #: offsets cancelled before they came
        self.pauses: dict[tuple[str, str], int] = {}  #: (tenant, endpoint), "" is all -> until
        self.pools: dict[str, PoolState] = {}
        #: queues of what waits for a policy that knows it: by tenant, endpoint, tier
        self.unknown: dict[tuple[str, str, str], TenantQueue] = {}
        self.unknown_count = 0  #: index: requests in them
        self.next_number = 1
        self.open: list[Live] = []  #: picks since the last seal, in this cycle only
        self.open_costs: list[int] = []  #: what they were charged
        self.returned: dict[int, None] = {}  #: index: keys that the next sweep decides about
        self.timers: dict[int, list[Live]] = {}  #: index: second -> those that expire by then
        self.seconds: list[int] = []  #: index: heap of the seconds in `timers`
        self.timed = 0  #: index: entries in `timers`, stale ones too
        self.held: list[tuple[int, int]] = []  #: index: (not before, key)
        #: while a snapshot is loaded: status, attempt, not before, cancelled, by key ...
        self.marks: dict[int, tuple[int, int, int, bool]] = {}
        self.flights: list[tuple[Flight, list[int]]] = []  #: ... and each batch's keys

    def adopt(self, document: bytes) -> Policy:
        """Take over a published policy and the look-ups that follow from it."""
        policy = decode_policy(document)
        self.document = document
        self.policy = policy
        self.endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
        self.tenants = {tenant.name: tenant for tenant in policy.tenants}
        self.parents = {tenant.parent for tenant in policy.tenants if tenant.parent}
        return policy

    def part(self, partition: Partition, tier: str, start: int) -> int:
        """Index of a request partition, given at its first use, when it begins at `start`."""
        index = self.part_of.get(partition)
        if index is None:
            index = self.part_of[partition] = len(self.parts)
            self.parts.append(Part(partition, tier, start))
        return index

    def find(self, key: int) -> Live | None:
        """The request of a key, if it has not ended."""
        try:
            return self.parts[key >> OFFSET_BITS].window.get(key & OFFSET_MASK)
        except IndexError:
            return None

    def lives(self) -> Iterator[Live]:
        """Requests that have not ended, in the order of their keys."""
        for part in self.parts:
            yield from part.window.values()

    def frontier(self, part: Part) -> int:
        """Lowest offset of the partition that is not terminal yet."""
        first = part.window.first()
        return part.position if first is None else first

    def expires_ms(self, live: Live) -> int:
        """When a request that still waits is ended."""
        queue, packed = live.queue, live.order
        if queue.ring is not None:
            wait_ms = queue.ring.pool.wait_ms_max
        else:
            endpoint = self.endpoints.get(queue.endpoint)
            wait_ms = min(endpoint.wait_ms_max if endpoint else POLICY_WAIT_MS, POLICY_WAIT_MS)
        expires_ms = live.arrived_ms + wait_ms
        deadline_ms = deadline_of(packed)
        return min(expires_ms, deadline_ms) if deadline_ms else expires_ms

    def watch(self, live: Live) -> None:
        """Index a request by the second after which it has expired."""
        self.watch_until(live, self.expires_ms(live))

    def watch_until(self, live: Live, expires_ms: int) -> None:
        """Likewise, where `expires_ms` is at hand."""
        second = -(-expires_ms // 1000)
        bucket = self.timers.get(second)
        if bucket is None:
            bucket = self.timers[second] = []
            heappush(self.seconds, second)
        bucket.append(live)
        self.timed += 1
        if self.timed > STALE_MAX + 2 * len(self.ids):
            self._tidy_timers()

    def watch_all(self) -> None:
        """Index all anew, after a change of what they may wait."""
        self.timers, self.seconds, self.timed = {}, [], 0
        for live in self.lives():
            self.watch(live)

    def _tidy_timers(self) -> None:
        for second, bucket in list(self.timers.items()):
            kept = [live for live in dict.fromkeys(bucket) if live.status != Status.ENDED]
            if kept:
                self.timers[second] = kept
            else:
                del self.timers[second]
        self.seconds = list(self.timers)
        heapify(self.seconds)
        self.timed = sum(map(len, self.timers.values()))

    def next_expiry_ms(self) -> int | None:
        """When the timers are to be looked at next; None: nothing waits."""
        return self.seconds[0] * 1000 if self.seconds else None

    def hold(self, live: Live) -> None:
        """Index a held request by its time."""
        heappush(self.held, (live.not_before_ms, live.key))

    def is_paused(self, tenant: str, endpoint: str) -> bool:
        """Whether a tenant may not run at an endpoint for now."""
        pauses = self.pauses
        return bool(pauses) and (
            (tenant, endpoint) in pauses or (tenant, "") in pauses or ("", endpoint) in pauses
        )


def is_eligible(queue: TenantQueue) -> bool:
    """Whether its requests can be picked: it has a seat, and so has its family."""
    if queue.seated is None:
        return False
    return queue.family is None or queue.family.seated is not None


def tokens_max(endpoint: Endpoint, inputs: int) -> int:
    """Clamp of an estimate: each input's share, and together they have to fit in a batch."""
    return min(inputs * endpoint.tokens_max, endpoint.batch_tokens)


def estimate(live: Live, pool: PoolState) -> int:
    """Tokens of a request: at least what its body is worth, at most what the endpoint takes."""
    tokens, floor = live.given, live.size // FLOOR_BYTES_PER_TOKEN + 1
    tokens = max(tokens, floor)
    if tokens <= pool.tokens_one:
        return tokens
    return min(tokens, tokens_max(pool.endpoint, live.inputs))
