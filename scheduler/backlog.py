"""What is published of the backlog: a reader of the state, beside the cycles.

`note` hears of what a cycle sent and what workers said; `publish` writes, when it is due, what
`schemas.backlog` says. Nothing here changes the state, and nothing of it is decided upon: a
shard without a `Board` does none of this.

Bounded: one look takes so many queues of a pool, the next look at it goes on where it ended.
Pools are looked at in turn, one step after a cycle ends when it has taken as many queues as one
look may, and the next step is due the later the more there was to look at: so a cycle is held
up by a few milliseconds, and all of it takes a fiftieth of the time at most. With a few thousand
queues everything is fresh with every step; with more, heads say how far apart they come.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from scheduler.core.decided import BatchOut
from scheduler.core.pick.drr import DeficitRoundRobin
from scheduler.core.pick.order import HEAD_SHIFT
from scheduler.core.state import PoolState, Ring, State
from scheduler.core.tenants import Family, TenantQueue
from scheduler.pace import Pace
from scheduler.ports import Board
from schemas.backlog import (
    NO_HEAD,
    RATE_MS,
    VERSION,
    PoolBacklog,
    QueueRow,
    QueueSlice,
    TierBacklog,
    level,
    slice_name,
)
from schemas.codec import encode
from schemas.policy import CostModel
from schemas.records import Finished, WorkerRecord

#: Time between two steps, unless there is much to look at.
EVERY_MS = 200
#: An idle pool is told so often: often enough not to be taken for a dead scheduler.
IDLE_MS = 1_000
#: Queues looked at in one look; they are one slice. A step takes no further pool after so many.
QUEUES_MAX = 1_000
#: A look at a queue takes 2 to 4 us, one at a pool as long as some queues': with so many in a
#: millisecond of the time until the next step, all looks take a fiftieth of the time.
QUEUES_PER_MS = 5
_POOL_QUEUES = 30
#: What was taken lately: the last few seconds.
LATELY_MS = 20_000


#: Topic, partition and the next offset to read of each.
Positions = tuple[tuple[str, int, int], ...]


class _Pool:
    """What is remembered of one pool between looks."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.picked: dict[str, int] = {}  #: cost, by tier, since the last look
        self.taken: dict[str, int] = {}  #: in 1,000 s, lately
        self.looked_ms = 0
        self.looked = 0  #: queues' worth of work that the last look was
        self.posted_ms = 0
        self.is_changed = False  #: a worker came or went
        self.left: list[TenantQueue] = []  #: queues of this round that were not looked at yet
        self.stamps: list[int] = []
        self.index = 0  #: the slice that is next
        self.levels: dict[str, _Levels] = {}  #: of the round that is complete ...
        self.building: dict[str, _Levels] = {}  #: ... and of the one under way


class _Levels:
    """Members of a ring by level, and their sums."""

    def __init__(self) -> None:
        self.sums: dict[int, list[int]] = {}
        self.count = 0
        self.work = 0
        self.families: dict[str, Family] = {}

    def add(self, count: int, work: int, weight: int) -> None:
        self.count += count
        self.work += work
        sums = self.sums.setdefault(level(work, weight), [0, 0])
        sums[0] += work
        sums[1] += weight


