"""A new policy applied to what is there: pools, lanes, rings, limits, and the backlog.

Called by scheduler.core.apply alone. What the new policy lets nobody run is taken out of
its queue (`Status.RETURNED`) and the next sweeps end it with the reason; what waited for
the policy is queued; everything else keeps its place, at its new weight, limits and cost.
"""

from scheduler.core.pick.order import order, priority_of
from scheduler.core.queues import (
    dequeue,
    enqueue,
    hold,
    land,
    launch,
    retoken,
    set_aside,
    unhold,
    why_not,
)
from scheduler.core.seats import (
    attach,
    increment,
    join,
    limit,
    move,
    queue_of,
    reseat,
    reseat_family,
)
from scheduler.core.state import Lane, PoolState, Ring, State, estimate
from scheduler.core.tenants import Live, Status, Use
from schemas.policy import Endpoint, Policy, Pool, Tier
from schemas.reasons import Reason
from schemas.topics import bucket


def set_policy(state: State, document: bytes) -> None:
    """Apply a published policy; it was checked when it was decided on."""
    aging = {name: tenant.aging_ms for name, tenant in state.tenants.items()}
    policy = state.adopt(document)
    for part in state.parts:
        part.known.clear()
    state.pools = _pools(state, policy)
    for pool in state.pools.values():
        _change_tenants(state, pool)
    for live in list(state.lives()):
        known = live.queue.ring is not None
        _reconsider(state, live, aging.get(live.tenant, 0) if known else 0)
    for pool in state.pools.values():
        pool.oldest = -1
        for ring in pool.rings.values():
            for queue in ring.queues.values():
                if queue.count:
                    queue.sort()
                    reseat(state, queue)
            for family in ring.families.values():
                reseat_family(state, family)
    unknown = {id(live.queue) for live in state.lives() if live.queue.ring is None}
    state.unknown = {name: q for name, q in state.unknown.items() if id(q) in unknown}
    state.watch_all()


# --- pools


def _pools(state: State, policy: Policy) -> dict[str, PoolState]:
    """Pools of this shard in the policy's order; removed ones stay, last, for what is out."""
    by_pool = {endpoint.pool: endpoint for endpoint in policy.endpoints}
    pools: dict[str, PoolState] = {}
    for spec in policy.pools:
        endpoint = by_pool.get(spec.name)
        if endpoint is None or bucket(spec.name, policy.topology.shards) != state.shard:
            continue
        pool = state.pools.get(spec.name)
        if pool is None:
            pool = PoolState(spec.name, endpoint, spec.prefetch, state.parts)
        _change_pool(state, pool, spec, endpoint, policy.tiers)
        pools[spec.name] = pool
    return pools | {name: pool for name, pool in state.pools.items() if name not in pools}


def _change_pool(
    state: State, pool: PoolState, spec: Pool, endpoint: Endpoint, tiers: tuple[Tier, ...]
) -> None:
    if pool.endpoint.name != endpoint.name:  # another model: nothing known of it holds
        _clear(state, pool)
    has_new_unit = pool.unit is not endpoint.cost
    pool.endpoint, pool.prefetch = endpoint, spec.prefetch
    pool.lanes += [Lane() for _ in range(spec.lanes - len(pool.lanes))]
    pool.measure()
    named: dict[str, Ring] = {}
    for tier in tiers:
        ring = pool.rings.get(tier.name) or Ring(pool, tier.name, spec.fairness)
        ring.floor = tier.floor
        named[tier.name] = ring
    pool.rings = named | {tier: ring for tier, ring in pool.rings.items() if tier not in named}
    for name, ring in pool.rings.items():
        if name not in {tier.name for tier in tiers}:
            ring.floor = 0
        if ring.fairness is not spec.fairness or has_new_unit:
            _renew(state, ring, spec)
        ring.base.half_life_ms = ring.burst.half_life_ms = endpoint.half_life_ms
        for family in ring.families.values():
            family.base.half_life_ms = family.burst.half_life_ms = endpoint.half_life_ms
    pool.has_floors = any(ring.floor for ring in pool.rings.values())


