"""The only code that changes State: one function per step, live and in recovery alike.

`apply(state, step)` takes a step as it stands in the decisions log. It decides nothing and
calls no selector's choice: what was chosen is in the step. It checks that the step fits
the state; a step that doesn't is a `StateMismatchError` that tells the story, because going
on would mean a lost or a doubled request.
"""

from collections.abc import Sequence
from heapq import heappush
from typing import NamedTuple

from scheduler.core.state import (
    RECENT_MAX,
    RECENT_MS,
    Flight,
    Lane,
    Live,
    PoolState,
    Ring,
    State,
    Status,
    TenantQueue,
    new_selector,
)
from schemas.policy import CostModel, Endpoint, Fairness
from schemas.reasons import Reason
from schemas.records import (
    Arrived,
    Cancel,
    ControlSaid,
    End,
    Ended,
    Finished,
    HandedBack,
    Outcome,
    Picked,
    PolicySet,
    Read,
    Released,
    Request,
    Requeued,
    Sealed,
    Seen,
    Started,
    Step,
    TopicMet,
    WorkerSaid,
    pack_key,
    unpack_key,
)
from schemas.topics import bucket


class Arrival(NamedTuple):
    """A request as read from its topic; `meta` is None when it could not be decoded.

    Then `reason` is a `Reason` and `detail` says what is wrong; otherwise both are "".
    """

    offset: int
    timestamp_ms: int
    size: int
    meta: Request | None
    reason: str = ""
    detail: str = ""


class StateMismatchError(Exception):
    """A step does not fit the state: fenced, corrupt, or a defect. Nothing may be written."""

    def __init__(self, state: State, step: Step, why: str) -> None:
        self.seq = state.seq + 1
        super().__init__(f"shard {state.shard}, decision {self.seq}: {why}; the step is {step!r}")


def apply(state: State, step: Step, arrivals: Sequence[Arrival] = ()) -> None:
    """Change `state` as `step` says.

    Args:
        state: the fold of everything before the step.
        step: one step of a decision.
        arrivals: for `Arrived` only: the requests of [start, stop) in offset order.

    Raises:
        StateMismatchError: the step contradicts the state.
    """
    match step:
        case Picked():
            _picked(state, step)
        case Sealed():
            _sealed(state, step)
        case Arrived():
            _arrived(state, step, arrivals)
        case WorkerSaid():
            _worker_said(state, step)
        case Read():
            state.positions[step.topic, step.partition] = step.position
        case Ended():
            _ended(state, step)
        case Requeued():
            _requeued(state, step)
        case Released():
            live = _live(state, step, step.key, Status.HELD)
            enqueue(state, live)
        case ControlSaid():
            _cancel(state, step.record)
        case TopicMet():
            state.topics[step.topic] = step.id
        case PolicySet():
            _policy_set(state, step)


def _live(state: State, step: Step, key: int, *statuses: Status) -> Live:
    live = state.live.get(key)
    if live is None:
        raise StateMismatchError(state, step, f"request {place(state, key)} is not live")
    if live.status not in statuses:
        raise StateMismatchError(
            state,
            step,
            f"request {live.id} at {place(state, key)} is {live.status.name.lower()}",
        )
    return live


def place(state: State, key: int) -> str:
    """Where a key's request stands in the log, for messages."""
    index, offset = unpack_key(key)
    if index >= len(state.parts):
        return f"partition #{index} offset {offset}"
    topic, partition = state.parts[index].partition
    return f"{topic}[{partition}]@{offset}"


# --- the queue of a tenant


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
        queue.account.increment = _increment(state, endpoint, live.tenant)
    return queue


def _increment(state: State, endpoint: Endpoint, tenant: str) -> int:
    return endpoint.quantum * state.weights.get(tenant, 1)


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
    queue.count += 1
    ring.waiting += 1
    pool.waiting += 1
    pool.tokens += live.tokens
    pool.oldest.append(live)
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
    pool.tokens -= live.tokens
    if queue.count == 0:
        ring.selector.leave(queue, state.cost_max(pool.endpoint), state.now_ms)
        queue.heap.clear()
    elif was_head:
        ring.selector.reprice(queue, queue.head().cost)


def close(state: State, live: Live) -> None:
    """The request is terminal: forget it, remember its id."""
    del state.live[live.key]
    state.ids.pop(live.id, None)
    state.parts[live.key >> 44].live -= 1
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


# --- steps


def _picked(state: State, step: Picked) -> None:
    live = _live(state, step, step.key, Status.WAITING)
    queue = live.queue
    assert queue is not None
    if step.cost != live.cost:
        raise StateMismatchError(state, step, f"its cost is {live.cost}, not {step.cost}")
    if queue.head() is not live:
        why = f"{live.id} is not the head of {live.tenant}: {queue.head().id} is"
        raise StateMismatchError(state, step, why)
    account = queue.account
    if step.seat != account.seat:
        why = f"{live.tenant} sits on seat {account.seat}, not {step.seat}"
        raise StateMismatchError(state, step, why)
    selector = queue.ring.selector
    turn = selector.turn_of(queue, live.cost)
    if step.round != turn:
        why = f"{live.tenant} can be served in round {turn}, not {step.round}"
        raise StateMismatchError(state, step, why)
    selector.charge(queue, step.cost, step.round)
    dequeue(state, live, Status.PICKED)
    state.open.append(live)


