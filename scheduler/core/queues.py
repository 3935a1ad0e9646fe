"""A tenant's queue and its account: entering, leaving, settling, ending.

The moves that steps are made of; called by scheduler.core.apply and scheduler.core.repolicy
alone. Each keeps counters, heaps and the ring's selector in agreement.
"""

from heapq import heappush

from scheduler.core.state import RECENT_MAX, RECENT_MS, Live, State, Status, TenantQueue
from schemas.policy import CostModel, Endpoint
from schemas.reasons import Reason
from schemas.records import End, Outcome


def why_not(state: State, tenant: str, endpoint: str, tier: str) -> Reason | None:
    """Why the policy lets nobody run this; None: it may run."""
    allowed = state.tenants.get(tenant)
    if allowed is None:
        return Reason.UNKNOWN_TENANT
    served = state.endpoints.get(endpoint)
    pool = state.pools.get(served.pool) if served else None
    if pool is None:
        return Reason.UNKNOWN_ENDPOINT
    if tier not in allowed.tiers:
        return Reason.TIER_NOT_ALLOWED
    return None


def queue_of(state: State, live: Live) -> TenantQueue | None:
    """The tenant's queue in the ring of the request's pool and tier; None without a ring."""
    endpoint = state.endpoints.get(live.endpoint)
    pool = state.pools.get(endpoint.pool) if endpoint else None
    ring = pool.rings.get(live.tier) if pool else None
    if ring is None or endpoint is None:
        return None
    queue = ring.queues.get(live.tenant)
    if queue is None:
        queue = ring.queues[live.tenant] = TenantQueue(live.tenant, ring)
        queue.account.increment = increment_of(state, endpoint, live.tenant)
    return queue


def increment_of(state: State, endpoint: Endpoint, tenant: str) -> int:
    """What a visit grants a tenant: quantum times weight."""
    known = state.tenants.get(tenant)
    return endpoint.quantum * (known.weight if known else 1)


def enqueue(state: State, live: Live, *, seat: bool = True) -> None:
    """Make a request eligible; with `seat` False the ring already knows (restoring)."""
    queue = queue_of(state, live)
    assert queue is not None, live.id
    live.queue = queue
    live.status = Status.WAITING
    live.not_before_ms = 0
    ring = queue.ring
    pool = state.pools[ring.pool]
    heappush(queue.heap, (live.order(), live))
    heappush(pool.oldest, (live.arrived_ms, live.key, live))
    queue.count += 1
    ring.waiting += 1
    pool.waiting += 1
    pool.inputs += live.inputs
    pool.tokens += live.tokens
    if not seat:
        return
    if queue.count == 1:
        ring.selector.enter(queue, live.cost, state.now_ms)
    elif queue.head() is live:
        ring.selector.reprice(queue, live.cost)


def dequeue(state: State, live: Live, status: Status) -> None:
    """Take an eligible request out of its queue; it is `status` from now on."""
    queue = live.queue
    assert queue is not None, live.id
    was_head = queue.head() is live
    live.status = status
    ring = queue.ring
    pool = state.pools[ring.pool]
    queue.count -= 1
    ring.waiting -= 1
    pool.waiting -= 1
    pool.inputs -= live.inputs
    pool.tokens -= live.tokens
    if queue.count == 0:
        ring.selector.leave(queue, state.cost_max(pool.endpoint), state.now_ms)
        queue.heap.clear()
    else:
        queue.tidy()
        if was_head:
            ring.selector.reprice(queue, queue.head().cost)
    pool.tidy()


def set_aside(state: State, live: Live) -> None:
    """Out of everybody's hands: the next sweep queues it again or ends it."""
    live.status = Status.RETURNED
    live.batch = None
    state.returned[live.key] = None


def close(state: State, live: Live) -> None:
    """The request is terminal: forget it, remember its id."""
    del state.live[live.key]
    state.returned.pop(live.key, None)
    state.unwatch(live)
    state.ids.pop(live.id, None)
    remember(state, live.id)


def remember(state: State, request_id: str) -> None:
    """An id ended: a later publish of it is a duplicate, for a while."""
    recent = state.recent
    recent.pop(request_id, None)
    recent[request_id] = state.now_ms
    horizon = state.now_ms - RECENT_MS
    for _ in range(2):  # forgets faster than it learns, in constant time
        oldest = next(iter(recent))
        if recent[oldest] >= horizon and len(recent) <= RECENT_MAX:
            break
        del recent[oldest]


def settle(state: State, live: Live, surcharge: int) -> None:
    """Post the difference of true and estimated cost to the tenant's account."""
    queue = live.queue
    if surcharge == 0 or queue is None:
        return
    ring = queue.ring
    pool = state.pools[ring.pool]
    cost_max = state.cost_max(pool.endpoint)
    ring.selector.settle(queue, surcharge, state.debt_max(pool), cost_max, state.now_ms)
    if queue.count:
        ring.selector.reprice(queue, queue.head().cost)


def true_cost(unit: CostModel, charged: int, outcome: Outcome) -> int:
    """What a request really cost, in the unit it was charged in.

    What never ran costs nothing. Under `token` a success without a count keeps its
    estimate, so that an engine that forgets to count is not free of charge.
    """
    usage = outcome.usage
    if outcome.end in (End.CANCELLED, End.EXPIRED) and not usage.tokens and not usage.service_ms:
        return 0
    if unit is CostModel.REQUEST or (outcome.end is End.SUCCEEDED and not usage.tokens):
        return charged
    return usage.tokens
