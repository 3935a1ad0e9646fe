"""One cycle's decisions: read inputs, choose, and apply each choice at once.

`run_cycle(state, inputs, now_ms)` is the scheduler as a function. Inputs are taken in one
fixed order (policy, control, workers, timers, requests), then batches are filled. Every
step goes through `apply` before the next is chosen, and into the cycle's list, so that the
list replayed on the state before gives the state after.

What belongs here: judgement of arrivals, timers, hand-backs, and the filling of batches.
What does not: how a tier, a tenant or a request is chosen (scheduler.core.pick), how state
changes (scheduler.core.apply), and anything of the log but positions.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from heapq import heappop

from scheduler.core import apply as applied
from scheduler.core.apply import Arrival, apply
from scheduler.core.pick.tier import first_with_floors
from scheduler.core.queues import why_not
from scheduler.core.state import UNKNOWN_MAX, Part, PoolState, Ring, State, is_eligible
from scheduler.core.tenants import Family, Live, Status, TenantQueue
from schemas.policy import CostModel, PolicyError, decode_policy
from schemas.policy_check import check
from schemas.reasons import Reason
from schemas.records import (
    VERSION,
    Arrived,
    Cancel,
    ControlRecord,
    ControlSaid,
    Ended,
    Picked,
    PolicySet,
    Read,
    Released,
    Requeued,
    Sealed,
    Step,
    TopicMet,
    Unpaused,
    WorkerRecord,
    WorkerSaid,
)

#: Steps of one cycle beside those that its inputs are: bounds the decision record (at most
#: about 33 bytes a step, and half a record is left for what is recorded by value).
STEPS_MAX = 12_000
#: Bytes of bodies in one cycle's batches: bounds the transaction.
BODY_BYTES_MAX = 32_000_000
#: Bytes of a policy: it is recorded by value.
POLICY_BYTES_MAX = 400_000
#: The round of a pick that fills the rest of a batch before the one whose turn it is.
OVERTAKING = -1
#: First pause before another attempt after a worker died on a request; doubles each time.
BACKOFF_MS = 100
#: The longest.
BACKOFF_MS_MAX = 30_000


@dataclass(slots=True)
class RequestRange:
    """Requests read from one partition: [start, stop), the arrivals in offset order."""

    topic: str
    partition: int
    tier: str
    start: int
    stop: int
    arrivals: list[Arrival]


@dataclass(slots=True)
class Inputs:
    """What the cycle read. Lists are in the order of their partitions and offsets."""

    policies: list[bytes] = field(default_factory=list)
    control: list[ControlRecord] = field(default_factory=list)
    workers: list[tuple[str, int, WorkerRecord]] = field(default_factory=list)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    requests: list[RequestRange] = field(default_factory=list)
    topics: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class BatchOut:
    """A batch to send: its requests in order."""

    pool: str
    lane: int
    number: int
    requests: list[Live]


@dataclass(slots=True)
class Cycle:
    """What a cycle decided (`steps`), and what follows for other topics."""

    steps: list[Step] = field(default_factory=list)
    batches: list[BatchOut] = field(default_factory=list)
    ended: list[tuple[Live, str]] = field(default_factory=list)
    refused: list[tuple[str, int, Arrival, str]] = field(default_factory=list)
    cancels: list[tuple[str, int, int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    body_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """The decision record or the transaction is as large as it may be."""
        return len(self.steps) >= STEPS_MAX or self.body_bytes >= BODY_BYTES_MAX


def run_cycle(state: State, inputs: Inputs, now_ms: int) -> Cycle:
    """Take the inputs in, then fill batches; `state` is changed as the steps say.

    Args:
        state: the shard's memory, as of its last decision.
        inputs: everything that was read since.
        now_ms: the clock; never before `state.now_ms`.

    Returns:
        The steps and their consequences; nothing of it is published here. When the
        publication fails, the state must be dropped.

    Raises:
        StateMismatchError: a worker's record does not fit what was dispatched.
    """
    before_ms = state.now_ms
    state.now_ms = max(before_ms, now_ms)
    cycle = Cycle()
    for topic, identity in inputs.topics:
        _take(state, cycle, TopicMet(topic, identity))
    for document in inputs.policies:
        _policy(state, cycle, document)
    for control in inputs.control:
        _control(state, cycle, control)
    for pool, lane, record in inputs.workers:
        _take(state, cycle, WorkerSaid(pool, lane, record))
    for topic, partition, position in inputs.reads:
        _take(state, cycle, Read(topic, partition, position))
    _sweep(state, cycle)
    _timers(state, cycle)
    for requests in inputs.requests:
        _requests(state, cycle, requests)
    for pool_state in state.pools.values():
        _fill_batches(state, cycle, pool_state)
    if not cycle.steps:
        state.now_ms = before_ms
    return cycle


def _take(state: State, cycle: Cycle, step: Step) -> None:
    apply(state, step)
    cycle.steps.append(step)


def _end(state: State, cycle: Cycle, live: Live, reason: Reason) -> None:
    _take(state, cycle, Ended(live.key, reason))
    cycle.ended.append((live, reason))


def _policy(state: State, cycle: Cycle, document: bytes) -> None:
    faults = _policy_faults(state, document)
    if faults:
        what = "; ".join(faults)
        cycle.faults.append(f"a published policy is not applied, the last one stays: {what}")
    else:
        _take(state, cycle, PolicySet(document))


def _policy_faults(state: State, document: bytes) -> list[str]:
    """What keeps a published policy from being applied."""
    if len(document) > POLICY_BYTES_MAX:
        return [f"it has {len(document)} bytes, {POLICY_BYTES_MAX} are read"]
    try:
        policy = decode_policy(document)
    except PolicyError as error:
        return error.faults
    faults = check(policy)
    if state.policy is not None and policy.topology != state.policy.topology:
        faults.append("the topology is fixed by a deployment's first policy")
    for pool in policy.pools:
        known = state.pools.get(pool.name)
        if known is not None and pool.lanes < len(known.lanes):
            faults.append(f"pool {pool.name!r} has {len(known.lanes)} lanes, it can't have fewer")
    return faults


def _control(state: State, cycle: Cycle, record: ControlRecord) -> None:
    _take(state, cycle, ControlSaid(record))
    if not isinstance(record, Cancel):
        return
    live = applied.find_live(state, record.topic, record.partition, record.offset)
    if live is None:
        return
    if live.status is not Status.DISPATCHED:
        _end(state, cycle, live, Reason.CANCELLED)
    else:
        cycle.cancels.append((*_flight_of(state, live), live.key))


def _flight_of(state: State, live: Live) -> tuple[str, int, int]:
    """Pool, lane and number of the batch that a dispatched request is in: few are, so look."""
    ring = live.queue.ring
    here = [ring.pool] if ring is not None else []
    for pool in [*here, *state.pools.values()]:
        for lane, held in enumerate(pool.lanes):
            for number, flight in held.flights.items():
                if any(key == live.key for key, _ in flight.charged):
                    return pool.name, lane, number
    raise AssertionError(live.id)


def _sweep(state: State, cycle: Cycle) -> None:
    """Decide about what is in nobody's hands: handed back, or not wanted by the policy."""
    for key in list(state.returned):
        if cycle.is_full:
            return
        live = state.find(key)
        assert live is not None, key
        _returned(state, cycle, live)


