"""Bodies of requests that have not ended: as many as fit a budget, the others are in the log.

A pick never depends on what is here: the core decides by metadata, then `take` hands out the
bodies that the records of the cycle need and reads again those that are not here.

What is kept. A body that comes while there is room stays. When the budget is used up, every
queue keeps what it sends first, as much as its pace asks for, and has a horizon: what comes
behind it goes late and is dropped as soon as room is short, what comes before it stays. What
is read again is read in large pieces: along with the bodies that are missing comes what all
queues need next (`scheduler.ahead`), and what else waits in the same pieces of the log while
there is room.
"""

from collections.abc import Container, Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from typing import NamedTuple

from scheduler.ahead import BODY_OVERHEAD, Pace, Pass, Resident, Spans, spans_of
from scheduler.core.state import State
from scheduler.core.tenants import OFFSET_BITS, OFFSET_MASK, Live, Status, TenantQueue
from scheduler.inputs import Body, read_request
from scheduler.ports import Meter
from schemas.codec import passed_through
from schemas.log import Log, LogError, Record, UnavailableError

#: What Python's objects around one header that passes through take.
HEADER_OVERHEAD = 200
#: Most that is read ahead at once: about half a second of reading, nothing is picked meanwhile.
AHEAD_BYTES = 64_000_000
#: Two pieces of the log are read as one when no more is between them: a client that begins
#: anew costs about as much.
MERGE_BYTES = 4_000_000
#: A piece of the log of which less than one part in so many is needed is scattered: then more
#: is read ahead, since the whole piece is read anyway.
SCATTERED = 4
#: A queue up to so long is picked soon: what comes for it is not dropped at once.
SHORT = 64
#: When something has to go, so many parts of the budget become free: what all queues hold is
#: looked through for it, about a microsecond each.
FREED = 8
#: Records of one poll, how long it waits, and how many in a row may stay empty.
POLL_RECORDS = 10_000
POLL_S = 0.1
SILENT_POLLS_MAX = 300

_VALUE, _HEADERS = itemgetter(0), itemgetter(1)


class Limits(NamedTuple):
    """What a scheduler may hold in memory, all its shards together."""

    body_bytes: int = 1 << 30  #: of bodies, with what Python needs around them
    live_max: int = 8_000_000  #: requests that have not ended, about 0.7 kB each without bodies


#: Where nothing else is said.
USUAL = Limits()


class LostBodiesError(LogError):
    """Bodies of requests that have not ended are not in the log any more."""


