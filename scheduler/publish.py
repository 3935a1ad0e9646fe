"""From a cycle's decisions to the records of its transaction.

One decision record, one record a batch (bodies copied once, into it), one result for each
request that the scheduler itself ended, and `dead` for what could not be served.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from scheduler.core.arrivals import Arrival
from scheduler.core.decided import BatchOut, Cycle
from scheduler.core.pick.order import DEADLINE_BITS, deadline_of
from scheduler.core.state import State
from scheduler.core.tenants import Live
from scheduler.inputs import Body, Fault
from schemas.codec import HEADER, header, join
from schemas.decisions import Decision
from schemas.log import Headers, TooLargeError, check_record
from schemas.reasons import TABLE, Reason
from schemas.records import (
    VERSION,
    Batch,
    BatchCancel,
    Dead,
    End,
    Item,
    Result,
    pack_key,
    unpack_key,
)
from schemas.topics import Topics, bucket

#: Reasons whose originals go to `dead` as well: somebody has to look at them.
TO_DEAD = frozenset(
    {
        Reason.UNREADABLE,
        Reason.UNKNOWN_VERSION,
        Reason.UNKNOWN_TENANT,
        Reason.UNKNOWN_ENDPOINT,
        Reason.TIER_NOT_ALLOWED,
        Reason.NEVER_FITS,
        Reason.ATTEMPTS,
    }
)
_ENDS = {
    Reason.CANCELLED: End.CANCELLED,
    Reason.EXPIRED: End.EXPIRED,
    Reason.DEADLINE: End.EXPIRED,
}


class Outgoing(NamedTuple):
    """A record to send."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None
    headers: Headers


def decision_of(state: State, cycle: Cycle) -> Decision:
    """The decision record of a cycle that was just applied to `state`."""
    return Decision(
        v=VERSION,
        shard=state.shard,
        seq=state.seq,
        now_ms=state.now_ms,
        steps=tuple(cycle.steps),
    )


def keys_of(state: State, cycle: Cycle) -> list[int]:
    """Keys of the requests whose bodies the cycle's records need, in the order of `records`."""
    keys = [live.key for batch in cycle.batches for live in batch.requests]
    keys += [live.key for live, _ in cycle.ended]
    keys += [
        pack_key(state.part_of[topic, partition], arrival.offset)
        for topic, partition, arrival, _ in cycle.refused
    ]
    return keys


def items_of(
    requests: Sequence[Live], keys: Sequence[int], bodies: Sequence[Body]
) -> tuple[Item, ...]:
    """The items of a batch, to be encoded: plain tuples in the order of `Item`'s fields.

    An array on the wire is one either way, and a Struct for each request costs as much as
    everything else that is done for it here.
    """
    items = []
    for live, key, body in zip(requests, keys, bodies, strict=True):
        queue, order, past = live.queue, live.order, live.past
        items.append(
            (
                key,
                live.id,
                queue.tenant,
                queue.endpoint,
                past.attempt if past else 0,
                len(body[0]),
                live.arrived_ms,
                deadline_of(order) if order & DEADLINE_BITS != DEADLINE_BITS else 0,
                live.tokens,
                body[1],
            )
        )
    return cast("tuple[Item, ...]", tuple(items))


def fitted(record: Outgoing) -> Outgoing:
    """The record, or as much of it as a record may hold: without its body, then bare.

    For results and `dead` only: their metadata names where the original stands.
    """
    ours = [h for h in record.headers if h[0] == HEADER]
    for smaller in (
        record,
        record._replace(value=b""),
        record._replace(value=b"", headers=ours),
    ):
        try:
            check_record(*smaller[:4], smaller.headers)
        except TooLargeError:
            continue
        return smaller
    return record._replace(value=b"", headers=ours, key=None)


