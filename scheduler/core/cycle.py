"""One cycle's decisions: read inputs, choose, and apply each choice at once.

`run_cycle(state, inputs, now_ms)` is the scheduler as a function. Inputs are taken in one
fixed order (policy, control, workers, timers, requests), then batches are filled. Every
step goes through `apply` before the next is chosen, and into the cycle's list, so that the
list replayed on the state before gives the state after.

What belongs here: judgement of arrivals, timers, hand-backs, and the filling of batches.
What does not: how a tier, a tenant or a request is chosen (scheduler.core.pick), how state
changes (scheduler.core.apply), and anything of the log but positions.
"""

from dataclasses import dataclass, field
from heapq import heappop

from scheduler.core import apply as applied
from scheduler.core.apply import Arrival, apply
from scheduler.core.pick.tier import first_ready
from scheduler.core.state import Live, PoolState, State, Status, TenantQueue
from schemas.policy import PolicyError, decode_policy
from schemas.reasons import Reason
from schemas.records import (
    Arrived,
    ControlRecord,
    ControlSaid,
    Ended,
    HandedBack,
    Picked,
    PolicySet,
    Read,
    Released,
    Requeued,
    Sealed,
    Step,
    TopicMet,
    WorkerRecord,
    WorkerSaid,
)

#: Requests ended by timers in one cycle; the rest wait for the next.
EXPIRED_MAX = 10_000
#: Requests picked in one cycle: bounds the transaction and the decision record.
PICKS_MAX = 4_096
#: First pause before another attempt after a worker died on a request; doubles each time.
BACKOFF_MS = 100


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
        _worker(state, cycle, WorkerSaid(pool, lane, record))
    for topic, partition, position in inputs.reads:
        _take(state, cycle, Read(topic, partition, position))
    _timers(state, cycle)
    for requests in inputs.requests:
        _requests(state, cycle, requests)
    for name, filled in state.pools.items():
        _fill_batches(state, cycle, name, filled)
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
    try:
        decode_policy(document)
    except PolicyError as error:
        cycle.faults.append(f"a published policy is not applied, the last one stays: {error}")
        return
    _take(state, cycle, PolicySet(document))
    tiers = {tier.name for tier in state.policy.tiers} if state.policy else set()
    for live in list(state.live.values()):
        if live.status not in (Status.WAITING, Status.HELD):
            continue
        if live.tenant not in state.weights:
            _end(state, cycle, live, Reason.UNKNOWN_TENANT)
        elif applied.queue_of(state, live) is None:
            _end(state, cycle, live, Reason.UNKNOWN_ENDPOINT)
        elif live.tier not in tiers:
            _end(state, cycle, live, Reason.TIER_NOT_ALLOWED)


def _control(state: State, cycle: Cycle, record: ControlRecord) -> None:
    _take(state, cycle, ControlSaid(record))
    live = applied.find_live(state, record.topic, record.partition, record.offset)
    if live is None:
        return
    if live.status in (Status.WAITING, Status.HELD):
        _end(state, cycle, live, Reason.CANCELLED)
    elif live.status is Status.DISPATCHED:
        for pool, lane, number, flight in state.in_flight():
            if any(key == live.key for key, _ in flight.charged):
                cycle.cancels.append((pool, lane, number, live.key))


def _worker(state: State, cycle: Cycle, step: WorkerSaid) -> None:
    record = step.record
    returned: list[int] = []
    if isinstance(record, HandedBack):
        pool = state.pools.get(step.pool)
        lanes = pool.lanes if pool else []
        flight = lanes[step.lane].flights.get(record.number) if step.lane < len(lanes) else None
        returned = [key for key, _ in flight.charged] if flight else []
    _take(state, cycle, step)
    for key in returned:
        _returned(state, cycle, state.live[key])


def _returned(state: State, cycle: Cycle, live: Live) -> None:
    """A handed-back request: end it, or queue it again, after a pause if it was started."""
    endpoint = state.endpoints.get(live.endpoint)
    if live.cancelled:
        _end(state, cycle, live, Reason.CANCELLED)
    elif endpoint is None or applied.queue_of(state, live) is None:
        _end(state, cycle, live, Reason.UNKNOWN_ENDPOINT)
    elif live.tenant not in state.weights:
        _end(state, cycle, live, Reason.UNKNOWN_TENANT)
    elif live.attempt >= endpoint.attempts_max:
        _end(state, cycle, live, Reason.ATTEMPTS)
    else:
        pause_ms = BACKOFF_MS << (live.attempt - 1) if live.attempt else 0
        until_ms = state.now_ms + pause_ms if pause_ms else 0
        _take(state, cycle, Requeued(live.key, live.attempt, until_ms))


