"""The only code that changes State: one function per step, live and in recovery alike.

`apply(state, step)` takes a step as it stands in the decisions log. It decides nothing and
calls no selector's choice: what was chosen is in the step. It checks that the step fits
the state; a step that doesn't is a `StateMismatchError` that tells the story, because going
on would mean a lost or a doubled request.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.core.pick.order import order
from scheduler.core.pick.tier import credits_after
from scheduler.core.queues import (
    close,
    dequeue,
    enqueue,
    forget,
    hold,
    land,
    learn,
    limit,
    pick,
    queue_of,
    remember,
    reseat_tenant,
    set_aside,
    settle,
    true_cost,
    unhold,
)
from scheduler.core.repolicy import set_policy
from scheduler.core.state import (
    CANCELS_MAX,
    OFFSET_BITS,
    RECENT_MAX,
    Flight,
    Lane,
    Part,
    Ring,
    State,
    estimate,
)
from scheduler.core.tenants import Live, Status, TenantQueue
from schemas.policy import CostModel
from schemas.policy_check import INPUTS_MAX
from schemas.reasons import Reason
from schemas.records import (
    Arrived,
    Cancel,
    ControlRecord,
    ControlSaid,
    End,
    Ended,
    Finished,
    HandedBack,
    Outcome,
    Pause,
    Picked,
    PolicySet,
    Read,
    Released,
    Request,
    Requeued,
    Resume,
    Sealed,
    Seen,
    Started,
    Step,
    TopicMet,
    Unpaused,
    WorkerSaid,
    pack_key,
    unpack_key,
)

#: Pauses that are remembered; more are not made.
PAUSES_MAX = 100_000


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


def apply(  # noqa: C901 - one case a step
    state: State, step: Step, arrivals: Sequence[Arrival] = ()
) -> None:
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
            unhold(state, live)
            enqueue(state, live)
        case ControlSaid():
            _control(state, step.record)
        case Unpaused():
            _pause(state, step.tenant, step.endpoint, None)
        case TopicMet():
            state.topics[step.topic] = step.id
        case PolicySet():
            set_policy(state, step.document)


def _live(state: State, step: Step, key: int, *statuses: Status) -> Live:
    live = state.find(key)
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


# --- steps


def _picked(state: State, step: Picked) -> None:
    live = _live(state, step, step.key, Status.WAITING)
    _check_pick(state, step, live)
    picked(state, step, live)


def picked(state: State, step: Picked, live: Live) -> None:
    """A pick that fits the state, as one does that was just chosen."""
    ring = live.queue.ring
    assert ring is not None
    if ring.pool.has_floors:
        _earn(ring, step.cost)
    pick(state, live, step.cost, step.round, step.inner_round)
    state.open.append(live)
    state.open_costs.append(step.cost)


def _earn(picked_from: Ring, cost: int) -> None:
    """What tiers with a floor earn or spend by a pick."""
    rings = list(picked_from.pool.rings.values())
    after = credits_after(
        rings.index(picked_from),
        cost,
        [ring.waiting > 0 for ring in rings],
        [ring.floor for ring in rings],
        [ring.credit for ring in rings],
    )
    for ring, credit in zip(rings, after, strict=True):
        ring.credit = credit


def _check_pick(state: State, step: Picked, live: Live) -> None:
    """What was chosen is the head of a queue that has a seat, at its cost."""
    queue = live.queue
    ring, family = queue.ring, queue.family
    if queue.seated is None or ring is None or (family is not None and family.seated is None):
        raise StateMismatchError(state, step, f"{live.tenant} is blocked")
    if queue.head() is not live:
        why = f"{live.id} is not the head of {live.tenant}: {queue.head().id} is"
        raise StateMismatchError(state, step, why)
    cost = queue.cost(live)
    if step.cost != cost:
        raise StateMismatchError(state, step, f"its cost is {cost}, not {step.cost}")
    _check_turn(state, step, live, cost)


def _check_turn(state: State, step: Picked, live: Live, cost: int) -> None:
    """The seats and turns in the step are those that the selectors give."""
    queue = live.queue
    family, seated = queue.family, queue.seated
    assert seated is not None
    seat, turn = step.seat, step.round
    if family is not None:
        assert family.seated is not None
        _check_seat(state, step, family.use.tenant, family.account.seat, seat)
        if turn >= 0:
            can_be = family.seated.turn_of(family, cost)
            _check_round(state, step, family.use.tenant, can_be, turn)
            turn = step.inner_round
        seat = step.inner_seat
    _check_seat(state, step, live.tenant, queue.account.seat, seat)
    if turn >= 0:
        _check_round(state, step, live.tenant, seated.turn_of(queue, cost), turn)


def _check_seat(state: State, step: Step, tenant: str, has: int, seat: int) -> None:
    if seat != has:
        raise StateMismatchError(state, step, f"{tenant} sits on seat {has}, not {seat}")


def _check_round(state: State, step: Step, tenant: str, can_be: int, turn: int) -> None:
    if turn != can_be:
        why = f"{tenant} can be served in round {can_be}, not {turn}"
        raise StateMismatchError(state, step, why)


def _sealed(state: State, step: Sealed) -> None:
    if step.number != state.next_number or not state.open:
        why = f"the next batch is {state.next_number}, with {len(state.open)} requests picked"
        raise StateMismatchError(state, step, why)
    lane = _lane(state, step, step.pool, step.lane)
    for live in state.open:
        live.status = Status.DISPATCHED
    pool = state.pools[step.pool]
    charged = [(live.key, cost) for live, cost in zip(state.open, state.open_costs, strict=True)]
    lane.flights[step.number] = Flight(charged, pool.unit)
    state.open, state.open_costs = [], []
    state.next_number += 1
    for ring in pool.rings.values():
        ring.base.compact(len(ring.queues))


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
    part = state.parts[index]
    refused = dict(step.refused)
    for arrival in arrivals:
        reason = refused.get(arrival.offset)
        if reason is None:
            if arrival.meta is None:
                why = f"offset {arrival.offset} can't be read any more: {arrival.detail}"
                raise StateMismatchError(state, step, why)
            admit(state, index, arrival, find_queue(state, part, arrival.meta))
        else:
            refuse(state, index, arrival, reason)
    move_on(state, index, step.stop)


def move_on(state: State, index: int, stop: int) -> None:
    """Everything below `stop` has been taken in: cancels that waited for it are done with."""
    forget(state)
    part = state.parts[index]
    part.position = stop
    pending = state.cancels.get(part.partition)
    if pending:
        for offset in [offset for offset in pending if offset < stop]:
            del pending[offset]


def find_queue(state: State, part: Part, meta: Request) -> TenantQueue:
    """The queue that a request of this partition belongs to; what runs is remembered."""
    tenants = part.known.get(meta.endpoint)
    if tenants is None:
        tenants = part.known[meta.endpoint] = {}
    queue = tenants.get(meta.tenant)
    if queue is None:
        queue = queue_of(state, meta.tenant, meta.endpoint, part.tier)
        if queue.ring is not None:
            tenants[meta.tenant] = queue
    return queue


def admit(state: State, index: int, arrival: Arrival, queue: TenantQueue) -> None:
    """Take a request in: live, timed, eligible unless no policy knows it yet."""
    live = new_live(state, index << OFFSET_BITS | arrival.offset, arrival, queue)
    state.parts[index].window.put(arrival.offset, live)
    state.ids[live.id] = live
    if queue.ring is None:
        hold(state, live)
    else:
        enqueue(state, live)
    state.watch(live)


def new_live(state: State, key: int, arrival: Arrival, queue: TenantQueue) -> Live:
    """A request as its record says, estimated as the policy says."""
    meta = arrival.meta
    assert meta is not None
    ring = queue.ring
    aging_ms = state.tenants[meta.tenant].aging_ms if ring is not None else 0
    # inputs: as it was let in; a policy that now lets fewer in makes it no cheaper
    live = Live(
        meta.id,
        queue,
        order(meta.priority, meta.deadline_ms, arrival.timestamp_ms, key, aging_ms),
        arrival.size,
        meta.input_tokens + meta.output_tokens_max,
        min(max(1, meta.inputs), INPUTS_MAX),
    )
    if ring is not None:
        live.tokens = estimate(live, ring.pool.endpoint)
    return live


def refuse(state: State, index: int, arrival: Arrival, reason: str) -> None:
    """Pass a request over: it never becomes live.

    What is done follows from the recorded reason, not from what this release can decode.
    """
    if reason in (Reason.UNREADABLE, Reason.UNKNOWN_VERSION):
        return
    assert arrival.meta is not None, arrival
    if reason == Reason.DUPLICATE:
        state.aliases[pack_key(index, arrival.offset)] = arrival.meta.id
        if len(state.aliases) > RECENT_MAX:
            del state.aliases[next(iter(state.aliases))]
    else:
        remember(state, arrival.meta.id)


def _worker_said(state: State, step: WorkerSaid) -> None:
    record = step.record
    lane = _lane(state, step, step.pool, step.lane)
    match record:
        case Seen():
            lane.slots = record.slots
            state.pools[step.pool].measure()
        case Started():
            flight = lane.flights.get(record.number)
            if flight is not None:  # advice may come late, and from a zombie
                flight.started = True
        case Finished():
            _finished(state, step, lane, record)
        case HandedBack():
            flight = _land(state, step, lane, record.number)
            for key, cost in flight.charged:
                live = _live(state, step, key, Status.DISPATCHED)
                if flight.started:
                    live.remember().attempt += 1
                _settle(state, live, flight, -cost)
                set_aside(state, live)
                land(state, live)


def _finished(state: State, step: Step, lane: Lane, record: Finished) -> None:
    flight = _land(state, step, lane, record.number)
    if [key for key, _ in flight.charged] != [outcome.key for outcome in record.outcomes]:
        raise StateMismatchError(state, step, "its requests are not those of the batch")
    unit = flight.unit
    shares = _shares(record.outcomes) if unit is CostModel.ADAPTIVE else ()
    for number, (key, cost) in enumerate(flight.charged):
        outcome = record.outcomes[number]
        live = _live(state, step, key, Status.DISPATCHED)
        service_ms = shares[number] if shares else 0
        surcharge = true_cost(unit, cost, outcome, service_ms) - cost
        if service_ms and outcome.end is End.SUCCEEDED:
            learn(state, live, service_ms)
        if surcharge:
            _settle(state, live, flight, surcharge)
        close(state, live)
        land(state, live)
    forget(state)


def _shares(outcomes: Sequence[Outcome]) -> list[int]:
    """Each request's part of the time of its batch, milliseconds: by its tokens.

    Engines say the time of the batch, or of each request in it: either way a request pays
    as much of what it said as it has of the batch's tokens.
    """
    total = sum(outcome.usage.tokens for outcome in outcomes)
    if len(outcomes) == 1 or not total:
        return [outcome.usage.service_ms // len(outcomes) for outcome in outcomes]
    return [outcome.usage.service_ms * outcome.usage.tokens // total for outcome in outcomes]


def _settle(state: State, live: Live, flight: Flight, surcharge: int) -> None:
    """Settle in the unit of the charge, or not at all."""
    ring = live.queue.ring
    if ring is not None and ring.pool.unit is flight.unit:
        settle(state, live, surcharge)


def _land(state: State, step: Step, lane: Lane, number: int) -> Flight:
    flight = lane.flights.pop(number, None)
    if flight is None:
        raise StateMismatchError(state, step, f"batch {number} is not in flight on this lane")
    return flight


def _ended(state: State, step: Ended) -> None:
    live = _live(state, step, step.key, Status.WAITING, Status.HELD, Status.RETURNED)
    if live.status is Status.WAITING:
        dequeue(state, live, Status.RETURNED)
    elif live.status is Status.HELD:
        unhold(state, live)
    close(state, live)


def _requeued(state: State, step: Requeued) -> None:
    live = _live(state, step, step.key, Status.RETURNED)
    del state.returned[live.key]
    state.watch(live)
    if step.attempt:
        live.remember().attempt = step.attempt
    if step.not_before_ms > state.now_ms:
        live.remember().not_before_ms = step.not_before_ms
        hold(state, live)
    else:
        enqueue(state, live)


def find_live(state: State, topic: str, partition: int, offset: int) -> Live | None:
    """The live request that a place names; a dropped duplicate's place names its twin."""
    index = state.part_of.get((topic, partition))
    if index is None:
        return None
    key = pack_key(index, offset)
    twin = state.aliases.get(key)
    return state.find(key) if twin is None else state.ids.get(twin)