def _sealed(state: State, step: Sealed) -> None:
    if step.number != state.next_number or not state.open:
        why = f"the next batch is {state.next_number}, with {len(state.open)} requests picked"
        raise StateMismatchError(state, step, why)
    lane = _lane(state, step, step.pool, step.lane)
    for live in state.open:
        live.status = Status.DISPATCHED
    lane.flights[step.number] = Flight([(live.key, live.cost) for live in state.open])
    state.open = []
    state.next_number += 1
    for ring in state.pools[step.pool].rings.values():
        ring.selector.compact(len(ring.queues))


def _lane(state: State, step: Step, pool: str, lane: int) -> Lane:
    found = state.pools.get(pool)
    if found is None or lane >= len(found.lanes):
        raise StateMismatchError(state, step, f"there is no lane {lane} of pool {pool!r}")
    return found.lanes[lane]


def _arrived(state: State, step: Arrived, arrivals: Sequence[Arrival]) -> None:
    index = state.part((step.topic, step.partition), step.tier, step.start)
    if state.parts[index].position != step.start:
        position = state.parts[index].position
        raise StateMismatchError(state, step, f"the position there is {position}")
    refused = dict(step.refused)
    for arrival in arrivals:
        reason = refused.get(arrival.offset)
        if reason is None:
            if arrival.meta is None:
                why = f"offset {arrival.offset} can't be read any more: {arrival.detail}"
                raise StateMismatchError(state, step, why)
            admit(state, index, arrival)
        else:
            refuse(state, index, arrival, reason)
    state.parts[index].position = step.stop


def admit(state: State, index: int, arrival: Arrival) -> None:
    """Take a request in: live, timed, eligible."""
    meta = arrival.meta
    assert meta is not None
    part = state.parts[index]
    key = pack_key(index, arrival.offset)
    live = Live(key, part.tier, meta, arrival.size, arrival.timestamp_ms)
    state.estimate(live, state.endpoints[meta.endpoint])
    state.live[key] = live
    state.ids[live.id] = key
    part.live += 1
    part.outstanding.append(arrival.offset)
    state.watch(live)
    enqueue(state, live)


def refuse(state: State, index: int, arrival: Arrival, reason: str) -> None:
    """Pass a request over: it never becomes live."""
    meta = arrival.meta
    if meta is None:
        return
    if reason == Reason.DUPLICATE:
        state.aliases[pack_key(index, arrival.offset)] = meta.id
        if len(state.aliases) > RECENT_MAX:
            del state.aliases[next(iter(state.aliases))]
        return
    remember(state, meta.id)
    pending = state.cancels.get(state.parts[index].partition)
    if pending and arrival.offset in pending:
        pending.remove(arrival.offset)


def _worker_said(state: State, step: WorkerSaid) -> None:
    record = step.record
    lane = _lane(state, step, step.pool, step.lane)
    match record:
        case Seen():
            lane.slots = record.slots
        case Started():
            flight = lane.flights.get(record.number)
            if flight is not None:  # advice may come late, and from a zombie
                flight.started = True
        case Finished():
            flight = _land(state, step, lane, record.number)
            if [key for key, _ in flight.charged] != [o.key for o in record.outcomes]:
                raise StateMismatchError(state, step, "its requests are not those of the batch")
            for (key, cost), outcome in zip(flight.charged, record.outcomes, strict=True):
                live = _live(state, step, key, Status.DISPATCHED)
                settle(state, live, true_cost(state, live, cost, outcome) - cost)
                close(state, live)
        case HandedBack():
            flight = _land(state, step, lane, record.number)
            for key, cost in flight.charged:
                live = _live(state, step, key, Status.DISPATCHED)
                live.status = Status.RETURNED
                live.attempt += flight.started
                settle(state, live, -cost)


def _land(state: State, step: Step, lane: Lane, number: int) -> Flight:
    flight = lane.flights.pop(number, None)
    if flight is None:
        raise StateMismatchError(state, step, f"batch {number} is not in flight on this lane")
    return flight


def true_cost(state: State, live: Live, charged: int, outcome: Outcome) -> int:
    """What a request really cost, in its pool's unit.

    What never ran costs nothing. Under `token` a success without a count keeps its
    estimate, so that an engine that forgets to count is not free of charge.
    """
    usage = outcome.usage
    if outcome.end in (End.CANCELLED, End.EXPIRED) and not usage.tokens and not usage.service_ms:
        return 0
    endpoint = state.endpoints.get(live.endpoint)
    if endpoint is None or endpoint.cost is CostModel.REQUEST:
        return charged
    if outcome.end is End.SUCCEEDED and not usage.tokens:
        return charged
    return usage.tokens


