"""The filling of batches: when one is due, and what goes into it.

A batch is picked whole when a lane has room and there is enough eligible work, or the
oldest has waited long enough. It is full at so many requests, tokens or bytes. Who goes
next is asked of the selectors, in their order: tier, tenant, request.
"""

from scheduler.core.apply import picked as picked_now
from scheduler.core.decided import STEPS_MAX, BatchOut, Cycle, end, take
from scheduler.core.pick import Selector
from scheduler.core.pick.order import DEADLINE_BITS
from scheduler.core.pick.tier import first_with_floors
from scheduler.core.pick.turns import Member
from scheduler.core.state import PoolState, Ring, State, is_eligible
from scheduler.core.tenants import Family, Live, TenantQueue
from schemas.decisions import Picked, Sealed
from schemas.policy import CostModel
from schemas.reasons import Reason

#: The round of a pick that fills the rest of a batch before the one whose turn it is.
OVERTAKING = -1


def fill_batches(state: State, cycle: Cycle, pool: PoolState) -> None:
    """Fill batches for a pool's free lanes, as long as one is due."""
    lane: int | None = None
    while not cycle.is_full and _is_due(state, pool):
        lane = pool.free_lane(lane)
        if lane is None:
            return
        picked = _fill_batch(state, cycle, pool)
        if not picked:
            continue
        number = state.next_number
        take(state, cycle, Sealed(pool.name, lane, number))
        cycle.batches.append(BatchOut(pool.name, lane, number, picked))


def _is_due(state: State, pool: PoolState) -> bool:
    """Enough waits for a whole batch, or the oldest has waited long enough."""
    if pool.waiting == 0:
        return False
    if _is_full(pool):
        return True
    oldest_ms = pool.oldest_ms()
    return oldest_ms is not None and state.now_ms - oldest_ms >= pool.endpoint.batch_wait_ms


def _is_full(pool: PoolState) -> bool:
    """A whole batch waits."""
    endpoint = pool.endpoint
    return pool.inputs >= endpoint.batch_requests or pool.tokens >= endpoint.batch_tokens


def due_ms(state: State) -> int | None:
    """When the next batch or held request is due by time alone; None: nothing waits.

    Pools without a free lane don't count: a worker's record will wake the scheduler.
    """
    times = [until_ms for until_ms in state.pauses.values() if until_ms > 0]
    for pool in state.pools.values():
        if pool.waiting and pool.free_lane() is not None:
            if _is_full(pool):
                return state.now_ms
            oldest_ms = pool.oldest_ms()
            assert oldest_ms is not None, pool.name
            times.append(oldest_ms + pool.endpoint.batch_wait_ms)
    if state.held:
        times.append(state.held[0][0])
    if state.returned:
        times.append(state.now_ms)
    return min(times, default=None)


class _Room:
    """What a batch still takes."""

    __slots__ = ("inputs", "size", "tokens")

    def __init__(self, pool: PoolState) -> None:
        endpoint = pool.endpoint
        self.inputs = endpoint.batch_requests
        self.tokens = endpoint.batch_tokens
        self.size = endpoint.batch_bytes

    def fits(self, live: Live) -> bool:
        return live.inputs <= self.inputs and live.tokens <= self.tokens and live.size <= self.size

    def take(self, live: Live) -> None:
        self.inputs -= live.inputs
        self.tokens -= live.tokens
        self.size -= live.size


