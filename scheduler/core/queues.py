"""A request's way through its tenant's queue: in, picked, landed, settled, ended.

The moves that steps are made of; called by apply and its kin, repolicy and snapshot alone.
Each keeps counters and heaps in agreement; seats and turns are `scheduler.core.seats`.
"""

from heapq import heappop, heappush
from typing import Final

from scheduler.core.seats import in_flight_changed, reseat, reseat_family
from scheduler.core.state import State, estimate, is_eligible
from scheduler.core.tenants import OFFSET_BITS, OFFSET_MASK, Live, Status, TenantQueue, Use
from schemas.policy import CostModel
from schemas.reasons import Reason
from schemas.records import End, Outcome

_CANCELLED: Final = End.CANCELLED
_EXPIRED: Final = End.EXPIRED
_SUCCEEDED: Final = End.SUCCEEDED
_REQUEST: Final = CostModel.REQUEST
_TOKEN: Final = CostModel.TOKEN


def why_not(state: State, tenant: str, endpoint: str, tier: str) -> Reason | None:
    """Why the policy lets nobody run this; None: it may run."""
    allowed = state.tenants.get(tenant)
    if allowed is None:
        return Reason.UNKNOWN_TENANT
    served = state.endpoints.get(endpoint)
    if served is None or served.pool not in state.pools:
        return Reason.UNKNOWN_ENDPOINT
    if tier not in allowed.tiers:
        return Reason.TIER_NOT_ALLOWED
    return None


def enqueue(state: State, live: Live, *, seat: bool = True) -> None:
    """Make a request eligible; with `seat` False it is seated later (loading)."""
    queue = live.queue
    ring, family, use = queue.ring, queue.family, queue.use
    assert ring is not None, live.id
    live.status = Status.WAITING
    if live.past is not None:
        live.past.not_before_ms = 0
    heappush(queue.heap, live.order)
    queue.count += 1
    queue.inputs += live.inputs
    queue.tokens += live.tokens
    use.waiting += 1
    if use.parent is not None:
        use.parent.waiting += 1
    if queue.count == 1:
        queue.first = live
        ring.active[queue.tenant] = queue
        if seat:
            reseat(state, queue)
        return
    if queue.seated is None:
        if queue.heap[0] == live.order:
            queue.first = live
        return
    if family is not None:
        family.count += 1
        family.inputs += live.inputs
        family.tokens += live.tokens
    if family is None or family.seated is not None:
        pool = ring.pool
        ring.waiting += 1
        pool.waiting += 1
        pool.inputs += live.inputs
        pool.tokens += live.tokens
        if pool.oldest >= 0:
            pool.oldest = min(pool.oldest, live.arrived_ms)
    if queue.heap[0] == live.order:
        queue.first = live
        reseat(state, queue)


def _take_out(live: Live, status: int) -> None:
    """Out of the counters of its queue and all above; the heap is the caller's."""
    queue = live.queue
    ring, family, use = queue.ring, queue.family, queue.use
    assert ring is not None
    live.status = status
    queue.count -= 1
    queue.inputs -= live.inputs
    queue.tokens -= live.tokens
    use.waiting -= 1
    if use.parent is not None:
        use.parent.waiting -= 1
    if queue.seated is None:
        return
    if family is not None:
        family.count -= 1
        family.inputs -= live.inputs
        family.tokens -= live.tokens
        if family.seated is None:
            return
    pool = ring.pool
    ring.waiting -= 1
    pool.waiting -= 1
    pool.inputs -= live.inputs
    pool.tokens -= live.tokens
    if pool.oldest >= 0 and live.arrived_ms == pool.oldest:
        pool.oldest = -1
    if not ring.waiting:
        ring.credit = 0


def dequeue(state: State, live: Live, status: int) -> None:
    """Take an eligible request out of its queue; it is `status` from now on."""
    queue = live.queue
    was_head = queue.head() is live
    _take_out(live, status)
    if queue.count == 0:
        _empty(queue)
        reseat(state, queue)
    elif was_head:
        queue.first = None
        queue.head()  # the next one comes to the top
        if queue.seated is not None:
            reseat(state, queue)
    else:
        queue.tidy()


def _empty(queue: TenantQueue) -> None:
    queue.heap.clear()
    queue.first = None
    assert queue.ring is not None
    del queue.ring.active[queue.tenant]


