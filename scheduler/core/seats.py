"""Who sits where: a tenant's queue, its use of the pool, its family, and their seats.

A queue with work sits in `base` of its ring (or of its family, which then sits in the
ring), in `burst` when its tenant has more in flight than is guaranteed to it, and nowhere
while its tenant is paused or at its limit. `reseat` makes that true again after whatever
may have changed it, and has the turn computed anew.
"""

from scheduler.core.pick import Selector
from scheduler.core.state import PoolState, Ring, State
from scheduler.core.tenants import FORGET_SHIFT, NO_LIMIT, TOKEN_US, Family, TenantQueue, Use


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
    use.aging_ms = tenant.aging_ms if tenant else 0
    use.is_paused = state.is_paused(use.tenant, endpoint.name)
    policy = state.policy
    if tenant is None or policy is None:
        use.guaranteed = use.most = use.waiting_most = NO_LIMIT
        use.is_limited = False
        attach(use, None)
        return
    guaranteed = policy.in_flight(tenant, endpoint)
    waiting = policy.waiting(tenant, endpoint)
    burst = policy.burst(tenant, endpoint)
    use.guaranteed = NO_LIMIT if guaranteed is None else guaranteed
    use.most = NO_LIMIT if guaranteed is None else guaranteed + burst
    use.waiting_most = NO_LIMIT if waiting is None else waiting
    use.is_limited = guaranteed is not None
    attach(use, use_of(state, pool, tenant.parent) if tenant.parent else None)


def attach(use: Use, parent: Use | None) -> None:
    """Make a tenant's requests count for a parent, and for no other any more.

    Where several change at once, all are detached before any is attached: what a parent
    passes on must not hold what has left it.
    """
    if parent is use.parent:
        return
    for member, sign in ((use.parent, -1), (parent, 1)):
        if member is not None:
            member.waiting += sign * use.waiting
            member.in_flight += sign * use.in_flight
    use.parent = parent


def may_wait(state: State, tenant: str, endpoint: str) -> bool:
    """Whether one more request of a tenant may wait; changes nothing."""
    served = state.endpoints[endpoint]
    uses = state.pools[served.pool].uses
    policy, known = state.policy, state.tenants.get(tenant)
    while policy is not None and known is not None:
        most = policy.waiting(known, served)
        use = uses.get(known.name)
        if most is not None and (use.waiting if use else 0) >= most:
            return False
        known = state.tenants.get(known.parent) if known.parent else None
    return True


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
        family = ring.families[root.tenant] = Family(ring, root, base, burst)
        family.account = ring.base.account()
        root.families.append(family)
        ring.base.retune(family, increment(state, ring.pool, root.tenant))
    return family


def increment(state: State, pool: PoolState, tenant: str | None) -> int:
    """What a visit grants a tenant: quantum times weight; None: a weight of 1."""
    known = state.tenants.get(tenant) if tenant else None
    return pool.endpoint.quantum * (known.weight if known else 1)


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
    elif not ring.waiting:
        ring.credit = 0


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
        elif not ring.waiting:
            ring.credit = 0
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
    if not ring.waiting:
        ring.credit = 0


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


def reseat_tenant(state: State, use: Use) -> None:
    """After a change of what a tenant has in flight, or may have."""
    for queue in use.queues:
        if queue.count or queue.seated is not None:
            reseat(state, queue)
    for family in use.families:
        reseat_family(state, family)


def in_flight_changed(state: State, use: Use) -> None:
    """A tenant has more or fewer requests in workers' hands: its seats may be others."""
    if use.is_limited:
        reseat_tenant(state, use)
    if use.parent is not None and use.parent.is_limited:
        reseat_tenant(state, use.parent)