def _returned(state: State, cycle: Cycle, live: Live) -> None:
    """End it, or queue it again, after a pause if a worker died on it."""
    reason = why_not(state, live.tenant, live.endpoint, live.tier)
    if live.cancelled:
        reason = Reason.CANCELLED
    elif reason is None and live.attempt >= state.endpoints[live.endpoint].attempts_max:
        reason = Reason.ATTEMPTS
    if reason is not None:
        _end(state, cycle, live, reason)
        return
    until_ms = 0
    if live.attempt:
        until_ms = state.now_ms + min(BACKOFF_MS << min(live.attempt - 1, 20), BACKOFF_MS_MAX)
    _take(state, cycle, Requeued(live.key, live.attempt, until_ms))


def _timers(state: State, cycle: Cycle) -> None:
    seconds = state.seconds
    while seconds and seconds[0] * 1000 <= state.now_ms:
        bucket = state.timers[seconds[0]]
        bucket.sort(key=_by_key, reverse=True)  # the same order whatever came back late
        while bucket:
            if cycle.is_full:
                return
            live = bucket.pop()
            state.timed -= 1
            # in a worker's hands: watched again when it comes back
            if live.status in (Status.WAITING, Status.HELD):
                _end(state, cycle, live, _overdue(state, live))
        del state.timers[heappop(seconds)]
    held = state.held
    while held and held[0][0] <= state.now_ms and not cycle.is_full:
        held_one = state.find(heappop(held)[1])
        if held_one is None or held_one.status is not Status.HELD:
            continue
        if held_one.not_before_ms <= state.now_ms:
            _take(state, cycle, Released(held_one.key))
    for (tenant, endpoint), until_ms in list(state.pauses.items()):
        if 0 < until_ms <= state.now_ms:
            _take(state, cycle, Unpaused(tenant, endpoint))


