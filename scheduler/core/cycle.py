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
from scheduler.core.pick.tier import first_ready
from scheduler.core.queues import why_not
from scheduler.core.state import Live, PoolState, State, Status, TenantQueue
from schemas.policy import PolicyError, decode_policy
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
    live = applied.find_live(state, record.topic, record.partition, record.offset)
    if live is None:
        return
    if live.status is not Status.DISPATCHED:
        _end(state, cycle, live, Reason.CANCELLED)
    elif live.batch is not None:
        cycle.cancels.append((*live.batch, live.key))


def _sweep(state: State, cycle: Cycle) -> None:
    """Decide about what is in nobody's hands: handed back, or not wanted by the policy."""
    for key in list(state.returned):
        if cycle.is_full:
            return
        _returned(state, cycle, state.live[key])


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
        for key in list(bucket):
            if cycle.is_full:
                return
            live = state.live[key]
            if live.status not in (Status.WAITING, Status.HELD):
                del bucket[key]  # in a worker's hands: watched again when it comes back
            else:
                is_late = live.deadline_ms == live.expires_ms
                _end(state, cycle, live, Reason.DEADLINE if is_late else Reason.EXPIRED)
        del state.timers[heappop(seconds)]
    held = state.held
    while held and held[0][0] <= state.now_ms and not cycle.is_full:
        live_or_not = state.live.get(heappop(held)[1])
        if live_or_not is None or live_or_not.status is not Status.HELD:
            continue
        if live_or_not.not_before_ms <= state.now_ms:
            _take(state, cycle, Released(live_or_not.key))


# --- requests


def _requests(state: State, cycle: Cycle, read: RequestRange) -> None:
    index = state.part((read.topic, read.partition), read.tier, read.start)
    pending = state.cancels.get((read.topic, read.partition), {})
    refused: list[tuple[int, str]] = []
    twins: list[int] = []
    for arrival in read.arrivals:
        reason = _judge(state, pending, read.tier, arrival)
        if reason is None:
            applied.admit(state, index, arrival)
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


def _judge(state: State, pending: Container[int], tier: str, arrival: Arrival) -> str | None:
    """Why a request is not admitted; None: it is."""
    meta = arrival.meta
    if meta is None:
        return arrival.reason
    if meta.id in state.ids or meta.id in state.recent:
        return Reason.DUPLICATE
    reason = why_not(state, meta.tenant, meta.endpoint, tier)
    if reason is not None:
        return reason
    if arrival.size > state.endpoints[meta.endpoint].batch_bytes:
        return Reason.NEVER_FITS
    if arrival.offset in pending:
        return Reason.CANCELLED
    return None


# --- batches


def _fill_batches(state: State, cycle: Cycle, name: str, pool: PoolState) -> None:
    while not cycle.is_full and _is_due(state, pool):
        lane = pool.free_lane()
        if lane is None:
            return
        picked = _fill_batch(state, cycle, pool)
        if not picked:
            continue
        number = state.next_number
        _take(state, cycle, Sealed(name, lane, number))
        cycle.batches.append(BatchOut(name, lane, number, picked))


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
    times = []
    for pool in state.pools.values():
        oldest_ms = pool.oldest_ms() if pool.waiting else None
        if oldest_ms is not None and pool.free_lane() is not None:
            times.append(oldest_ms + pool.endpoint.batch_wait_ms)
    if state.held:
        times.append(state.held[0][0])
    if state.returned:
        times.append(state.now_ms)
    return min(times, default=None)


def _fill_batch(state: State, cycle: Cycle, pool: PoolState) -> list[Live]:
    """Pick until the batch is full, nothing is ready, or the next does not fit."""
    endpoint = pool.endpoint
    rings = list(pool.rings.values())
    picked: list[Live] = []
    inputs = tokens = size = 0
    while inputs < endpoint.batch_requests and len(cycle.steps) < STEPS_MAX:
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
            inputs + live.inputs <= endpoint.batch_requests
            and tokens + live.tokens <= endpoint.batch_tokens
            and size + live.size <= endpoint.batch_bytes
            and not live.attempt  # a request that may have killed its worker runs alone
        )
        if picked and not fits:
            break
        _take(state, cycle, Picked(live.key, live.cost, chosen[1], queue.account.seat))
        picked.append(live)
        inputs += live.inputs
        tokens += live.tokens
        size += live.size
        cycle.body_bytes += live.size
        if live.attempt:
            break
    return picked
