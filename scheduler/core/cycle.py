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

from scheduler.core.apply import find_live
from scheduler.core.arrivals import Arrival, admit, find_queue, move_on, refuse
from scheduler.core.batches import fill_batches
from scheduler.core.decided import Cycle, end, take
from scheduler.core.queues import why_not
from scheduler.core.seats import may_wait
from scheduler.core.state import UNKNOWN_MAX, Part, State
from scheduler.core.tenants import Live, Status, TenantQueue
from schemas.decisions import (
    Arrived,
    ControlSaid,
    PolicySet,
    Read,
    Released,
    Requeued,
    TopicMet,
    Unpaused,
    WorkerSaid,
)
from schemas.policy import PolicyError, decode_policy
from schemas.policy_check import POLICY_BYTES_MAX, check
from schemas.reasons import Reason
from schemas.records import VERSION, Cancel, ControlRecord, Request, WorkerRecord

#: Steps of one cycle that end, or queue again, what nobody has in hands: picks need room too.
ENDS_MAX = 8_000
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
        take(state, cycle, TopicMet(topic, identity))
    for document in inputs.policies:
        _policy(state, cycle, document)
    for control in inputs.control:
        _control(state, cycle, control)
    for pool, lane, record in inputs.workers:
        take(state, cycle, WorkerSaid(pool, lane, record))
    for topic, partition, position in inputs.reads:
        take(state, cycle, Read(topic, partition, position))
    _sweep(state, cycle)
    _timers(state, cycle)
    for requests in inputs.requests:
        _requests(state, cycle, requests)
    for pool_state in state.pools.values():
        fill_batches(state, cycle, pool_state)
    if not cycle.steps:
        state.now_ms = before_ms
    return cycle


def _policy(state: State, cycle: Cycle, document: bytes) -> None:
    faults = _policy_faults(state, document)
    if faults:
        what = "; ".join(faults)
        cycle.faults.append(f"a published policy is not applied, the last one stays: {what}")
    else:
        take(state, cycle, PolicySet(document))


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
    take(state, cycle, ControlSaid(record))
    if not isinstance(record, Cancel):
        return
    live = find_live(state, record.topic, record.partition, record.offset)
    if live is None:
        return
    if live.status != Status.DISPATCHED:
        end(state, cycle, live, Reason.CANCELLED)
    else:
        cycle.cancels.append((*_flight_of(state, live), live.key))


def _flight_of(state: State, live: Live) -> tuple[str, int, int]:
    """Pool, lane and number of the batch that a dispatched request is in: few are, so look."""
    ring = live.queue.ring
    here = [ring.pool] if ring is not None else []
    for pool in [*here, *state.pools.values()]:
        for lane, held in enumerate(pool.lanes):
            for number, flight in held.flights.items():
                if any(other is live for other in flight.lives):
                    return pool.name, lane, number
    raise AssertionError(live.id)


def _sweep(state: State, cycle: Cycle) -> None:
    """Decide about what is in nobody's hands: handed back, or not wanted by the policy."""
    for key in sorted(state.returned):
        if len(cycle.steps) >= ENDS_MAX:
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
        end(state, cycle, live, reason)
        return
    until_ms = 0
    if live.attempt:
        until_ms = state.now_ms + min(BACKOFF_MS << min(live.attempt - 1, 20), BACKOFF_MS_MAX)
    take(state, cycle, Requeued(live.key, live.attempt, until_ms))


def _timers(state: State, cycle: Cycle) -> None:
    seconds = state.seconds
    while seconds and seconds[0] * 1000 <= state.now_ms:
        bucket = state.timers[seconds[0]]
        bucket.sort(key=_by_key, reverse=True)  # the same order whatever came back late
        while bucket:
            if len(cycle.steps) >= ENDS_MAX:
                return
            live = bucket.pop()
            state.timed -= 1
            # in a worker's hands: watched again when it comes back
            if live.status in (Status.WAITING, Status.HELD):
                end(state, cycle, live, _overdue(state, live))
        del state.timers[heappop(seconds)]
    held = state.held
    while held and held[0][0] <= state.now_ms and not cycle.is_full:
        held_one = state.find(heappop(held)[1])
        if held_one is None or held_one.status != Status.HELD:
            continue
        if held_one.not_before_ms <= state.now_ms:
            take(state, cycle, Released(held_one.key))
    for (tenant, endpoint), until_ms in list(state.pauses.items()):
        if until_ms and until_ms <= state.now_ms:
            take(state, cycle, Unpaused(tenant, endpoint))


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
        offset, at_ms, size, meta, reason, _ = arrival
        if meta is not None:
            known = part.known.get(meta.endpoint)
            queue = known.get(meta.tenant) if known else None
            why = _judge(state, part, offset in pending, at_ms, size, meta, queue)
            if why is None:
                admit(state, index, arrival, queue or find_queue(state, part, meta))
                continue
            reason = why
        refuse(state, index, arrival, reason)
        refused.append((offset, reason))
        if reason != Reason.DUPLICATE:
            cycle.refused.append((read.topic, read.partition, arrival, reason))
        elif offset in pending:
            twins.append(offset)
    move_on(state, index, read.stop)
    cycle.steps.append(
        Arrived(read.topic, read.partition, read.tier, read.start, read.stop, tuple(refused))
    )
    for offset in twins:  # cancelled before it came, and it is a copy of one that is here
        _control(state, cycle, Cancel(VERSION, read.topic, read.partition, offset))


def _judge(  # noqa: C901, PLR0911, PLR0912 - one return a reason
    state: State,
    part: Part,
    is_cancelled: bool,
    at_ms: int,
    size: int,
    meta: Request,
    queue: TenantQueue | None,
) -> str | None:
    """Why a request that came at `at_ms` is not admitted; None: it is."""
    request_id = meta.id
    if request_id in state.ids or request_id in state.recent.known:
        return Reason.DUPLICATE
    if queue is None:
        reason = why_not(state, meta.tenant, meta.endpoint, part.tier)
        if reason in (Reason.UNKNOWN_TENANT, Reason.UNKNOWN_ENDPOINT):
            if state.unknown_count >= UNKNOWN_MAX:
                return reason
            return Reason.CANCELLED if is_cancelled else None
        if reason is not None:
            return reason
        endpoint = state.endpoints[meta.endpoint]
        bytes_max, wait_ms_max = endpoint.batch_bytes, endpoint.wait_ms_max
    else:
        assert queue.ring is not None
        pool = queue.ring.pool
        bytes_max, wait_ms_max = pool.bytes_max, pool.wait_ms_max
    if size > bytes_max:
        return Reason.NEVER_FITS
    if state.now_ms >= at_ms + wait_ms_max:
        return Reason.EXPIRED
    if 0 < meta.deadline_ms <= state.now_ms:
        return Reason.DEADLINE
    if is_cancelled:
        return Reason.CANCELLED
    if queue is None:
        return None if may_wait(state, meta.tenant, meta.endpoint) else Reason.WAITING_LIMIT
    use = queue.use
    if use.waiting >= use.waiting_most:
        return Reason.WAITING_LIMIT
    if use.parent is not None and use.parent.waiting >= use.parent.waiting_most:
        return Reason.WAITING_LIMIT
    return None
