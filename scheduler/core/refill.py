"""The live requests of a snapshot, put back as they were.

A snapshot names them by offset; their metadata stands in the request topics. `fill` takes
them as they are read, partition by partition, `finish_filling` when all are there.
"""

from collections.abc import Iterable

from scheduler.core.arrivals import Arrival, new_live, watch
from scheduler.core.queues import enqueue, hold, launched, set_aside
from scheduler.core.seats import queue_of, resume, resume_family
from scheduler.core.state import State
from scheduler.core.tenants import OFFSET_BITS, Live, Status, TenantQueue


def fill(state: State, index: int, arrivals: Iterable[Arrival]) -> None:
    """Put live requests of one partition back, as read from their topic, in offset order."""
    part = state.parts[index]
    queues: dict[str, dict[str, TenantQueue]] = {}
    for arrival in arrivals:
        offset, _, _, meta, _, _ = arrival
        assert meta is not None, arrival
        tenants = queues.get(meta.endpoint)
        if tenants is None:
            tenants = queues[meta.endpoint] = {}
        queue = tenants.get(meta.tenant)
        if queue is None:
            queue = queue_of(state, meta.tenant, meta.endpoint, part.tier)
            tenants[meta.tenant] = queue
        key = index << OFFSET_BITS | offset
        live = new_live(key, arrival, queue)
        part.window.put(offset, live)
        state.ids[live.id] = live
        watch(state, live, arrival)
        mark = state.marks.pop(key, None) if state.marks else None
        if mark is None:
            enqueue(state, live, seat=False)
        else:
            _mark(state, live, mark)


def _mark(state: State, live: Live, mark: tuple[int, int, int, bool]) -> None:
    """A request that is not simply waiting for its first attempt."""
    status, attempt, not_before_ms, cancelled = mark
    if attempt or cancelled or not_before_ms:
        past = live.remember()
        past.attempt, past.cancelled = attempt, cancelled
        past.not_before_ms = not_before_ms
    match status:
        case Status.WAITING:
            enqueue(state, live, seat=False)
        case Status.HELD:
            hold(state, live)
        case Status.DISPATCHED:
            launched(live)
        case _:
            set_aside(state, live)


def finish_filling(state: State) -> None:
    """All live requests are back: let the selectors compute their turns."""
    state.marks = {}
    for flight, keys in state.flights:
        for key in keys:
            live = state.find(key)
            assert live is not None, key
            flight.lives.append(live)
    state.flights = []
    for pool in state.pools.values():
        for ring in pool.rings.values():
            for queue in ring.queues.values():
                resume(queue)
            for family in ring.families.values():
                resume_family(family)