class Backlog:
    """Measures and publishes the pools of one shard; without a board it does nothing."""

    def __init__(self, board: Board | None = None) -> None:
        """`board` takes what is published, and never waits."""
        self._board = board
        self._pools: dict[str, _Pool] = {}
        self._stepped_ms = self._pause_ms = 0
        self._last = ""  #: the pool that was looked at last

    def turn(
        self,
        state: State,
        said: Sequence[tuple[str, int, WorkerRecord]],
        batches: Sequence[BatchOut],
        now_ms: int,
    ) -> None:
        """After a cycle: take in what workers said and what was sent, and publish if it is due.

        The clock may be set back: then it is due at once.
        """
        if self._board is None:
            return
        self._note(state, said, batches, now_ms)
        if 0 <= now_ms - self._stepped_ms < self._pause_ms:
            return
        looked = self._step(state, now_ms)
        self._stepped_ms, self._pause_ms = now_ms, max(EVERY_MS, looked // QUEUES_PER_MS)

    def _step(self, state: State, now_ms: int) -> int:
        """Look at the pools that are next; returns how many queues' worth of work that was."""
        names = list(state.pools)
        for gone in [name for name in self._pools if name not in state.pools]:
            del self._pools[gone]
        start = names.index(self._last) + 1 if self._last in state.pools else 0
        read = tuple([(*part.partition, part.position) for part in state.parts])
        looked = 0
        for name in names[start:] + names[:start]:
            if looked >= QUEUES_MAX:
                break
            known = self._pool(name)
            known.looked = self._look(state.pools[name], known, read, now_ms)
            looked += known.looked
            self._last = name
        return looked

    def _every_ms(self, *, is_idle: bool) -> int:
        """How far apart the heads of a pool come, as there is to look at now."""
        looked = sum([known.looked for known in self._pools.values()])
        return max(IDLE_MS if is_idle else EVERY_MS, looked // QUEUES_PER_MS)

    def _note(
        self,
        state: State,
        said: Sequence[tuple[str, int, WorkerRecord]],
        batches: Sequence[BatchOut],
        now_ms: int,
    ) -> None:
        for name, lane, record in said:
            pool = state.pools.get(name)
            if pool is None or lane >= len(pool.lanes):
                continue
            known = self._pool(name)
            pace, known.is_changed = known.pace, True
            if isinstance(record, Finished):
                pace.done(lane, record.number, pool.lanes[lane].slots, now_ms)
            else:
                pace.heard(lane, now_ms)
        for batch in batches:
            held = state.pools[batch.pool].lanes[batch.lane]
            flight = held.flights.get(batch.number)
            if flight is None:
                continue
            known = self._pool(batch.pool)
            known.pace.sent(batch.lane, batch.number, held.slots, sum(flight.costs), now_ms)
            if len(state.pools[batch.pool].rings) == 1:
                continue  # there is no other tier that it would be taken from
            picked = known.picked
            for live, cost in zip(flight.lives, flight.costs, strict=True):
                tier = live.queue.tier
                picked[tier] = picked.get(tier, 0) + cost

    def _pool(self, name: str) -> _Pool:
        return self._pools.get(name) or self._pools.setdefault(name, _Pool())

    # --- looks

    def _look(self, pool: PoolState, known: _Pool, read: Positions, now_ms: int) -> int:
        """Publish a pool; returns how many queues' worth of work that was."""
        running = sum([len(lane.flights) for lane in pool.lanes])
        is_idle = not running and not any(ring.active for ring in pool.rings.values())
        since_ms = now_ms - known.posted_ms
        is_told = known.stamps == [known.posted_ms] and not known.is_changed
        if is_idle and is_told and 0 <= since_ms < IDLE_MS:
            return 1
        known.is_changed = False
        self._take_stock(pool, known, now_ms)
        looked = self._look_at_queues(pool, known, now_ms)
        head = replace(
            self._head(pool, known, running, now_ms),
            read=read,
            every_ms=self._every_ms(is_idle=is_idle),
        )
        known.posted_ms = now_ms
        assert self._board is not None
        self._board.post(pool.name, encode(head))
        return looked + _POOL_QUEUES + len(pool.lanes)

    def _take_stock(self, pool: PoolState, known: _Pool, now_ms: int) -> None:
        """Bring what was measured up to now."""
        passed_ms = min(max(1, now_ms - known.looked_ms), LATELY_MS)
        known.looked_ms = now_ms
        for tier in pool.rings:
            lately = known.taken.get(tier, 0)
            now = known.picked.get(tier, 0) * RATE_MS // passed_ms
            known.taken[tier] = lately + (now - lately) * passed_ms // LATELY_MS
        known.picked.clear()
        for number, lane in enumerate(pool.lanes):
            known.pace.agree(number, lane, now_ms)

    def _look_at_queues(self, pool: PoolState, known: _Pool, now_ms: int) -> int:
        """Write the next slice of the queues; a round begins with those that wait by then."""
        if not known.left:
            known.left = [queue for ring in pool.rings.values() for queue in ring.active.values()]
            known.index = 0
            known.building = {tier: _Levels() for tier in pool.rings}
        part, known.left = known.left[:QUEUES_MAX], known.left[QUEUES_MAX:]
        rows = _rows(part, pool, known.building)
        known.stamps[known.index : known.index + 1] = [now_ms]
        written = QueueSlice(VERSION, now_ms, tuple(rows))
        assert self._board is not None
        self._board.post(slice_name(pool.name, known.index), encode(written))
        known.index += 1
        if not known.left:
            known.levels = known.building
            del known.stamps[known.index :]
        return len(part)

    def _head(self, pool: PoolState, known: _Pool, running: int, now_ms: int) -> PoolBacklog:
        pace, prefetch = known.pace, pool.prefetch
        slots = lanes = room = 0
        residual_ms = -1
        for number, lane in enumerate(pool.lanes):
            if not lane.slots or pace.is_silent(number, now_ms):
                continue
            lanes += 1
            slots += lane.slots
            room += max(0, lane.slots + prefetch - len(lane.flights))
            next_ms = pace.next_end_ms(number, now_ms)
            residual_ms = next_ms if residual_ms < 0 else min(residual_ms, next_ms)
        endpoint = pool.endpoint
        wait_ms = endpoint.batch_wait_ms if endpoint.batch_requests > 1 else 0
        return PoolBacklog(
            v=VERSION,
            pool=pool.name,
            at_ms=now_ms,
            unit=pool.unit,
            rate=pace.rate(slots),
            residual_ms=wait_ms if room else max(0, residual_ms),
            service_ms=pace.service_ms,
            spread_ms=pace.spread_ms,
            slots=slots,
            lanes=lanes,
            room=room,
            running=running,
            us_per_token=pool.learned.learned_us // max(1, pool.learned.learned_tokens),
            tiers=tuple(_tier(ring, known) for ring in pool.rings.values()),
            stamps=tuple(known.stamps),
        )


def _tier(ring: Ring, known: _Pool) -> TierBacklog:
    """One tier; what was looked at some time ago is brought to what waits now."""
    levels = known.levels.get(ring.tier) or _Levels()
    count, work, sums = levels.count, levels.work, levels.sums
    if len(known.stamps) > 1 and levels.count:
        count = ring.waiting
        work = work * count // levels.count
    told = tuple(
        (step, total * work // max(1, levels.work), weight)
        for step, (total, weight) in sorted(sums.items())
    )
    return TierBacklog(ring.tier, count, work, known.taken.get(ring.tier, 0), ring.floor, told)


def _rows(part: list[TenantQueue], pool: PoolState, building: dict[str, _Levels]) -> list[QueueRow]:
    """Look at queues, one after the other, as fast as it goes; count them among their ring's."""
    ranks = {tier: rank for rank, tier in enumerate(pool.rings)}
    quantum = max(1, pool.endpoint.quantum)
    rows = []
    for queue in part:
        tier, count, use, family = queue.tier, queue.count, queue.use, queue.family
        rank = ranks.get(tier)
        if rank is None or not count or queue.ring is None or queue.ring.pool is not pool:
            continue  # it emptied meanwhile, or is none of the pool's any more
        account = queue.account
        weight = account.increment // quantum or 1
        work = _work(queue.inputs, queue.tokens, queue, pool)
        debt = _owed(queue)
        if family is not None:
            debt += _owed(family)
        head = NO_HEAD if use.aging_ms else queue.head().order >> HEAD_SHIFT
        row = QueueRow(rank, queue.tenant, count, queue.tokens, work, debt, weight, head)
        rows.append(row)
        if use.is_paused:
            continue
        if family is None:
            building[tier].add(count, work, weight)
        else:
            _count_family(building[tier], family, queue, pool)
    return rows


def _count_family(levels: _Levels, family: Family, child: TenantQueue, pool: PoolState) -> None:
    """Count a family, once, among the members of its ring."""
    name = family.use.tenant
    if name not in levels.families:
        levels.families[name] = family
        work = _work(family.inputs, family.tokens, child, pool)
        weight: int = family.account.increment // max(1, pool.endpoint.quantum)
        levels.add(family.count, work, max(1, weight))


def _work(inputs: int, tokens: int, queue: TenantQueue, pool: PoolState) -> int:
    """Work in the pool's unit, as picks would be charged."""
    if pool.unit is CostModel.REQUEST:
        return inputs
    return tokens if pool.unit is CostModel.TOKEN else queue.use.milliseconds(tokens)


def _owed(member: TenantQueue | Family) -> int:
    """What deficit round robin lets it wait for; other selectors have no debts."""
    selector = member.seated
    if not isinstance(selector, DeficitRoundRobin) or member.account.deficit >= 0:
        return 0
    return max(0, -selector.dump_account(member.account)[0])
