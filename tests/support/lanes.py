"""A pool's lanes on the in-process log, with a scheduler and engines moved by hand."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from adapters.memory import MemoryLog
from schemas.codec import decode_header, decode_value, header, join
from schemas.log import Log, Partition, Record, TopicSpec
from schemas.records import (
    VERSION,
    Batch,
    BatchCancel,
    Dead,
    End,
    Finished,
    HandedBack,
    Item,
    Result,
    Started,
    Usage,
    WorkerRecord,
)
from schemas.topics import Topics
from workers.engine import EngineBatch, EngineOutcome, cancelled
from workers.lane import Lane
from workers.names import LaneNames
from workers.ports import Clock, Completion

TOPICS = Topics("test")
POOL = "gpus"
BUCKETS = 2


class ManualClock:
    """Time stands until it is moved."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def advance(self, by_ms: int) -> None:
        self.time_ms += by_ms


class CountingMeter:
    """Counts by name, labels added up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self.counts[name] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts[name] = int(value)


class ListedNotes:
    """Events and their facts, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    def warning(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def echo(batch: EngineBatch, unwanted: set[int]) -> tuple[EngineOutcome, ...]:
    """Answer each request with its own body."""
    return tuple(
        cancelled()
        if request.key in unwanted
        else EngineOutcome(End.SUCCEEDED, request.body, Usage(len(request.body), 1))
        for request in batch.requests
    )


class ManualSlots:
    """Slots that finish when they are told to."""

    def __init__(self, total: int, on_start: Callable[[int], None] | None = None) -> None:
        self.total = total
        self.started: list[int] = []
        self.batches: list[EngineBatch] = []
        self.is_closed = False
        self._on_start = on_start
        self._running: dict[int, tuple[EngineBatch, set[int]]] = {}
        self._done: list[Completion] = []

    @property
    def free(self) -> int:
        return self.total - len(self._running) - len(self._done)

    @property
    def running(self) -> list[int]:
        return [batch.number for batch, _ in self._running.values()]

    def start(self, ticket: int, batch: EngineBatch) -> None:
        assert self.free > 0
        self.started.append(batch.number)
        self.batches.append(batch)
        self._running[ticket] = (batch, set())
        if self._on_start is not None:
            self._on_start(batch.number)

    def finished(self) -> list[Completion]:
        done, self._done = self._done, []
        return done

    def cancel(self, ticket: int, key: int) -> None:
        if ticket in self._running:
            self._running[ticket][1].add(key)

    def close(self) -> None:
        self.is_closed = True

    def release(self, number: int | None = None) -> None:
        """Let the engine end one batch, or all."""
        for ticket, (batch, unwanted) in list(self._running.items()):
            if number in {None, batch.number}:
                del self._running[ticket]
                self._done.append(Completion(ticket, echo(batch, unwanted)))


class Holder(NamedTuple):
    """A lane and the slots it has."""

    lane: Lane
    slots: ManualSlots

    def settle(self) -> None:
        """Turn until there is nothing to do."""
        for _ in range(100):
            if not self.lane.turn():
                return
        raise AssertionError("the lane never comes to rest")


class Lanes:
    """One pool with its topics; `dispatch` is what a scheduler does, by hand."""

    def __init__(self, log: Log, topics: Topics, clock: Clock, lanes: int) -> None:
        self.topics = topics
        self.meter = CountingMeter()
        self.notes = ListedNotes()
        self.numbers = 0
        self._log = log
        self._clock = clock
        create_topics(log, lanes, topics)
        self._scheduler = log.transactional(f"{topics.prefix}.scheduler")
        self._scheduler.init()
        self._advice = log.producer()
        self._lanes: list[Lane] = []

    def names(self, number: int = 0) -> LaneNames:
        return LaneNames(self.topics, POOL, number)

    def holder(
        self,
        slots: int = 2,
        number: int = 0,
        kind: type[Lane] = Lane,
        log: Log | None = None,
        on_start: Callable[[int], None] | None = None,
    ) -> Holder:
        """Make a lane that has touched nothing yet."""
        made = ManualSlots(slots, on_start)
        lane = kind(
            log or self._log,
            self.names(number),
            made,
            self._advice,
            self._clock,
            self.meter,
            self.notes,
        )
        self._lanes.append(lane)
        return Holder(lane, made)

    def close(self) -> None:
        """Free every client."""
        for lane in self._lanes:
            lane.drop()
        self._scheduler.close()
        self._advice.close()

    def batch(self, *ids: str, deadline_ms: int = 0, attempt: int = 0) -> tuple[Batch, bytes]:
        """Make the next batch; the body of request `x` is b"body of x"."""
        self.numbers += 1
        bodies = [f"body of {id_}".encode() for id_ in ids]
        items = tuple(
            Item(
                self.numbers * 100 + index,
                id_,
                f"tenant-{id_}",
                "embed",
                attempt,
                len(body),
                self._clock.now_ms(),
                deadline_ms,
                10,
                (("traceparent", b"00-" + id_.encode()),),
            )
            for index, (id_, body) in enumerate(zip(ids, bodies, strict=True))
        )
        batch = Batch(VERSION, 0, self.numbers, POOL, self._clock.now_ms(), items)
        return batch, join(bodies)

    def dispatch(self, *ids: str, lane: int = 0, deadline_ms: int = 0, attempt: int = 0) -> Batch:
        """Commit a batch to a lane."""
        batch, value = self.batch(*ids, deadline_ms=deadline_ms, attempt=attempt)
        self.send(value, header(batch), lane)
        return batch

    def cancel(self, batch: Batch, index: int, lane: int = 0) -> None:
        """Commit the cancel of one request of a batch."""
        cancel = BatchCancel(VERSION, batch.number, batch.items[index].key)
        self.send(b"", header(cancel), lane)

    def send(self, value: bytes, headers: Sequence[tuple[str, bytes]], lane: int = 0) -> None:
        """Commit any record to a lane."""
        self._scheduler.begin()
        self._scheduler.send(self.topics.batches(POOL), lane, value, headers=headers)
        self._scheduler.commit()

    def open_dispatch(self, *ids: str, lane: int = 0) -> tuple[Batch, Callable[[], None]]:
        """Leave a cycle open with a batch in it; returns the batch and what commits it."""
        batch, value = self.batch(*ids)
        self._scheduler.begin()
        self._scheduler.send(self.topics.batches(POOL), lane, value, headers=header(batch))
        return batch, self._scheduler.commit

    # --- what is committed

    def results(self) -> list[tuple[Result, bytes]]:
        records = read_all(self._log, self.topics.results, BUCKETS)
        return [(decode_header(record, Result), record.value) for record in records]

    def ends(self) -> dict[str, End]:
        """Ends by id; an id that ended twice fails."""
        results = self.results()
        ends = {result.id: result.end for result, _ in results}
        assert len(ends) == len(results), f"ended twice: {[r.id for r, _ in results]}"
        return ends

    def said(self, lane: int = 0) -> list[WorkerRecord]:
        """What the lane's holders said in transactions: all but the advice."""
        records = read_all(self._log, self.topics.workers(POOL), lane + 1)
        said = [decode_value(r, WorkerRecord) for r in records if r.partition == lane]
        return [record for record in said if not isinstance(record, Started)]

    def advised(self) -> list[int]:
        records = read_all(self._log, self.topics.workers(POOL), 1)
        said = [decode_value(record, WorkerRecord) for record in records]
        return [record.number for record in said if isinstance(record, Started)]

    def dead(self) -> list[tuple[Dead, bytes]]:
        records = read_all(self._log, self.topics.dead, BUCKETS)
        return [(decode_header(record, Dead), record.value) for record in records]


class LaneWorld(Lanes):
    """The same on the in-process log, under a clock moved by hand."""

    def __init__(self, lanes: int = 1) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        super().__init__(self.log, TOPICS, self.clock, lanes)


def create_topics(log: Log, lanes: int, topics: Topics = TOPICS) -> None:
    """Create the topics that a pool's workers touch."""
    log.ensure_topics(
        [
            TopicSpec(topics.batches(POOL), lanes, {}),
            TopicSpec(topics.workers(POOL), lanes, {}),
            TopicSpec(topics.results, BUCKETS, {}),
            TopicSpec(topics.dead, BUCKETS, {}),
        ]
    )


def read_all(log: Log, topic: str, partitions: int) -> list[Record]:
    """Read every committed record of a topic."""
    reader = log.reader()
    parts: list[Partition] = [(topic, number) for number in range(partitions)]
    ends = {part: reader.bounds(part) for part in parts}
    reader.assign({part: bounds.low for part, bounds in ends.items()})
    found: list[Record] = []
    while not all(
        bounds.low == bounds.end or reader.reached(part, bounds.end)
        for part, bounds in ends.items()
    ):
        found += reader.poll(1_000, 0.1)
    reader.close()
    return found


def numbers(said: Sequence[object], kind: type[Finished] | type[HandedBack]) -> list[int]:
    return [record.number for record in said if isinstance(record, kind)]