def _by_key(live: Live) -> int:
    return live.key


def _overdue(state: State, live: Live) -> Reason:
    """Why a request ends that waited as long as it may."""
    if live.queue.ring is None:
        reason = why_not(state, live.tenant, live.endpoint, live.tier)
        return reason or Reason.UNKNOWN_TENANT
    is_late = live.deadline_ms == state.expires_ms(live)
    return Reason.DEADLINE if is_late else Reason.EXPIRED


# --- requests


def _requests(state: State, cycle: Cycle, read: RequestRange) -> None:
    index = state.part((read.topic, read.partition), read.tier, read.start)
    part = state.parts[index]
    pending = state.cancels.get((read.topic, read.partition), {})
    refused: list[tuple[int, str]] = []
    twins: list[int] = []
    for arrival in read.arrivals:
        queue = None
        meta = arrival.meta
        if meta is not None:
            known = part.known.get(meta.endpoint)
            queue = known.get(meta.tenant) if known else None
        reason = _judge(state, part, pending, arrival, queue)
        if reason is None:
            assert meta is not None
            queue = queue or applied.find_queue(state, part, meta)
            applied.admit(state, index, arrival, queue)
            continue
        applied.refuse(state, index, arrival, reason)
        refused.append((arrival.offset, reason))
        if reason != Reason.DUPLICATE:
            cycle.refused.append((read.topic, read.partition, arrival, reason))
        elif arrival.offset in pending:
            twins.append(arrival.offset)
    applied.move_on(state, index, read.stop)
    cycle.steps.append(
        Arrived(read.topic, read.partition, read.tier, read.start, read.stop, tuple(refused))
    )
    for offset in twins:  # cancelled before it came, and it is a copy of one that is here
        _control(state, cycle, Cancel(VERSION, read.topic, read.partition, offset))


def _judge(  # noqa: PLR0911 - one return a reason
    state: State,
    part: Part,
    pending: Container[int],
    arrival: Arrival,
    queue: TenantQueue | None,
) -> str | None:
    """Why a request is not admitted; None: it is."""
    meta = arrival.meta
    if meta is None:
        return arrival.reason
    if meta.id in state.ids or meta.id in state.recent:
        return Reason.DUPLICATE
    if queue is None:
        reason = why_not(state, meta.tenant, meta.endpoint, part.tier)
        if reason in (Reason.UNKNOWN_TENANT, Reason.UNKNOWN_ENDPOINT):
            if state.unknown_count >= UNKNOWN_MAX:
                return reason
            return Reason.CANCELLED if arrival.offset in pending else None
        if reason is not None:
            return reason
        queue = applied.find_queue(state, part, meta)
    ring, use = queue.ring, queue.use
    assert ring is not None
    if arrival.size > ring.pool.endpoint.batch_bytes:
        return Reason.NEVER_FITS
    if arrival.offset in pending:
        return Reason.CANCELLED
    if use.waiting >= use.waiting_most:
        return Reason.WAITING_LIMIT
    if use.parent is not None and use.parent.waiting >= use.parent.waiting_most:
        return Reason.WAITING_LIMIT
    return None


