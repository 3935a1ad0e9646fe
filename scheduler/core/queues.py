"""A tenant's queue and its seats: entering, leaving, picking, settling, ending.

The moves that steps are made of; called by scheduler.core.apply, repolicy and snapshot
alone. Each keeps counters, heaps and the selectors in agreement.

Seats. A queue with work sits in `base` of its ring (or of its family, which then sits in
the ring), in `burst` when its tenant has more in flight than is guaranteed to it, and
nowhere while its tenant is paused or at its limit. `reseat` makes that true again after
whatever may have changed it.
"""

from heapq import heappop, heappush

from scheduler.core.pick import Selector
from scheduler.core.pick.order import KEY_MASK
from scheduler.core.state import (
    OFFSET_BITS,
    OFFSET_MASK,
    RECENT_MAX,
    RECENT_MS,
    PoolState,
    Ring,
    State,
    estimate,
    is_eligible,
)
from scheduler.core.tenants import (
    FORGET_SHIFT,
    NO_LIMIT,
    TOKEN_US,
    Family,
    Live,
    Status,
    TenantQueue,
    Use,
)
from schemas.policy import CostModel
from schemas.reasons import Reason
from schemas.records import End, Outcome


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


# --- whose queue it is


def queue_of(state: State, tenant: str, endpoint: str, tier: str) -> TenantQueue:
    """The tenant's queue in the ring of the endpoint's pool and the tier, made if need be.

    What no policy knows waits in a queue without a ring.
    """
    served = state.endpoints.get(endpoint)
    pool = state.pools.get(served.pool) if served and tenant in state.tenants else None
    ring = pool.rings.get(tier) if pool else None
    if ring is None or pool is None:
        name = (tenant, endpoint, tier)
        unknown = state.unknown.get(name)
        if unknown is None:
            unknown = state.unknown[name] = TenantQueue(Use(tenant), endpoint, tier)
        return unknown
    queue = ring.queues.get(tenant)
    if queue is None:
        use = use_of(state, pool, tenant)
        queue = ring.queues[tenant] = TenantQueue(use, endpoint, tier, ring)
        queue.account = ring.base.account()
        use.queues.append(queue)
        join(state, queue)
    return queue


def use_of(state: State, pool: PoolState, tenant: str) -> Use:
    """The tenant's use of a pool, made if need be; it starts from what the pool has learned."""
    use = pool.uses.get(tenant)
    if use is None:
        use = pool.uses[tenant] = Use(tenant)
        use.learned_us = pool.learned.learned_us >> FORGET_SHIFT
        use.learned_tokens = pool.learned.learned_tokens >> FORGET_SHIFT
        if not use.learned_tokens:
            use.learned_us, use.learned_tokens = pool.endpoint.token_us or TOKEN_US, 1
        limit(state, pool, use)
    return use


def limit(state: State, pool: PoolState, use: Use) -> None:
    """Set what the policy and the pauses say about a tenant in a pool."""
    tenant, endpoint = state.tenants.get(use.tenant), pool.endpoint
    use.is_paused = state.is_paused(use.tenant, endpoint.name)
    if tenant is None:
        return
    guaranteed = tenant.in_flight.get(endpoint.name, endpoint.in_flight)
    waiting = tenant.waiting.get(endpoint.name, endpoint.waiting)
    burst = tenant.burst.get(endpoint.name, endpoint.burst)
    use.guaranteed = NO_LIMIT if guaranteed is None else guaranteed
    use.most = NO_LIMIT if guaranteed is None else guaranteed + burst
    use.waiting_most = NO_LIMIT if waiting is None else waiting
    use.is_limited = guaranteed is not None
    parent = use_of(state, pool, tenant.parent) if tenant.parent else None
    if parent is not use.parent:
        for member, sign in ((use.parent, -1), (parent, 1)):
            if member is not None:
                member.waiting += sign * use.waiting
                member.in_flight += sign * use.in_flight
        use.parent = parent


def join(state: State, queue: TenantQueue) -> None:
    """Put a queue where its tenant belongs, in the ring or in its parent's family, at its weight.

    It must have no seat when the family is another one.
    """
    ring, use = queue.ring, queue.use
    assert ring is not None
    root = use.parent or (use if use.tenant in state.parents else None)
    family = family_of(state, ring, root) if root is not None else None
    if family is not queue.family:
        assert queue.seated is None, queue.tenant
        queue.family, queue.last = family, None
        queue.account = ring.base.account()
    weight_of = None if root is use else use.tenant
    (queue.seated or (family or ring).base).retune(queue, increment(state, ring.pool, weight_of))