def _timers(state: State, cycle: Cycle) -> None:
    ended = 0
    for second in sorted(second for second in state.timers if second * 1000 <= state.now_ms):
        keys = state.timers.pop(second)
        while keys:
            if ended == EXPIRED_MAX:
                state.timers[second] = keys
                return
            live = state.live.get(keys.pop())
            if live is None or live.status not in (Status.WAITING, Status.HELD):
                continue
            if live.expires_ms <= state.now_ms:
                is_late = live.deadline_ms == live.expires_ms
                _end(state, cycle, live, Reason.DEADLINE if is_late else Reason.EXPIRED)
                ended += 1
    held = state.held
    while held and held[0][0] <= state.now_ms:
        live = state.live.get(heappop(held)[1])
        if live is not None and live.status is Status.HELD and live.not_before_ms <= state.now_ms:
            _take(state, cycle, Released(live.key))


# --- requests


def _requests(state: State, cycle: Cycle, read: RequestRange) -> None:
    index = state.part((read.topic, read.partition), read.tier, read.start)
    part = state.parts[index]
    refused: list[tuple[int, str]] = []
    for arrival in read.arrivals:
        reason = _judge(state, part.partition, read.tier, arrival)
        if reason is None:
            applied.admit(state, index, arrival)
            continue
        applied.refuse(state, index, arrival, reason)
        refused.append((arrival.offset, reason))
        if reason != Reason.DUPLICATE:
            cycle.refused.append((read.topic, read.partition, arrival, reason))
    part.position = read.stop
    cycle.steps.append(
        Arrived(read.topic, read.partition, read.tier, read.start, read.stop, tuple(refused))
    )


def _judge(state: State, partition: tuple[str, int], tier: str, arrival: Arrival) -> str | None:
    """Why a request is not admitted; None: it is."""
    meta = arrival.meta
    if meta is None:
        return arrival.reason
    if meta.id in state.ids or meta.id in state.recent:
        return Reason.DUPLICATE
    if meta.tenant not in state.weights:
        return Reason.UNKNOWN_TENANT
    endpoint = state.endpoints.get(meta.endpoint)
    pool = state.pools.get(endpoint.pool) if endpoint else None
    if pool is None:
        return Reason.UNKNOWN_ENDPOINT
    if tier not in pool.rings:
        return Reason.TIER_NOT_ALLOWED
    if arrival.size > pool.endpoint.batch_bytes:
        return Reason.NEVER_FITS
    if state.cancels and arrival.offset in state.cancels.get(partition, ()):
        return Reason.CANCELLED
    return None


# --- batches


def _fill_batches(state: State, cycle: Cycle, name: str, pool: PoolState) -> None:
    picks = 0
    while picks < PICKS_MAX and _is_due(state, pool):
        lane = pool.free_lane()
        if lane is None:
            return
        picked = _fill_batch(state, cycle, pool)
        if not picked:
            continue
        number = state.next_number
        _take(state, cycle, Sealed(name, lane, number))
        cycle.batches.append(BatchOut(name, lane, number, picked))
        picks += len(picked)


def _is_due(state: State, pool: PoolState) -> bool:
    """Enough waits for a whole batch, or the oldest has waited long enough."""
    if pool.waiting == 0:
        return False
    endpoint = pool.endpoint
    if pool.waiting >= endpoint.batch_requests or pool.tokens >= endpoint.batch_tokens:
        return True
    oldest_ms = pool.oldest_ms()
    return oldest_ms is not None and state.now_ms - oldest_ms >= endpoint.batch_wait_ms


def due_ms(state: State) -> int | None:
    """When the next batch or held request is due by time alone; None: nothing waits.

    Pools without a free lane don't count: a worker's record will wake the scheduler.
    """
    times = []
    for pool in state.pools.values():
        oldest_ms = pool.oldest_ms() if pool.waiting else None
        if oldest_ms is not None and pool.free_lane() is not None:
            times.append(oldest_ms + pool.endpoint.batch_wait_ms)
    if state.held:
        times.append(state.held[0][0])
    return min(times, default=None)


def _fill_batch(state: State, cycle: Cycle, pool: PoolState) -> list[Live]:
    """Pick until the batch is full, nothing is ready, or the next does not fit."""
    endpoint = pool.endpoint
    rings = list(pool.rings.values())
    picked: list[Live] = []
    tokens = size = 0
    while len(picked) < endpoint.batch_requests:
        rank = first_ready(ring.waiting for ring in rings)
        if rank is None:
            break
        chosen = rings[rank].selector.peek()
        assert chosen is not None, rings[rank].tier
        queue: TenantQueue = chosen[0]
        live = queue.head()
        if live.deadline_ms and state.now_ms + endpoint.service_ms > live.deadline_ms:
            _end(state, cycle, live, Reason.DEADLINE)
            continue
        fits = (
            tokens + live.tokens <= endpoint.batch_tokens
            and size + live.size <= endpoint.batch_bytes
            and not live.attempt  # a request that may have killed its worker runs alone
        )
        if picked and not fits:
            break
        _take(state, cycle, Picked(live.key, live.cost, chosen[1], queue.account.seat))
        picked.append(live)
        tokens += live.tokens
        size += live.size
        if live.attempt:
            break
    return picked
