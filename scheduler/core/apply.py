"""The only code that changes State: one function per step, live and in recovery alike.

`apply(state, step)` takes a step as it stands in the decisions log. It decides nothing and
calls no selector's choice: what was chosen is in the step. It checks that the step fits
the state; a step that doesn't is a `StateMismatchError` that tells the story, because going
on would mean a lost or a doubled request.
"""

from collections.abc import Sequence

from scheduler.core.arrivals import Arrival, admit, find_queue, move_on, refuse
from scheduler.core.heard import worker_said
from scheduler.core.mismatch import StateMismatchError, lane_of, live_of
from scheduler.core.pick.tier import credits_after
from scheduler.core.queues import close, dequeue, enqueue, hold, pick, unhold
from scheduler.core.repolicy import set_policy
from scheduler.core.seats import limit, reseat_tenant
from scheduler.core.state import CANCELS_MAX, Flight, Ring, State
from scheduler.core.tenants import Live, Status
from schemas.decisions import (
    Arrived,
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
    WorkerSaid,
)
from schemas.records import Cancel, ControlRecord, Pause, Resume, pack_key

#: Pauses that are remembered; more are not made.
PAUSES_MAX = 100_000


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
            worker_said(state, step)
        case Read():
            state.positions[step.topic, step.partition] = step.position
        case Ended():
            _ended(state, step)
        case Requeued():
            _requeued(state, step)
        case Released():
            live = live_of(state, step, step.key, Status.HELD)
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


# --- steps


def _picked(state: State, step: Picked) -> None:
    live = live_of(state, step, step.key, Status.WAITING)
    _check_pick(state, step, live)
    picked(state, live, step.cost, step.round, step.inner_round)


def picked(state: State, live: Live, cost: int, turn: int, inner_turn: int) -> None:
    """A pick that fits the state, as one does that was just chosen."""
    ring = live.queue.ring
    assert ring is not None
    if ring.pool.has_floors:
        _earn(ring, cost)
    pick(state, live, cost, turn, inner_turn)
    state.open.append(live)
    state.open_costs.append(cost)


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
    lane = lane_of(state, step, step.pool, step.lane)
    for live in state.open:
        live.status = Status.DISPATCHED
    pool = state.pools[step.pool]
    lane.flights[step.number] = Flight(state.open, state.open_costs, pool.unit)
    state.open, state.open_costs = [], []
    state.next_number += 1


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


def _ended(state: State, step: Ended) -> None:
    live = live_of(state, step, step.key, Status.WAITING, Status.HELD, Status.RETURNED)
    if live.status == Status.WAITING:
        dequeue(state, live, Status.RETURNED)
    elif live.status == Status.HELD:
        unhold(state, live)
    close(state, live)


def _requeued(state: State, step: Requeued) -> None:
    live = live_of(state, step, step.key, Status.RETURNED)
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
    elif (tenant, endpoint) in state.pauses or len(state.pauses) < PAUSES_MAX:
        state.pauses[tenant, endpoint] = until_ms
    for pool in state.pools.values():
        if endpoint in ("", pool.endpoint.name):
            named = pool.uses.get(tenant)
            for use in [named] if named is not None else ([] if tenant else [*pool.uses.values()]):
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
    if live is not None and live.status == Status.DISPATCHED:
        live.remember().cancelled = True
