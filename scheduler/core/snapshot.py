"""State as one value and back: snapshots, and the test that two states are equal.

`dump` writes everything but the indexes, in canonical form: equal states give equal bytes.
Metadata of live requests is not in it: it stands in the request topics. Restoring takes
two steps: `load` gives the state with the offsets that were live, `fill` puts the
requests back that were read from there.
"""

from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from scheduler.core.apply import Arrival
from scheduler.core.pick.fifo import FirstInFirstOut
from scheduler.core.queues import enqueue, queue_of, set_aside
from scheduler.core.state import (
    Flight,
    Lane,
    Live,
    Part,
    PoolState,
    Ring,
    State,
    Status,
    TenantQueue,
)
from schemas.policy import CostModel, Endpoint, Fairness
from schemas.records import pack_key

_encoder = msgspec.msgpack.Encoder()


class _Live(msgspec.Struct, array_like=True):
    """What a live request has beyond its record: kept for those that have any of it."""

    key: int
    status: int
    attempt: int
    not_before_ms: int
    cancelled: bool


class _Queue(msgspec.Struct, array_like=True):
    tenant: str
    account: list[int]


class _Ring(msgspec.Struct, array_like=True):
    tier: str
    fairness: Fairness
    selector: list[int]
    queues: list[_Queue]


class _Flight(msgspec.Struct, array_like=True):
    number: int
    started: bool
    unit: CostModel
    charged: list[tuple[int, int]]


class _Lane(msgspec.Struct, array_like=True):
    slots: int
    flights: list[_Flight]


class _Pool(msgspec.Struct, array_like=True):
    name: str
    endpoint: Endpoint
    prefetch: int
    rings: list[_Ring]
    lanes: list[_Lane]