def _control(state: State, record: ControlRecord) -> None:
    match record:
        case Cancel():
            _cancel(state, record)
        case Pause():
            _pause(state, record.tenant, record.endpoint, record.until_ms)
        case Resume():
            _pause(state, record.tenant, record.endpoint, None)


def _pause(state: State, tenant: str, endpoint: str, until_ms: int | None) -> None:
    """Pause until then (0: until resumed), or resume (None)."""
    if until_ms is None:
        state.pauses.pop((tenant, endpoint), None)
    elif len(state.pauses) < PAUSES_MAX:
        state.pauses[tenant, endpoint] = until_ms
    for pool in state.pools.values():
        if endpoint in ("", pool.endpoint.name):
            uses = pool.uses.values() if not tenant else [pool.uses[tenant]] * (tenant in pool.uses)
            for use in list(uses):
                limit(state, pool, use)
                reseat_tenant(state, use)


def _cancel(state: State, record: Cancel) -> None:
    if record.topic not in state.topics:
        return
    partition = (record.topic, record.partition)
    index = state.part_of.get(partition)
    if index is None or record.offset >= state.parts[index].position:
        pending = state.cancels.setdefault(partition, {})
        if len(pending) < CANCELS_MAX:
            pending[record.offset] = None
        return
    live = find_live(state, record.topic, record.partition, record.offset)
    if live is not None and live.status is Status.DISPATCHED:
        live.remember().cancelled = True