class Bodies:
    """Bodies by key (`schemas.records.pack_key`).

    Between two cycles, after `fit`, they take at most `budget` bytes.

    Args:
        log: where the requests are.
        budget: bytes, with what Python needs around them.
    """

    def __init__(self, log: Log, budget: int = USUAL.body_bytes) -> None:
        self._log = log
        self.budget = budget
        self.resident_bytes = 0
        self.dropped = 0  #: bodies that were let go while their requests were live
        self.read_again = 0  #: bodies that were needed and had to be read again
        self.read_bytes = 0  #: ... and what was read for them, neighbours included
        self._told = (0, 0, 0)
        self._state: State | None = None
        self._kept: dict[int, Body] = {}
        self._pace = Pace()
        self._is_tight = False  #: whether bodies of live requests are missing
        #: while it is: by queue, the order from which on bodies that come go late; none: none do
        self._horizons: dict[TenantQueue, int] = {}
        self._fresh: list[int] = []  #: came since the last look at what goes late

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._kept)

    def __contains__(self, key: int) -> bool:
        """Whether a body is in memory."""
        return key in self._kept

    def counted(self) -> int:
        """What `resident_bytes` has to be, counted anew."""
        return _weight([*self._kept.values()])

    def follow(self, state: State) -> None:
        """Look requests up in this state from now on: nothing is dropped before."""
        self._state = state
        self.fit(len(state.ids))

    # --- in

    def keep_all(self, keys: Sequence[int], bodies: Sequence[Body]) -> None:
        """Take in what was just read, until `fit` is called at least; none may be here yet."""
        self._kept.update(zip(keys, bodies, strict=True))
        self.resident_bytes += _weight(bodies)
        if self._is_tight:
            self._fresh += keys

    # --- out

    def take(self, keys: Sequence[int]) -> list[Body]:
        """Bodies of requests that a cycle's records need, in the order of the keys.

        They stay, for the case that they are handed back, but not all when room is short.

        Raises:
            LostBodiesError: the log does not hold one any more.
            PositionLostError: likewise.
            UnavailableError: the log does not answer.
        """
        kept = self._kept
        if not self._is_tight:
            try:
                return [kept[key] for key in keys]
            except KeyError:
                self._is_tight = True
        state = self._state
        if state is not None:
            self._pace.count([live for key in keys if (live := state.find(key))])
        found = {key: body for key in keys if (body := kept.get(key))}
        missing = [key for key in keys if key not in found]
        if missing:
            found.update(self._read_again(missing))
        return [found[key] for key in keys]

    def drop(self, key: int) -> None:
        """Forget the body of a request that has ended."""
        self.drop_all((key,))

    def drop_all(self, keys: Sequence[int]) -> None:
        """Forget the bodies of requests that have ended; some may not be here."""
        pop = self._kept.pop
        self.resident_bytes -= _weight([body for key in keys if (body := pop(key, None))])

    def fit(self, live: int) -> None:
        """Let go of what is above the budget; `live` is how many requests have not ended."""
        if self.resident_bytes > self.budget:
            self._drop_late()
            if self.resident_bytes > self.budget:
                self._let_go(self.budget, ())
        if self._is_tight and len(self) >= live:
            self._is_tight = False
            self._horizons, self._fresh = {}, []

    def _drop_late(self) -> None:
        """Drop what came behind its queue's horizon, unless the queue is short."""
        state, horizons = self._state, self._horizons
        assert state is not None
        late = [
            key
            for key in self._fresh
            if (live := state.find(key))
            and live.order >= horizons.get(live.queue, live.order + 1)
            and live.queue.count > SHORT
        ]
        self._fresh = []
        self._drop_live(late)

    def _let_go(self, most: int, needed: Container[int]) -> None:
        """Drop what goes last, but nothing that is needed, until less than `most` bytes are left.

        Each queue keeps what it sends first, by its pace; what is behind gets its horizon.
        """
        state = self._state
        assert state is not None
        freed = self.budget // FREED
        room = most - freed
        queues: dict[TenantQueue, Resident] = {}
        gone: list[int] = []
        away: list[int] = []  # with workers: needed again only if they are handed back
        for key in self._kept:
            live = state.find(key)
            if live is None:
                gone.append(key)
            elif key in needed:
                room -= live.size + BODY_OVERHEAD
            elif live.status not in (Status.WAITING, Status.HELD):
                away.append(key)
                freed -= live.size + BODY_OVERHEAD
            else:
                resident = queues.get(live.queue)
                if resident is None:
                    resident = queues[live.queue] = Resident()
                resident.orders.append(live.order)
                resident.size += live.size + BODY_OVERHEAD
        if freed < 0:
            gone += away
        else:
            room -= self.budget // FREED - freed
        late, self._horizons = self._pace.cut(queues, max(0, room))
        self._drop_live(gone + late)
        while self.resident_bytes > most and self._kept:  # headers count as well
            self._drop_live([next(reversed(self._kept))])
        self._is_tight = True
        self._fresh = []

    def _drop_live(self, keys: Sequence[int]) -> None:
        """Drop bodies that will be needed again."""
        before = len(self._kept)
        self.drop_all(keys)
        self.dropped += before - len(self._kept)

    # --- again

    def _read_again(self, missing: list[int]) -> dict[int, Body]:
        """Read what is missing, and with it what is needed next; nothing else is picked now."""
        state = self._state
        assert state is not None
        spans, planned = self._plan(state, missing)
        found: dict[int, Body] = {}
        wanted = set(missing)
        indexes = state.part_of
        # What is planned and has not come yet keeps its place: a neighbour in it would be let go
        # only after the cycle, and with it the oldest of what was read ahead, which goes next.
        due = sum(planned.values()) + len(planned) * BODY_OVERHEAD
        for positions in spans.passes():
            for record in self._read(positions):
                key = indexes[record.topic, record.partition] << OFFSET_BITS | record.offset
                if not _is_its(record, state.find(key)):
                    continue  # another's, in a topic that was made again: told as lost
                if key in wanted:
                    found[key] = _body_of(record)
                elif key in planned:
                    due -= self._put_ahead(key, _body_of(record))
                elif self._is_welcome(key, due + len(record.value)):
                    self._put_ahead(key, _body_of(record))
        if len(found) != len(wanted):
            lost = sorted(wanted - found.keys())
            raise LostBodiesError(
                f"{_place(state, lost[0])}: the bodies of {len(lost)} accepted requests, up to "
                f"{_place(state, lost[-1])}, are not in the log any more"
            )
        self.read_again += len(missing)
        return found

    def _plan(self, state: State, missing: list[int]) -> tuple[Spans, dict[int, int]]:
        """Pieces to read, and what of it is read ahead: key and size; there is room for it.

        Nothing is unless a queue has run out of what was kept. When it is scattered over the log,
        as much as there is room for is read ahead: the whole log is read each time, about as
        often as the budget has to be filled anew.
        """
        lives = [live for key in missing if (live := state.find(key))]
        sizes = {live.key: live.size for live in lives}
        early = [live for live in lives if live.order < self._horizons.get(live.queue, 0)]
        if len(early) == len(missing):
            return spans_of(state, sizes, MERGE_BYTES), {}
        usual = sum(sizes.values()) // len(sizes) if sizes else MERGE_BYTES
        soon = min(self.budget // 2, AHEAD_BYTES)
        for size in (soon, self.budget - self.budget // 8):
            following = self._pace.following(state, size)
            planned = {key: weight for key, weight in following.items() if key not in self._kept}
            needed = dict.fromkeys(missing, usual) | sizes | planned
            spans = spans_of(state, needed, min(MERGE_BYTES, size // 8))
            if spans.read_bytes <= SCATTERED * spans.needed_bytes:
                break
        self._pace.fade()
        room = self.budget - sum(planned.values()) - len(planned) * BODY_OVERHEAD
        if self.resident_bytes > room:
            self._let_go(room, following)
        self._raise_horizons(state, following)
        return spans, planned

    def _raise_horizons(self, state: State, following: dict[int, int]) -> None:
        """What comes before the last that was read ahead for its queue goes early."""
        last: dict[TenantQueue, tuple[int, int]] = {}
        for key in following:  # of a queue in its order
            live = state.find(key)
            if live is not None:
                _, count = last.get(live.queue, (0, 0))
                last[live.queue] = live.order, count + 1
        for queue, (order, count) in last.items():
            if count < queue.count:
                self._horizons[queue] = max(self._horizons.get(queue, 0), order)
            else:
                self._horizons.pop(queue, None)

    def _is_welcome(self, key: int, size: int) -> bool:
        """Whether a neighbour of what is read again is kept: it is live, and there is room.

        `size` is with what is still to come.
        """
        if self.resident_bytes + size > self.budget - self.budget // 8:
            return False  # the rest is for what comes
        state = self._state
        assert state is not None
        live = state.find(key)
        return live is not None and live.status in (Status.WAITING, Status.HELD)

    def _put_ahead(self, key: int, body: Body) -> int:
        """Bytes that it takes, 0 when it was there."""
        if key in self._kept:
            return 0
        weight = _weight((body,))
        self._kept[key] = body
        self.resident_bytes += weight
        return weight

    def _read(self, positions: Pass) -> Iterator[Record]:
        """Every record of these ranges [start, stop), and some beyond them."""
        with closing(self._log.reader()) as reader:
            reader.assign({partition: start for partition, (start, _) in positions.items()})
            most = min(POLL_RECORDS, sum(stop - start for start, stop in positions.values()))
            silent = 0
            while not all(reader.reached(part, stop) for part, (_, stop) in positions.items()):
                records = reader.poll(most, POLL_S)
                self.read_bytes += sum([len(record.value) for record in records])
                yield from records
                silent = 0 if records else silent + 1
                if silent == SILENT_POLLS_MAX:
                    raise UnavailableError(f"{sorted(positions)}: bodies to read again don't come")

    # --- for people

    def measure(self, meter: Meter, shard: int) -> None:
        """Tell what is here, and what happened since the last time."""
        name = str(shard)
        meter.gauge("scheduler_body_bytes", self.resident_bytes, shard=name)
        counts = self.dropped, self.read_again, self.read_bytes
        if counts == self._told:
            return
        dropped, read_again, read_bytes = self._told
        meter.count("scheduler_bodies_dropped", self.dropped - dropped, shard=name)
        meter.count("scheduler_bodies_read_again", self.read_again - read_again, shard=name)
        meter.count("scheduler_bodies_read_bytes", self.read_bytes - read_bytes, shard=name)
        self._told = counts


def _weight(bodies: Sequence[Body]) -> int:
    """Bytes that they take."""
    size = sum(map(len, map(_VALUE, bodies))) + len(bodies) * BODY_OVERHEAD
    for headers in filter(None, map(_HEADERS, bodies)):
        for name, content in headers:
            size += len(name) + len(content) + HEADER_OVERHEAD
    return size


def _is_its(record: Record, live: Live | None) -> bool:
    """Whether a record is the one that the request there was admitted from."""
    if live is None:
        return True
    meta = read_request(record)[0].meta
    return meta is not None and meta.id == live.id


def _body_of(record: Record) -> Body:
    return Body(record.value, passed_through(record.headers))


def _place(state: State, key: int) -> str:
    topic, number = state.parts[key >> OFFSET_BITS].partition
    return f"{topic}[{number}]@{key & OFFSET_MASK}"
