"""State as one value and back: snapshots, and the test that two states are equal.

`dump` writes everything but the indexes, in canonical form: equal states give equal bytes.
Metadata of live requests is not in it: it stands in the request topics. Restoring takes
two steps: `load` gives the state with the offsets that were live, `refill.fill` puts the
requests back that were read from there.
"""

from collections import OrderedDict

import msgspec
from pyroaring import BitMap64

from scheduler.core.pick import Selector
from scheduler.core.recent import Recent
from scheduler.core.seats import family_of, join, limit
from scheduler.core.state import Flight, Lane, Part, PoolState, Ring, State
from scheduler.core.tenants import Family, Status, TenantQueue, Use
from schemas.policy import CostModel, Endpoint, Fairness

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
    last: int  # 0: never seated; 1: base; 2: burst


class _Family(msgspec.Struct, array_like=True):
    parent: str
    account: list[int]
    last: int
    base: list[int]
    burst: list[int]


class _Ring(msgspec.Struct, array_like=True):
    tier: str
    fairness: Fairness
    floor: int
    credit: int
    base: list[int]
    burst: list[int]
    queues: list[_Queue]
    families: list[_Family]


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
    learned: list[int]
    uses: list[tuple[str, int, int]]  # tenant, learned microseconds and tokens
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
    recent: list[tuple[int, list[str]]]  # when, who
    aliases: list[tuple[int, str]]
    cancels: list[tuple[str, int, list[int]]]
    pauses: list[tuple[str, str, int]]


_decoder = msgspec.msgpack.Decoder(_State)


def dump(state: State) -> bytes:
    """Encode the state, canonically. No batch may be open."""
    assert not state.open
    offsets = [BitMap64(offset for offset, _ in part.window.items()) for part in state.parts]
    marks: list[_Live] = []
    for live in state.lives():
        past = live.past
        if live.status != Status.WAITING or (past and (past.attempt or past.cancelled)):
            marks.append(
                _Live(live.key, live.status, live.attempt, live.not_before_ms, live.cancelled)
            )
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
            recent=state.recent.by_time(),
            aliases=list(state.aliases.items()),
            cancels=[(t, p, sorted(at)) for (t, p), at in sorted(state.cancels.items()) if at],
            pauses=[(tenant, at, until) for (tenant, at), until in state.pauses.items()],
        )
    )


def _dump_pool(name: str, pool: PoolState) -> _Pool:
    lanes = [
        _Lane(
            lane.slots, [_Flight(n, f.started, f.unit, f.charged) for n, f in lane.flights.items()]
        )
        for lane in pool.lanes
    ]
    return _Pool(
        name,
        pool.endpoint,
        pool.prefetch,
        [pool.learned.learned_us, pool.learned.learned_tokens],
        [(use.tenant, use.learned_us, use.learned_tokens) for use in pool.uses.values()],
        [_dump_ring(ring) for ring in pool.rings.values()],
        lanes,
    )


def _dump_ring(ring: Ring) -> _Ring:
    queues = []
    for tenant, queue in ring.queues.items():
        selector = queue.last or (queue.family or ring).base
        last = _last(queue, queue.family or ring)
        queues.append(_Queue(tenant, selector.dump_account(queue.account), last))
    families = []
    for parent, family in ring.families.items():
        account = (family.last or ring.base).dump_account(family.account)
        base, burst = family.base.dump(), family.burst.dump()
        families.append(_Family(parent, account, _last(family, ring), base, burst))
    return _Ring(
        ring.tier,
        ring.fairness,
        ring.floor,
        ring.credit,
        ring.base.dump(),
        ring.burst.dump(),
        queues,
        families,
    )


def _last(member: TenantQueue | Family, home: Ring | Family) -> int:
    if member.last is None:
        return 0
    return 1 if member.last is home.base else 2


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
    state.pauses = {(tenant, at): until for tenant, at, until in dumped.pauses}
    for dumped_pool in dumped.pools:
        pool = PoolState(dumped_pool.name, dumped_pool.endpoint, dumped_pool.prefetch, state.parts)
        state.pools[pool.name] = pool
        _load_pool(state, pool, dumped_pool)
    state.recent = Recent(dumped.recent)
    state.aliases = OrderedDict(dumped.aliases)
    state.cancels = {
        (topic, partition): dict.fromkeys(at) for topic, partition, at in dumped.cancels
    }
    state.marks = {
        mark.key: (mark.status, mark.attempt, mark.not_before_ms, mark.cancelled)
        for mark in dumped.lives
    }
    return state, offsets


def _load_pool(state: State, pool: PoolState, dumped: _Pool) -> None:
    pool.learned.learned_us, pool.learned.learned_tokens = dumped.learned
    for tenant, us, tokens in dumped.uses:
        use = pool.uses[tenant] = Use(tenant)
        use.learned_us, use.learned_tokens = us, tokens
    for use in list(pool.uses.values()):
        limit(state, pool, use)
    for dumped_ring in dumped.rings:
        _load_ring(state, pool, dumped_ring)
    pool.has_floors = any(ring.floor for ring in pool.rings.values())
    for dumped_lane in dumped.lanes:
        lane = Lane()
        lane.slots = dumped_lane.slots
        for dumped_flight in dumped_lane.flights:
            costs = [cost for _, cost in dumped_flight.charged]
            flight = Flight([], costs, dumped_flight.unit)
            state.flights.append((flight, [key for key, _ in dumped_flight.charged]))
            flight.started = dumped_flight.started
            lane.flights[dumped_flight.number] = flight
        pool.lanes.append(lane)
    pool.measure()


def _load_ring(state: State, pool: PoolState, dumped: _Ring) -> None:
    ring = Ring(pool, dumped.tier, dumped.fairness)
    ring.floor, ring.credit = dumped.floor, dumped.credit
    pool.rings[dumped.tier] = ring
    ring.base.load(dumped.base)
    ring.burst.load(dumped.burst)
    for dumped_family in dumped.families:
        family = family_of(state, ring, pool.uses[dumped_family.parent])
        family.base.load(dumped_family.base)
        family.burst.load(dumped_family.burst)
        ring.base.load_account(family.account, dumped_family.account)
        family.last = _at(ring, dumped_family.last)
    for dumped_queue in dumped.queues:
        use = pool.uses[dumped_queue.tenant]
        queue = TenantQueue(use, pool.endpoint.name, dumped.tier, ring)
        ring.queues[dumped_queue.tenant] = queue
        use.queues.append(queue)
        queue.account = ring.base.account()
        join(state, queue)
        ring.base.load_account(queue.account, dumped_queue.account)
        queue.last = _at(queue.family or ring, dumped_queue.last)


def _at(home: Ring | Family, last: int) -> Selector | None:
    return (None, home.base, home.burst)[last]