class Publisher:
    """Builds the records that follow from a cycle.

    `keys` are the cycle's `keys_of`, `bodies` theirs.
    """

    def __init__(self, topics: Topics, keys: Sequence[int], bodies: Sequence[Body]) -> None:
        self._topics = topics
        self._keys = keys
        self._bodies = bodies
        self._used = 0

    def records(self, state: State, cycle: Cycle, faults: Sequence[Fault]) -> Iterator[Outgoing]:
        """Everything beside the decision record. Once: the bodies are used up."""
        for batch in cycle.batches:
            yield self._batch(state, batch)
        for pool, lane, number, key in cycle.cancels:
            cancel = header(BatchCancel(VERSION, number, key))
            yield Outgoing(self._topics.batches(pool), lane, b"", None, cancel)
        buckets = state.policy.topology.buckets if state.policy else 1
        for live, reason in cycle.ended:
            yield from self._ended(state, live, reason, buckets)
        for topic, partition, arrival, reason in cycle.refused:
            yield from self._refused(state, (topic, partition), arrival, reason, buckets)
        if state.policy is None:
            return
        for fault in faults:
            record = fault.record
            dead = Dead(
                VERSION, record.topic, record.partition, record.offset, fault.reason, fault.detail
            )
            yield fitted(Outgoing(self._topics.dead, 0, record.value, None, header(dead)))

    def _batch(self, state: State, batch: BatchOut) -> Outgoing:
        start, self._used = self._used, self._used + len(batch.requests)
        bodies = self._bodies[start : self._used]
        items = items_of(batch.requests, self._keys[start : self._used], bodies)
        record = Batch(VERSION, state.shard, batch.number, batch.pool, state.now_ms, items)
        value = join([body[0] for body in bodies])
        return Outgoing(self._topics.batches(batch.pool), batch.lane, value, None, header(record))

    def _next_body(self) -> Body:
        self._used += 1
        return self._bodies[self._used - 1]

    def _ended(self, state: State, live: Live, reason: str, buckets: int) -> Iterator[Outgoing]:
        index, offset = unpack_key(live.key)
        body = self._next_body()
        result = Result(
            v=VERSION,
            id=live.id,
            tenant=live.tenant,
            endpoint=live.endpoint,
            end=_ENDS.get(Reason(reason), End.FAILED),
            reason=reason,
            detail=TABLE[Reason(reason)].text,
            attempt=live.attempt,
            arrived_ms=live.arrived_ms,
            ended_ms=state.now_ms,
        )
        place = (*state.parts[index].partition, offset)
        yield from self._terminal(result, place, body, buckets)

    def _refused(
        self,
        state: State,
        partition: tuple[str, int],
        arrival: Arrival,
        reason: str,
        buckets: int,
    ) -> Iterator[Outgoing]:
        meta = arrival.meta
        place = (*partition, arrival.offset)
        body = self._next_body()
        if meta is None:
            dead = Dead(VERSION, *place, reason, arrival.detail)
            yield fitted(
                Outgoing(self._topics.dead, 0, body.value, None, header(dead, body.headers))
            )
            return
        result = Result(
            v=VERSION,
            id=meta.id,
            tenant=meta.tenant,
            endpoint=meta.endpoint,
            end=_ENDS.get(Reason(reason), End.FAILED),
            reason=reason,
            detail=TABLE[Reason(reason)].text,
            arrived_ms=arrival.timestamp_ms,
            ended_ms=state.now_ms,
        )
        yield from self._terminal(result, place, body, buckets)

    def _terminal(
        self, result: Result, place: tuple[str, int, int], body: Body, buckets: int
    ) -> Iterator[Outgoing]:
        """The one result of a request, and its original in `dead` when that is called for."""
        partition = bucket(result.tenant, buckets)
        tenant = result.tenant.encode()
        yield fitted(
            Outgoing(self._topics.results, partition, b"", tenant, header(result, body.headers))
        )
        if result.reason in TO_DEAD:
            dead = Dead(VERSION, *place, result.reason, result.detail, result.id, result.tenant)
            headers = header(dead, body.headers)
            yield fitted(Outgoing(self._topics.dead, partition, body.value, tenant, headers))