def settle(state: State, live: Live, surcharge: int) -> None:
    """Post the difference of true and estimated cost to the tenant's account."""
    queue = live.queue
    if surcharge == 0 or queue is None:
        return
    ring = queue.ring
    pool = state.pools[ring.pool]
    ring.selector.settle(queue, surcharge, state.debt_max(pool), state.cost_max(pool.endpoint))
    if queue.count:
        ring.selector.reprice(queue, queue.head().cost)


def _ended(state: State, step: Ended) -> None:
    live = _live(state, step, step.key, Status.WAITING, Status.HELD, Status.RETURNED)
    if live.status is Status.WAITING:
        dequeue(state, live, Status.RETURNED)
    close(state, live)


def _requeued(state: State, step: Requeued) -> None:
    live = _live(state, step, step.key, Status.RETURNED)
    live.attempt = step.attempt
    state.watch(live)
    if step.not_before_ms > state.now_ms:
        live.status = Status.HELD
        live.not_before_ms = step.not_before_ms
        state.hold(live)
    else:
        enqueue(state, live)


def find_live(state: State, topic: str, partition: int, offset: int) -> Live | None:
    """The live request that a place names; a dropped duplicate's place names its twin."""
    index = state.part_of.get((topic, partition))
    if index is None:
        return None
    key = pack_key(index, offset)
    twin = state.aliases.get(key)
    if twin is not None:
        key = state.ids.get(twin, -1)
    return state.live.get(key)


def _cancel(state: State, record: Cancel) -> None:
    partition = (record.topic, record.partition)
    index = state.part_of.get(partition)
    if index is None or record.offset >= state.parts[index].position:
        pending = state.cancels.setdefault(partition, [])
        if record.offset not in pending:
            pending.append(record.offset)
        return
    live = find_live(state, record.topic, record.partition, record.offset)
    if live is not None and live.status is Status.DISPATCHED:
        live.cancelled = True


# --- policy


def _policy_set(state: State, step: PolicySet) -> None:
    policy = state.adopt(step.document)
    by_pool = {endpoint.pool: endpoint for endpoint in policy.endpoints}
    pools: dict[str, PoolState] = {}
    for spec in policy.pools:
        endpoint = by_pool.get(spec.name)
        if endpoint is None or bucket(spec.name, policy.topology.shards) != state.shard:
            continue
        pool = state.pools.pop(spec.name, None) or PoolState(endpoint, spec.prefetch)
        pool.endpoint, pool.prefetch = endpoint, spec.prefetch
        pool.lanes += [Lane() for _ in range(spec.lanes - len(pool.lanes))]
        rings: dict[str, Ring] = {}
        for tier in policy.tiers:
            ring = pool.rings.pop(tier.name, None) or Ring(spec.name, tier.name, spec.fairness)
            _change_selector(state, ring, spec.fairness, endpoint)
            rings[tier.name] = ring
        pool.rings = {**rings, **pool.rings}  # removed tiers stay, last, until they are empty
        pools[spec.name] = pool
    state.pools = {**pools, **state.pools}  # likewise removed pools
    _reestimate(state)


def _change_selector(state: State, ring: Ring, fairness: Fairness, endpoint: Endpoint) -> None:
    fresh = new_selector(fairness)
    if type(fresh) is not type(ring.selector):
        ring.selector = fresh
        for queue in ring.queues.values():
            queue.account.granted = 0
            if queue.count:
                ring.selector.enter(queue, queue.head().cost, state.now_ms)
    for queue in ring.queues.values():
        ring.selector.retune(queue, _increment(state, endpoint, queue.tenant))


def _reestimate(state: State) -> None:
    """The new policy applies to the backlog: costs, expiry, pools of what is live."""
    for live in list(state.live.values()):
        endpoint = state.endpoints.get(live.endpoint)
        if endpoint is None or endpoint.pool not in state.pools:
            if live.status is not Status.WAITING:
                live.queue = None
            continue
        moves = live.status is Status.WAITING and (
            live.queue is None or live.queue.ring.pool != endpoint.pool
        )
        if moves:
            dequeue(state, live, Status.RETURNED)
        before, expired_ms = live.tokens, live.expires_ms
        state.estimate(live, endpoint)
        if live.expires_ms != expired_ms:
            state.watch(live)
        if moves:
            enqueue(state, live)
        elif live.status is Status.WAITING:
            state.pools[endpoint.pool].tokens += live.tokens - before
        else:
            live.queue = queue_of(state, live)
    for pool in state.pools.values():
        for ring in pool.rings.values():
            for queue in ring.queues.values():
                if queue.count:
                    ring.selector.reprice(queue, queue.head().cost)