def family_of(state: State, ring: Ring, root: Use) -> Family:
    """A parent's place in a ring, made if need be."""
    family = ring.families.get(root.tenant)
    if family is None:
        base, burst = ring.new_selector(), ring.new_selector()
        base.half_life_ms = burst.half_life_ms = ring.pool.endpoint.half_life_ms
        family = ring.families[root.tenant] = Family(ring, root, base, burst)
        family.account = ring.base.account()
        root.families.append(family)
        ring.base.retune(family, increment(state, ring.pool, root.tenant))
    return family


def increment(state: State, pool: PoolState, tenant: str | None) -> int:
    """What a visit grants a tenant: quantum times weight; None: a weight of 1."""
    known = state.tenants.get(tenant) if tenant else None
    return pool.endpoint.quantum * (known.weight if known else 1)


# --- seats


def reseat(state: State, queue: TenantQueue) -> None:
    """Seat a queue where its work and its tenant's limits say, and compute its turn."""
    ring, family = queue.ring, queue.family
    assert ring is not None
    wanted: Selector | None = None
    if queue.count:
        if family is not None and family.use is queue.use:
            wanted = family.base  # a parent's limits are the family's
        else:
            wanted = _place(queue.use, family or ring)
    move(state, queue, wanted)


def move(state: State, queue: TenantQueue, wanted: Selector | None) -> None:
    """Seat a queue there, or nowhere; where it sits already its turn is computed anew."""
    ring, family, seated = queue.ring, queue.family, queue.seated
    assert ring is not None
    if wanted is not seated:
        if seated is not None:
            _count(queue, -1)
            seated.leave(queue, ring.pool.cost_max, state.now_ms)
        queue.seated = wanted
        if wanted is not None:
            if queue.last is not None and queue.last is not wanted:
                wanted.cross(queue.account)
            queue.last = wanted
            wanted.enter(queue, queue.cost(queue.head()), state.now_ms)
            _count(queue, 1)
    elif wanted is not None:
        wanted.reprice(queue, queue.cost(queue.head()))
    if family is not None:
        reseat_family(state, family)


def reseat_family(state: State, family: Family) -> None:
    """Likewise a family: the child that is next in it names the cost."""
    ring = family.ring
    wanted = _place(family.use, ring) if family.count else None
    seated = family.seated
    if wanted is not None:
        chosen = family.peek()
        assert chosen is not None, family.use.tenant
        child = chosen[0]
        cost = child.cost(child.head())
    if wanted is seated:
        if wanted is not None:
            wanted.reprice(family, cost)
        return
    if seated is not None:
        _add(ring, -family.count, -family.inputs, -family.tokens)
        seated.leave(family, ring.pool.cost_max, state.now_ms)
    family.seated = wanted
    if wanted is not None:
        if family.last is not None and family.last is not wanted:
            wanted.cross(family.account)
        family.last = wanted
        wanted.enter(family, cost, state.now_ms)
        _add(ring, family.count, family.inputs, family.tokens)


def resume(queue: TenantQueue) -> None:
    """Seat a queue of a loaded state where its account says that it sits."""
    ring, last = queue.ring, queue.last
    if not queue.count or last is None or not queue.account.seat:
        return
    assert ring is not None
    queue.seated = last
    last.reprice(queue, queue.cost(queue.head()))
    _count(queue, 1)


def resume_family(family: Family) -> None:
    """Likewise a family, after its children."""
    last = family.last
    if not family.count or last is None or not family.account.seat:
        return
    chosen = family.peek()
    assert chosen is not None, family.use.tenant
    child = chosen[0]
    family.seated = last
    last.reprice(family, child.cost(child.head()))
    _add(family.ring, family.count, family.inputs, family.tokens)


def _place(use: Use, home: Ring | Family) -> Selector | None:
    if use.is_paused or use.in_flight >= use.most:
        return None
    return home.base if use.in_flight < use.guaranteed else home.burst


