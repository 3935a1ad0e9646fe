"""A new policy applied to what is there: pools, lanes, rings, and the backlog.

Called by scheduler.core.apply alone. What the new policy lets nobody run is taken out of
its queue (`Status.RETURNED`); the next sweeps end it with the reason.
"""

from scheduler.core.queues import dequeue, enqueue, increment_of, queue_of, set_aside, why_not
from scheduler.core.state import Lane, Live, PoolState, Ring, State, Status, new_selector
from schemas.policy import Endpoint, Fairness, Policy, Pool
from schemas.topics import bucket


def set_policy(state: State, document: bytes) -> None:
    """Apply a published policy; it was checked when it was decided on."""
    policy = state.adopt(document)
    state.pools = _pools(state, policy)
    for live in list(state.live.values()):
        _reconsider(state, live)
    for pool in state.pools.values():
        for ring in pool.rings.values():
            for queue in ring.queues.values():
                if queue.count:
                    ring.selector.reprice(queue, queue.head().cost)


def _pools(state: State, policy: Policy) -> dict[str, PoolState]:
    """Pools of this shard in the policy's order; removed ones stay, last, for what is out."""
    by_pool = {endpoint.pool: endpoint for endpoint in policy.endpoints}
    pools: dict[str, PoolState] = {}
    for spec in policy.pools:
        endpoint = by_pool.get(spec.name)
        if endpoint is None or bucket(spec.name, policy.topology.shards) != state.shard:
            continue
        pool = state.pools.get(spec.name) or PoolState(endpoint, spec.prefetch)
        _change_pool(state, pool, spec, endpoint, [tier.name for tier in policy.tiers])
        pools[spec.name] = pool
    return pools | {name: pool for name, pool in state.pools.items() if name not in pools}


def _change_pool(
    state: State, pool: PoolState, spec: Pool, endpoint: Endpoint, tiers: list[str]
) -> None:
    has_new_unit = pool.endpoint.cost is not endpoint.cost
    pool.endpoint, pool.prefetch = endpoint, spec.prefetch
    pool.lanes += [Lane() for _ in range(spec.lanes - len(pool.lanes))]
    named = {tier: pool.rings.get(tier) or Ring(spec.name, tier, spec.fairness) for tier in tiers}
    pool.rings = named | {tier: ring for tier, ring in pool.rings.items() if tier not in named}
    for ring in pool.rings.values():
        _change_selector(state, ring, spec.fairness, state.cost_max(endpoint))
        for queue in ring.queues.values():
            ring.selector.retune(queue, increment_of(state, endpoint, queue.tenant))
            if has_new_unit:  # balances in another unit mean nothing
                queue.account.deficit = queue.account.credit = 0


def _change_selector(state: State, ring: Ring, fairness: Fairness, cost_max: int) -> None:
    fresh = new_selector(fairness)
    if type(fresh) is type(ring.selector):
        return
    for queue in ring.queues.values():
        if queue.count:
            ring.selector.leave(queue, cost_max, state.now_ms)
        queue.account.granted = 0
    ring.selector = fresh
    for queue in ring.queues.values():
        if queue.count:
            fresh.enter(queue, queue.head().cost, state.now_ms)


def _reconsider(state: State, live: Live) -> None:
    """One live request under the new policy: its cost, its expiry, its queue, or none."""
    reason = why_not(state, live.tenant, live.endpoint, live.tier)
    if reason is not None and live.status in (Status.WAITING, Status.HELD):
        if live.status is Status.WAITING:
            dequeue(state, live, Status.RETURNED)
        set_aside(state, live)
    endpoint = state.endpoints.get(live.endpoint)
    if endpoint is None:
        live.queue = None
        return
    is_waiting = live.status is Status.WAITING
    moves = is_waiting and live.queue is not None and live.queue.ring.pool != endpoint.pool
    if moves:
        dequeue(state, live, Status.RETURNED)
    before = live.tokens
    state.estimate(live, endpoint)
    state.watch(live)
    if moves:
        enqueue(state, live)
    elif is_waiting:
        state.pools[endpoint.pool].tokens += live.tokens - before
    else:
        live.queue = queue_of(state, live)