def _clear(state: State, pool: PoolState) -> None:
    """Forget who used it: what waits is moved by `_reconsider`."""
    for ring in pool.rings.values():
        for queue in ring.queues.values():
            move(state, queue, None)
    pool.rings, pool.uses, pool.learned = {}, {}, Use("")


def _renew(state: State, ring: Ring, spec: Pool) -> None:
    """Other selectors, or the same ones in another unit: balances mean nothing any more."""
    for queue in ring.queues.values():
        move(state, queue, None)
    ring.fairness = spec.fairness
    ring.base, ring.burst = ring.new_selector(), ring.new_selector()
    ring.credit = 0
    for family in ring.families.values():
        family.base, family.burst = ring.new_selector(), ring.new_selector()
        family.account, family.last = ring.base.account(), None
    for queue in ring.queues.values():
        queue.account, queue.last = ring.base.account(), None


# --- tenants


def _change_tenants(state: State, pool: PoolState) -> None:
    """Limits, weights and parents; who changes families takes a new seat."""
    before = {use.tenant: use.parent for use in pool.uses.values()}
    for use in pool.uses.values():
        known = state.tenants.get(use.tenant)
        if use.parent is not None and (known is None or known.parent != use.parent.tenant):
            attach(use, None)
    for use in list(pool.uses.values()):
        limit(state, pool, use)
    for use in pool.uses.values():
        is_parent = use.tenant in state.parents
        for queue in use.queues:
            was_own = queue.family is not None and queue.family.use is use
            if use.parent is not before.get(use.tenant) or is_parent is not was_own:
                move(state, queue, None)
            join(state, queue)
    for ring in pool.rings.values():
        for family in ring.families.values():
            grant = increment(state, pool, family.use.tenant)
            (family.seated or ring.base).retune(family, grant)


# --- requests


def _reconsider(state: State, live: Live, aging_before_ms: int) -> None:
    """One live request under the new policy: its place, its queue or none, its estimate."""
    before, status = live.queue, live.status
    tenant, endpoint, tier = before.tenant, before.endpoint, before.tier
    home = queue_of(state, tenant, endpoint, tier)
    reason = why_not(state, tenant, endpoint, tier)
    if before.ring is None and reason in (Reason.UNKNOWN_TENANT, Reason.UNKNOWN_ENDPOINT):
        reason = None  # it waits on
    stays = home is before and (reason is None or status not in _WAITS)
    if not stays:
        _take_away(state, live)
    known = state.tenants.get(tenant)
    aging_ms = known.aging_ms if known and home.ring is not None else 0
    if aging_ms != aging_before_ms:
        priority = priority_of(live.order, aging_before_ms)
        key, arrived_ms = live.key, live.arrived_ms
        live.order = order(priority, live.deadline_ms, arrived_ms, key, aging_ms)
    if home.ring is not None:
        retoken(live, estimate(live, home.ring.pool))
    if not stays:
        live.queue = home
        _give(state, live, status, reason)


_WAITS = (Status.WAITING, Status.HELD)


def _take_away(state: State, live: Live) -> None:
    """Out of the counters of the queue that it was in."""
    match live.status:
        case Status.WAITING:
            dequeue(state, live, Status.RETURNED)
        case Status.HELD:
            unhold(state, live)
        case Status.DISPATCHED:
            land(state, live.queue.use)
        case _:  # in nobody's counters
            pass


def _give(state: State, live: Live, status: int, reason: Reason | None) -> None:
    """Into the counters of the queue that it is in now."""
    if status == Status.DISPATCHED:
        launch(state, live)
    elif status in _WAITS and reason is not None:
        set_aside(state, live)
    elif status == Status.WAITING or (status == Status.HELD and not live.not_before_ms):
        enqueue(state, live)
    elif status == Status.HELD:
        hold(state, live)