def _count(queue: TenantQueue, sign: int) -> None:
    """Its waiting requests become eligible (1), or are no more (-1)."""
    family, ring = queue.family, queue.ring
    assert ring is not None
    count, inputs, tokens = sign * queue.count, sign * queue.inputs, sign * queue.tokens
    if family is not None:
        family.count += count
        family.inputs += inputs
        family.tokens += tokens
        if family.seated is None:
            return
    _add(ring, count, inputs, tokens)


def _add(ring: Ring, count: int, inputs: int, tokens: int) -> None:
    pool = ring.pool
    ring.waiting += count
    pool.waiting += count
    pool.inputs += inputs
    pool.tokens += tokens
    pool.oldest = -1
    if not ring.waiting:
        ring.credit = 0


def reseat_tenant(state: State, use: Use) -> None:
    """After a change of what a tenant has in flight, or may have."""
    for queue in use.queues:
        if queue.count or queue.seated is not None:
            reseat(state, queue)
    for family in use.families:
        reseat_family(state, family)


# --- requests


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


def _take_out(live: Live, status: Status) -> None:
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


def dequeue(state: State, live: Live, status: Status) -> None:
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
    _in_flight_changed(state, use)


def _in_flight_changed(state: State, use: Use) -> None:
    if use.is_limited:
        reseat_tenant(state, use)
    if use.parent is not None and use.parent.is_limited:
        reseat_tenant(state, use.parent)


def land(state: State, live: Live) -> None:
    """It is in no worker's hands any more."""
    use = live.queue.use
    use.in_flight -= 1
    if use.parent is not None:
        use.parent.in_flight -= 1
    _in_flight_changed(state, use)


def launch(state: State, live: Live) -> None:
    """In a worker's hands it counts for another queue now."""
    launched(live)
    _in_flight_changed(state, live.queue.use)


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
    if not more or live.status is not Status.WAITING:
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
    key = live.order & KEY_MASK
    state.parts[key >> OFFSET_BITS].window.remove(key & OFFSET_MASK)
    if state.returned:
        state.returned.pop(key, None)
    del state.ids[live.id]
    state.recent[live.id] = state.now_ms


def remember(state: State, request_id: str) -> None:
    """An id ended: a later publish of it is a duplicate, for a while."""
    recent = state.recent
    recent[request_id] = state.now_ms
    recent.move_to_end(request_id)


def forget(state: State) -> None:
    """Drop ended ids that are old, or too many."""
    recent = state.recent
    horizon_ms = state.now_ms - RECENT_MS
    while recent:
        oldest = next(iter(recent))
        if recent[oldest] >= horizon_ms and len(recent) <= RECENT_MAX:
            return
        del recent[oldest]


# --- costs


def settle(state: State, live: Live, surcharge: int) -> None:
    """Post the difference of true and estimated cost to the tenant's account, and its parent's."""
    queue = live.queue
    ring, family = queue.ring, queue.family
    if surcharge == 0 or ring is None:
        return
    pool, now_ms = ring.pool, state.now_ms
    selector = queue.seated or (family or ring).base
    selector.settle(queue, surcharge, pool.debt_max, pool.cost_max, now_ms)
    if family is not None:
        selector = family.seated or ring.base
        selector.settle(family, surcharge, pool.debt_max, pool.cost_max, now_ms)
    if queue.seated is not None:
        reseat(state, queue)
    elif family is not None and family.seated is not None:
        reseat_family(state, family)


def learn(state: State, live: Live, service_ms: int) -> None:
    """Take a measured service in; its tenant's other requests cost accordingly from now on."""
    queue = live.queue
    if queue.ring is None:
        return
    tokens = estimate(live, queue.ring.pool.endpoint)
    queue.use.learn(service_ms * 1_000, tokens)
    queue.ring.pool.learned.learn(service_ms * 1_000, tokens)
    for sister in queue.use.queues:
        if sister.seated is not None:
            reseat(state, sister)


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
    usage = outcome.usage
    if outcome.end in (End.CANCELLED, End.EXPIRED) and not usage.tokens and not usage.service_ms:
        return 0
    if unit is CostModel.REQUEST:
        return charged
    measured = usage.tokens if unit is CostModel.TOKEN else service_ms
    return charged if outcome.end is End.SUCCEEDED and not measured else measured