def pick(state: State, live: Live, cost: int, turn: int, inner_turn: int) -> None:
    """Charge the head of a queue and take it out; a `turn` below 0 is an overtaking pick."""
    queue = live.queue
    family, use, seated = queue.family, queue.use, queue.seated
    assert seated is not None
    heappop(queue.heap)
    queue.first = None
    _take_out(live, Status.PICKED)
    use.in_flight += 1
    if use.parent is not None:
        use.parent.in_flight += 1
    if queue.count and family is None and not use.is_limited and turn >= 0:
        seated.serve(queue, cost, turn, queue.cost(queue.head()))
        return
    if turn < 0:
        seated.borrow(queue, cost)
    else:
        seated.charge(queue, cost, inner_turn if family is not None else turn)
    if family is not None and family.seated is not None:
        if turn < 0:
            family.seated.borrow(family, cost)
        else:
            family.seated.charge(family, cost, turn)
    if not queue.count:
        _empty(queue)
    else:
        queue.head()
    reseat(state, queue)
    in_flight_changed(state, use)


def land(state: State, use: Use) -> None:
    """A request of a tenant is in no worker's hands any more."""
    use.in_flight -= 1
    if use.parent is not None:
        use.parent.in_flight -= 1
    if use.is_limited or use.parent is not None:
        in_flight_changed(state, use)


def launch(state: State, live: Live) -> None:
    """In a worker's hands it counts for another queue now."""
    launched(live)
    in_flight_changed(state, live.queue.use)


def launched(live: Live) -> None:
    """It is in a worker's hands; seats are the caller's."""
    live.status = Status.DISPATCHED
    use = live.queue.use
    use.in_flight += 1
    if use.parent is not None:
        use.parent.in_flight += 1


def retoken(live: Live, tokens: int) -> None:
    """Another estimate; what is eligible counts with it, its turn is the caller's."""
    queue, more = live.queue, tokens - live.tokens
    live.tokens = tokens
    if not more or live.status != Status.WAITING:
        return
    queue.tokens += more
    if queue.seated is not None:
        if queue.family is not None:
            queue.family.tokens += more
        if is_eligible(queue) and queue.ring is not None:
            queue.ring.pool.tokens += more


def set_aside(state: State, live: Live) -> None:
    """Out of everybody's hands: the next sweep queues it again or ends it."""
    live.status = Status.RETURNED
    state.returned[live.key] = None


def hold(state: State, live: Live) -> None:
    """Held until its time, counted as waiting; or unknown to the policy, counted apart."""
    live.status = Status.HELD
    use = live.queue.use
    if live.queue.ring is None:
        state.unknown_count += 1
        return
    state.hold(live)
    use.waiting += 1
    if use.parent is not None:
        use.parent.waiting += 1


def unhold(state: State, live: Live) -> None:
    """Reverse `hold`; its status is the caller's."""
    use = live.queue.use
    if live.queue.ring is None:
        state.unknown_count -= 1
        return
    use.waiting -= 1
    if use.parent is not None:
        use.parent.waiting -= 1


def close(state: State, live: Live) -> None:
    """The request is terminal: forget it, remember its id."""
    live.status = Status.ENDED
    key = live.key
    state.parts[key >> OFFSET_BITS].window.remove(key & OFFSET_MASK)
    if state.returned:
        state.returned.pop(key, None)
    del state.ids[live.id]
    state.recent.add(live.id, state.now_ms)


# --- costs


def settle(state: State, queue: TenantQueue, surcharges: list[int]) -> None:
    """Post differences of true and estimated cost to the tenant's account, and its parent's."""
    ring, family = queue.ring, queue.family
    if ring is None:
        return
    pool, now_ms = ring.pool, state.now_ms
    selector = queue.seated or (family or ring).base
    for surcharge in surcharges:
        selector.settle(queue, surcharge, pool.debt_max, pool.cost_max, now_ms)
    if family is not None:
        selector = family.seated or ring.base
        for surcharge in surcharges:
            selector.settle(family, surcharge, pool.debt_max, pool.cost_max, now_ms)
    if queue.seated is not None:
        reseat(state, queue)
    elif family is not None and family.seated is not None:
        reseat_family(state, family)


def learn(queue: TenantQueue, live: Live, service_ms: int) -> None:
    """Take a measured service in; the tenant's seats are the caller's: its heads cost another."""
    if queue.ring is None:
        return
    tokens = estimate(live, queue.ring.pool)
    queue.use.learn(service_ms * 1_000, tokens)
    queue.ring.pool.learned.learn(service_ms * 1_000, tokens)


def true_cost(unit: CostModel, charged: int, outcome: Outcome, service_ms: int) -> int:
    """What a request really cost, in the unit it was charged in.

    What never ran costs nothing. A success without a count keeps its estimate, so that an
    engine that forgets to count is not free of charge.

    Args:
        unit: cost model of the charge.
        charged: the estimate.
        outcome: what the worker said.
        service_ms: the request's part of the time of its batch.
    """
    usage, end = outcome.usage, outcome.end
    tokens: int = usage.input_tokens + usage.output_tokens
    if (end is _CANCELLED or end is _EXPIRED) and not tokens and not usage.service_ms:
        return 0
    if unit is _REQUEST:
        return charged
    measured = tokens if unit is _TOKEN else service_ms
    return charged if end is _SUCCEEDED and not measured else measured
