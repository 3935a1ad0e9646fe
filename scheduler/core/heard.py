"""What workers say, applied: slots, starts, ends with their true costs, hand-backs."""

from collections.abc import Sequence

from scheduler.core.mismatch import StateMismatchError, lane_of
from scheduler.core.queues import close, land, learn, set_aside, settle, true_cost
from scheduler.core.seats import reseat_tenant
from scheduler.core.state import Flight, Lane, State
from scheduler.core.tenants import TenantQueue, Use
from schemas.decisions import Step, WorkerSaid
from schemas.policy import CostModel
from schemas.records import End, Finished, HandedBack, Outcome, Seen, Started


def worker_said(state: State, step: WorkerSaid) -> None:
    """Apply a record of `workers.<pool>`."""
    record = step.record
    lane = lane_of(state, step, step.pool, step.lane)
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
            for live, cost in zip(flight.lives, flight.costs, strict=True):
                if flight.started:
                    live.remember().attempt += 1
                _settle(state, live.queue, flight, [-cost])
                set_aside(state, live)
                land(state, live.queue.use)


def _finished(state: State, step: Step, lane: Lane, record: Finished) -> None:
    flight = _land(state, step, lane, record.number)
    lives, costs, outcomes, unit = flight.lives, flight.costs, record.outcomes, flight.unit
    if len(lives) != len(outcomes):
        raise StateMismatchError(state, step, "its requests are not those of the batch")
    for live, outcome in zip(lives, outcomes, strict=True):
        if live.key != outcome.key:
            raise StateMismatchError(state, step, "its requests are not those of the batch")
    shares = _shares(outcomes) if unit is CostModel.ADAPTIVE else []
    surcharges: dict[TenantQueue, list[int]] = {}
    taught: dict[Use, None] = {}
    for number, live in enumerate(lives):
        outcome, cost, queue = outcomes[number], costs[number], live.queue
        service_ms = shares[number] if shares else 0
        surcharge = true_cost(unit, cost, outcome, service_ms) - cost
        if surcharge:
            posted = surcharges.get(queue)
            if posted is None:
                surcharges[queue] = [surcharge]
            else:
                posted.append(surcharge)
        if service_ms and outcome.end is End.SUCCEEDED:
            learn(queue, live, service_ms)
            taught[queue.use] = None
        close(state, live)
        land(state, queue.use)
    for queue, posted in surcharges.items():  # a tenant at a time: its turn is computed once
        _settle(state, queue, flight, posted)
    for use in taught:
        reseat_tenant(state, use)
    state.recent.forget(state.now_ms)


def _shares(outcomes: Sequence[Outcome]) -> list[int]:
    """Each request's part of the time of its batch, milliseconds: by its tokens.

    Engines say the time of the batch, or of each request in it: either way a request pays
    as much of what it said as it has of the batch's tokens.
    """
    total = sum(outcome.usage.tokens for outcome in outcomes)
    if len(outcomes) == 1 or not total:
        return [outcome.usage.service_ms // len(outcomes) for outcome in outcomes]
    return [outcome.usage.service_ms * outcome.usage.tokens // total for outcome in outcomes]


def _settle(state: State, queue: TenantQueue, flight: Flight, surcharges: list[int]) -> None:
    """Settle in the unit of the charge, or not at all."""
    if queue.ring is not None and queue.ring.pool.unit is flight.unit:
        settle(state, queue, surcharges)


def _land(state: State, step: Step, lane: Lane, number: int) -> Flight:
    flight = lane.flights.pop(number, None)
    if flight is None:
        raise StateMismatchError(state, step, f"batch {number} is not in flight on this lane")
    return flight