# --- batches


def _fill_batches(state: State, cycle: Cycle, pool: PoolState) -> None:
    while not cycle.is_full and _is_due(state, pool):
        lane = pool.free_lane()
        if lane is None:
            return
        picked = _fill_batch(state, cycle, pool)
        if not picked:
            continue
        number = state.next_number
        _take(state, cycle, Sealed(pool.name, lane, number))
        cycle.batches.append(BatchOut(pool.name, lane, number, picked))


def _is_due(state: State, pool: PoolState) -> bool:
    """Enough waits for a whole batch, or the oldest has waited long enough."""
    if pool.waiting == 0:
        return False
    endpoint = pool.endpoint
    if pool.inputs >= endpoint.batch_requests or pool.tokens >= endpoint.batch_tokens:
        return True
    oldest_ms = pool.oldest_ms()
    return oldest_ms is not None and state.now_ms - oldest_ms >= endpoint.batch_wait_ms


def due_ms(state: State) -> int | None:
    """When the next batch or held request is due by time alone; None: nothing waits.

    Pools without a free lane don't count: a worker's record will wake the scheduler.
    """
    times = [until_ms for until_ms in state.pauses.values() if until_ms]
    for pool in state.pools.values():
        if pool.waiting and pool.free_lane() is not None:
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
    while room.inputs > 0 and len(cycle.steps) < STEPS_MAX:
        ring = _next_ring(pool)
        chosen = ring.peek() if ring is not None else None
        if chosen is None or ring is None:
            break
        member, turn = chosen
        seat = member.account.seat
        if isinstance(member, TenantQueue):
            queue, inner_turn, inner_seat = member, 0, 0
        else:
            inner = member.peek()
            assert inner is not None, member.use.tenant
            queue, inner_turn = inner
            inner_seat = queue.account.seat
        live = queue.head()
        if _is_too_late(state, pool, live):
            _end(state, cycle, live, Reason.DEADLINE)
            continue
        alone = live.past is not None and live.past.attempt  # it may have killed its worker
        if picked and (alone or not room.fits(live)):
            _overtake(state, cycle, ring, room, picked)
            break
        step = Picked(live.key, queue.cost(live), turn, seat, inner_turn, inner_seat)
        applied.picked(state, step, live)
        cycle.steps.append(step)
        picked.append(live)
        room.take(live)
        cycle.body_bytes += live.size
        if alone:
            break
    return picked


def _next_ring(pool: PoolState) -> Ring | None:
    """First selector: the tier that goes next."""
    if pool.has_floors:
        return _next_with_floors(pool)
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
        while left and queue.count and len(cycle.steps) < STEPS_MAX:
            live = queue.head()
            is_ready = live.attempt == 0 and not _is_too_late(state, pool, live)
            if not is_ready or not room.fits(live) or not is_eligible(queue):
                break
            seat = member.account.seat
            inner_seat = 0 if member is queue else queue.account.seat
            cost = queue.cost(live)
            _take(state, cycle, Picked(live.key, cost, OVERTAKING, seat, 0, inner_seat))
            picked.append(live)
            room.take(live)
            cycle.body_bytes += live.size
            left -= 1


def _first_child(member: TenantQueue | Family) -> TenantQueue:
    """The queue that a member of a ring stands for: itself, or the child that is next."""
    if isinstance(member, TenantQueue):
        return member
    chosen = member.peek()
    assert chosen is not None, member.use.tenant
    return chosen[0]
