"""Requests as they are read: admitted, or passed over for a recorded reason."""

from typing import NamedTuple

from scheduler.core.pick.order import AT_MS_MAX, order
from scheduler.core.queues import enqueue, hold
from scheduler.core.seats import queue_of
from scheduler.core.state import ALIASES_MAX, Part, State, estimate
from scheduler.core.tenants import OFFSET_BITS, Live, TenantQueue
from schemas.policy_check import INPUTS_MAX
from schemas.reasons import Reason
from schemas.records import Request, pack_key


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


def move_on(state: State, index: int, stop: int) -> None:
    """Everything below `stop` has been taken in: cancels that waited for it are done with."""
    state.recent.forget(state.now_ms)
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
    offset = arrival[0]
    live = new_live(index << OFFSET_BITS | offset, arrival, queue)
    state.parts[index].window.put(offset, live)
    state.ids[live.id] = live
    watch(state, live, arrival)
    if queue.ring is None:
        hold(state, live)
    else:
        enqueue(state, live)


def watch(state: State, live: Live, arrival: Arrival) -> None:
    """Index a request that was just made by the second after which it has expired."""
    _, at_ms, _, meta, _, _ = arrival
    ring = live.queue.ring
    if ring is None or meta is None or meta.deadline_ms or not 0 <= at_ms <= AT_MS_MAX:
        state.watch(live)
    else:
        state.watch_until(live, at_ms + ring.pool.wait_ms_max)


def new_live(key: int, arrival: Arrival, queue: TenantQueue) -> Live:
    """A request as its record says, estimated as the policy says."""
    _, at_ms, size, meta, _, _ = arrival
    assert meta is not None
    ring = queue.ring
    aging_ms = queue.use.aging_ms if ring is not None else 0
    inputs = meta.inputs  # as it was let in; a policy that now lets fewer in makes it no cheaper
    if not 1 <= inputs <= INPUTS_MAX:
        inputs = min(max(1, inputs), INPUTS_MAX)
    place = order(meta.priority, meta.deadline_ms, at_ms, key, aging_ms)
    given = meta.input_tokens + meta.output_tokens_max
    live = Live(meta.id, queue, key, place, size, given, inputs)
    if ring is not None:
        live.tokens = estimate(live, ring.pool)
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
        if len(state.aliases) > ALIASES_MAX:
            del state.aliases[next(iter(state.aliases))]
    else:
        state.recent.add(arrival.meta.id, state.now_ms)