class _Part(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    tier: str
    position: int
    live: bytes  # roaring bitmap of offsets


class _State(msgspec.Struct, array_like=True):
    shard: int
    seq: int
    now_ms: int
    document: bytes
    next_number: int
    topics: list[tuple[str, str]]
    positions: list[tuple[str, int, int]]
    parts: list[_Part]
    lives: list[_Live]
    pools: list[_Pool]
    recent: list[tuple[str, int]]
    aliases: list[tuple[int, str]]
    cancels: list[tuple[str, int, list[int]]]


_decoder = msgspec.msgpack.Decoder(_State)


def dump(state: State) -> bytes:
    """Encode the state, canonically. No batch may be open."""
    assert not state.open
    offsets: list[BitMap64] = [BitMap64() for _ in state.parts]
    mask = (1 << 44) - 1
    marks: list[_Live] = []
    for key in sorted(state.live):
        live = state.live[key]
        offsets[key >> 44].add(key & mask)
        if live.status is not Status.WAITING or live.attempt or live.cancelled:
            marks.append(_Live(key, live.status, live.attempt, live.not_before_ms, live.cancelled))
    return _encoder.encode(
        _State(
            shard=state.shard,
            seq=state.seq,
            now_ms=state.now_ms,
            document=state.document,
            next_number=state.next_number,
            topics=sorted(state.topics.items()),
            positions=sorted((t, p, at) for (t, p), at in state.positions.items()),
            parts=[
                _Part(*part.partition, part.tier, part.position, offsets[i].serialize())
                for i, part in enumerate(state.parts)
            ],
            lives=marks,
            pools=[_dump_pool(name, pool) for name, pool in state.pools.items()],
            recent=list(state.recent.items()),
            aliases=list(state.aliases.items()),
            cancels=[(t, p, sorted(at)) for (t, p), at in sorted(state.cancels.items()) if at],
        )
    )


def _dump_pool(name: str, pool: PoolState) -> _Pool:
    rings = [
        _Ring(
            ring.tier,
            Fairness.FIFO if isinstance(ring.selector, FirstInFirstOut) else Fairness.DRR,
            ring.selector.dump(),
            [
                _Queue(tenant, ring.selector.dump_account(ring.queues[tenant].account))
                for tenant in sorted(ring.queues)
            ],
        )
        for ring in pool.rings.values()
    ]
    lanes = [
        _Lane(
            lane.slots, [_Flight(n, f.started, f.unit, f.charged) for n, f in lane.flights.items()]
        )
        for lane in pool.lanes
    ]
    return _Pool(name, pool.endpoint, pool.prefetch, rings, lanes)


def load(data: bytes) -> tuple[State, list[BitMap64]]:
    """Decode a dump: the state without its live requests, and their offsets by part.

    Raises msgspec.DecodeError when the bytes are no dump.
    """
    dumped = _decoder.decode(data)
    state = State(dumped.shard)
    state.seq, state.now_ms = dumped.seq, dumped.now_ms
    state.next_number = dumped.next_number
    if dumped.document:
        state.adopt(dumped.document)
    state.topics = dict(dumped.topics)
    state.positions = {(topic, partition): at for topic, partition, at in dumped.positions}
    offsets = []
    for index, part in enumerate(dumped.parts):
        partition = (part.topic, part.partition)
        state.part_of[partition] = index
        state.parts.append(Part(partition, part.tier, part.position))
        offsets.append(BitMap64.deserialize(part.live))
    state.pools = {pool.name: _load_pool(pool) for pool in dumped.pools}
    state.recent = dict(dumped.recent)
    state.aliases = dict(dumped.aliases)
    state.cancels = {
        (topic, partition): dict.fromkeys(at) for topic, partition, at in dumped.cancels
    }
    state.restoring = {mark.key: mark for mark in dumped.lives}
    state.batches = {
        key: (name, lane, number)
        for name, pool in state.pools.items()
        for lane, held in enumerate(pool.lanes)
        for number, flight in held.flights.items()
        for key, _ in flight.charged
    }
    return state, offsets


def _load_pool(dumped: _Pool) -> PoolState:
    pool = PoolState(dumped.endpoint, dumped.prefetch)
    for dumped_ring in dumped.rings:
        ring = Ring(dumped.name, dumped_ring.tier, dumped_ring.fairness)
        ring.selector.load(dumped_ring.selector)
        for dumped_queue in dumped_ring.queues:
            queue = TenantQueue(dumped_queue.tenant, ring)
            queue.account.load(dumped_queue.account)
            ring.queues[dumped_queue.tenant] = queue
        pool.rings[dumped_ring.tier] = ring
    for dumped_lane in dumped.lanes:
        lane = Lane()
        lane.slots = dumped_lane.slots
        for dumped_flight in dumped_lane.flights:
            flight = Flight(dumped_flight.charged, dumped_flight.unit)
            flight.started = dumped_flight.started
            lane.flights[dumped_flight.number] = flight
        pool.lanes.append(lane)
    return pool


def fill(state: State, index: int, arrivals: Iterable[Arrival]) -> None:
    """Put live requests of one partition back, as read from their topic, in offset order."""
    part = state.parts[index]
    for arrival in arrivals:
        assert arrival.meta is not None, arrival
        key = pack_key(index, arrival.offset)
        live = Live(key, part.tier, arrival.meta, arrival.size, arrival.timestamp_ms)
        endpoint = state.endpoints.get(live.endpoint)
        if endpoint is not None:
            state.estimate(live, endpoint)
        state.live[key] = live
        state.ids[live.id] = key
        part.outstanding.append(arrival.offset)
        state.watch(live)
        mark = state.restoring.get(key)
        status = Status(mark.status) if mark else Status.WAITING
        if mark:
            live.attempt, live.cancelled = mark.attempt, mark.cancelled
        if status is Status.WAITING:
            enqueue(state, live, seat=False)
            continue
        live.status = status
        live.batch = state.batches.get(key)
        live.queue = queue_of(state, live)
        if status is Status.RETURNED:
            set_aside(state, live)
        if mark and status is Status.HELD:
            live.not_before_ms = mark.not_before_ms
            state.hold(live)


def finish_filling(state: State) -> None:
    """All live requests are back: let the selectors compute their turns."""
    state.restoring, state.batches = {}, {}
    for pool in state.pools.values():
        for ring in pool.rings.values():
            for queue in ring.queues.values():
                if queue.count:
                    ring.selector.reprice(queue, queue.head().cost)
