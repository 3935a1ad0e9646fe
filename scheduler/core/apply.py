"""The only code that changes State: one function per step, live and in recovery alike.

`apply(state, step)` takes a step as it stands in the decisions log. It decides nothing and
calls no selector's choice: what was chosen is in the step. It checks that the step fits
the state; a step that doesn't is a `StateMismatchError` that tells the story, because going
on would mean a lost or a doubled request.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.core.queues import (
    close,
    dequeue,
    enqueue,
    remember,
    set_aside,
    settle,
    true_cost,
)
from scheduler.core.repolicy import set_policy
from scheduler.core.state import CANCELS_MAX, RECENT_MAX, Flight, Lane, Live, State, Status
from schemas.reasons import Reason
from schemas.records import (
    Arrived,
    Cancel,
    ControlSaid,
    Ended,
    Finished,
    HandedBack,
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
            set_policy(state, step.document)


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
        live.batch = (step.pool, step.lane, step.number)
    pool = state.pools[step.pool]
    charged = [(live.key, live.cost) for live in state.open]
    lane.flights[step.number] = Flight(charged, pool.endpoint.cost)
    state.open = []
    state.next_number += 1
    for ring in pool.rings.values():
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
    move_on(state, index, step.stop)


def move_on(state: State, index: int, stop: int) -> None:
    """Everything below `stop` has been taken in: cancels that waited for it are done with."""
    part = state.parts[index]
    part.position = stop
    pending = state.cancels.get(part.partition)
    if pending:
        for offset in [offset for offset in pending if offset < stop]:
            del pending[offset]


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
    part.outstanding.append(arrival.offset)
    state.watch(live)
    enqueue(state, live)


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
                _settle(state, live, flight, true_cost(flight.unit, cost, outcome) - cost)
                close(state, live)
        case HandedBack():
            flight = _land(state, step, lane, record.number)
            for key, cost in flight.charged:
                live = _live(state, step, key, Status.DISPATCHED)
                live.attempt += flight.started
                _settle(state, live, flight, -cost)
                set_aside(state, live)


def _settle(state: State, live: Live, flight: Flight, surcharge: int) -> None:
    """Settle in the unit of the charge, or not at all."""
    endpoint = state.endpoints.get(live.endpoint)
    if endpoint is not None and endpoint.cost is flight.unit:
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
    close(state, live)


def _requeued(state: State, step: Requeued) -> None:
    live = _live(state, step, step.key, Status.RETURNED)
    del state.returned[live.key]
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
        live.cancelled = True