def _fill_batch(state: State, cycle: Cycle, pool: PoolState) -> list[Live]:
    """Pick until the batch is full, nothing is ready, or the next does not fit.

    What does not fit is the first of the next batch: nothing but this one's rest is given
    to others before it.
    """
    room = _Room(pool)
    picked: list[Live] = []
    steps = cycle.steps
    while room.inputs > 0 and len(steps) < STEPS_MAX:
        ring = _next_with_floors(pool) if pool.has_floors else _next_ring(pool)
        chosen = (ring.base.peek() or ring.burst.peek()) if ring is not None else None
        if chosen is None or ring is None:
            break
        queue: TenantQueue
        member, turn = chosen
        seat = member.account.seat
        if isinstance(member, TenantQueue):
            queue, inner_turn, inner_seat = member, 0, 0
        else:
            assert isinstance(member, Family)
            child = member.peek()
            assert child is not None, member.use.tenant
            queue, inner_turn = child
            inner_seat = queue.account.seat
        live = queue.head()
        packed = live.order
        if packed & DEADLINE_BITS != DEADLINE_BITS and _is_too_late(state, pool, live):
            end(state, cycle, live, Reason.DEADLINE)
            continue
        alone = live.past is not None and live.past.attempt  # it may have killed its worker
        if picked and (alone or not room.fits(live)):
            _overtake(state, cycle, ring, room, picked)
            break
        cost = queue.cost(live)
        steps.append(Picked(live.key, cost, turn, seat, inner_turn, inner_seat))
        picked_now(state, live, cost, turn, inner_turn)
        picked.append(live)
        room.take(live)
        cycle.body_bytes += live.size
        if alone:
            break
    return picked


def _next_ring(pool: PoolState) -> Ring | None:
    """First selector: the tier that goes next, where none has a floor."""
    for ring in pool.rings.values():
        if ring.waiting:
            return ring
    return None


def _next_with_floors(pool: PoolState) -> Ring | None:
    rings = list(pool.rings.values())
    rank = first_with_floors(
        [ring.waiting > 0 for ring in rings],
        [_head_cost(ring) if ring.waiting and ring.floor else 0 for ring in rings],
        [ring.floor for ring in rings],
        [ring.credit for ring in rings],
    )
    return None if rank is None else rings[rank]


def _head_cost(ring: Ring) -> int:
    chosen = ring.peek()
    assert chosen is not None, ring.tier
    queue = _first_child(chosen[0])
    return queue.cost(queue.head())


def _is_too_late(state: State, pool: PoolState, live: Live) -> bool:
    """Whether it can't be finished in time, by its estimate, if it is picked now."""
    deadline_ms = live.deadline_ms
    if not deadline_ms:
        return False
    endpoint = pool.endpoint
    service_ms = endpoint.service_ms + live.tokens * endpoint.token_us // 1000
    if pool.unit is CostModel.ADAPTIVE:
        service_ms = max(service_ms, live.queue.cost(live))
    return state.now_ms + service_ms > deadline_ms


def _overtake(state: State, cycle: Cycle, ring: Ring, room: _Room, picked: list[Live]) -> None:
    """Fill the rest of a batch with what fits, in the order of the ring, a few at most."""
    pool = ring.pool
    left = pool.endpoint.overtake_max
    selector = ring.base if ring.base.peek() is not None else ring.burst
    for member in selector.following(left):
        queue = _first_child(member)
        seated = queue.seated
        while left and queue.count and len(cycle.steps) < STEPS_MAX:
            live = queue.head()
            is_ready = live.attempt == 0 and not _is_too_late(state, pool, live)
            if not is_ready or not room.fits(live) or not is_eligible(queue):
                break
            if _seated(member) is not selector or queue.seated is not seated:
                break  # these picks brought it above what is guaranteed to it
            cost = queue.cost(live)
            inner = queue.seated if member is not queue else None
            if not selector.may_borrow(member, cost, pool.cost_max) or (
                inner is not None and not inner.may_borrow(queue, cost, pool.cost_max)
            ):
                break
            seat = member.account.seat
            inner_seat = 0 if member is queue else queue.account.seat
            take(state, cycle, Picked(live.key, cost, OVERTAKING, seat, 0, inner_seat))
            picked.append(live)
            room.take(live)
            cycle.body_bytes += live.size
            left -= 1


def _seated(member: Member) -> Selector | None:
    assert isinstance(member, TenantQueue | Family)
    return member.seated


def _first_child(member: Member) -> TenantQueue:
    """The queue that a member of a ring stands for: itself, or the child that is next."""
    if isinstance(member, TenantQueue):
        return member
    assert isinstance(member, Family)
    chosen = member.peek()
    assert chosen is not None, member.use.tenant
    return chosen[0]
