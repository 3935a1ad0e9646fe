"""The live requests of a snapshot, put back as they were.

A snapshot names them by offset; their metadata stands in the request topics. `fill` takes
them as they are read, partition by partition, `finish_filling` when all are there.
"""

from collections.abc import Iterable

from scheduler.core.arrivals import Arrival, new_live
from scheduler.core.queues import enqueue, hold, launched, set_aside
from scheduler.core.seats import queue_of, resume, resume_family
from scheduler.core.state import State
from scheduler.core.tenants import Status
from schemas.records import pack_key


def fill(state: State, index: int, arrivals: Iterable[Arrival]) -> None:
    """Put live requests of one partition back, as read from their topic, in offset order."""
    part = state.parts[index]
    for arrival in arrivals:
        meta = arrival.meta
        assert meta is not None, arrival
        key = pack_key(index, arrival.offset)
        queue = queue_of(state, meta.tenant, meta.endpoint, part.tier)
        live = new_live(key, arrival, queue)
        part.window.put(arrival.offset, live)
        state.ids[live.id] = live
        state.watch(live)
        mark = state.marks.pop(key, None) if state.marks else None
        status = Status.WAITING
        if mark is not None:
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
