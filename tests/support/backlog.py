"""One shard on the log in memory with a backlog, and a worker that ends all it is sent."""

from collections.abc import Iterable
from typing import NamedTuple

from adapters.memory import MemoryLog
from fairlane.publish import publish_policy
from scheduler.bodies import Limits
from scheduler.shard import Shard
from schemas.codec import batch_bodies, decode_header, encode, header
from schemas.log import Partition
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import (
    VERSION,
    Batch,
    End,
    Finished,
    HandedBack,
    LaneRecord,
    Outcome,
    Request,
    Result,
    Seen,
    WorkerRecord,
)
from schemas.topics import Topics
from tests.support.lanes import CountingMeter, ListedNotes

POOL = "embed"
TIER = "gold"
START_MS = 1_796_000_000_000


class Sent(NamedTuple):
    """A request as a worker got it."""

    batch: int
    key: int
    id: str
    body: bytes
    headers: tuple[tuple[str, bytes], ...]


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> int:
        return self.time_ms


class Backlog:
    """The deployment: who may come in, the log, and what was sent so far."""

    def __init__(self, weights: dict[str, int], *, limits: Limits, batch: int = 32) -> None:
        self.clock = Clock()
        self.log = MemoryLog(self.clock)
        self.topics = Topics("t")
        self.policy = Policy(
            tiers=(Tier(name=TIER),),
            pools=(Pool(name=POOL),),
            endpoints=(
                Endpoint(name=POOL, pool=POOL, batch_requests=batch, batch_wait_ms=0, quantum=8),
            ),
            tenants=tuple(
                Tenant(name=name, tiers=(TIER,), weight=weight) for name, weight in weights.items()
            ),
        )
        publish_policy(self.log, self.topics, self.policy)
        self.meter, self.notes = CountingMeter(), ListedNotes()
        self._producer = self.log.producer()
        self._lane = self.log.reader()
        self._lane.assign({(self.topics.batches(POOL), 0): 0})
        self.sent: list[Sent] = []
        self.bodies: dict[str, bytes] = {}
        self.shard = self.restarted(limits)

    def restarted(self, limits: Limits) -> Shard:
        """Let another scheduler take over."""
        self.shard = Shard(
            self.log,
            self.topics,
            0,
            clock=self.clock,
            meter=self.meter,
            notes=self.notes,
            limits=limits,
        )
        self.shard.take_over()
        return self.shard

    def partition(self, tenant: str) -> Partition:
        """Where a tenant's requests stand."""
        return self.topics.requests(TIER), self.topics.request_partition(POOL, tenant, self.policy)

    def submit(
        self,
        request_id: str,
        tenant: str,
        body: bytes,
        *,
        priority: int = 0,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        """Publish a request as the ingress does."""
        meta = Request(VERSION, request_id, tenant, POOL, priority=priority)
        self.bodies[request_id] = body
        self._producer.send(
            *self.partition(tenant), body, headers=header(meta, headers), key=tenant.encode()
        )

    def say(self, record: WorkerRecord) -> None:
        """Publish as the pool's only lane does."""
        self._producer.send(self.topics.workers(POOL), 0, encode(record))

    def open_lane(self, slots: int) -> None:
        """Tell the scheduler how many batches run at once."""
        self.say(Seen(VERSION, slots))

    def receive(self) -> list[Sent]:
        """What was sent since the last time."""
        found: list[Sent] = []
        for record in self._lane.poll(10_000, 0):
            said = decode_header(record, LaneRecord)
            assert isinstance(said, Batch)
            bodies = batch_bodies(said, record.value, record.place)
            found += [
                Sent(said.number, item.key, item.id, body, item.headers)
                for item, body in zip(said.items, bodies, strict=True)
            ]
        self.sent += found
        return found

    def finish(self, sent: Iterable[Sent]) -> None:
        """End these as succeeded."""
        batches: dict[int, list[Outcome]] = {}
        for one in sent:
            batches.setdefault(one.batch, []).append(Outcome(one.key, End.SUCCEEDED))
        for number, outcomes in batches.items():
            self.say(Finished(VERSION, number, tuple(outcomes)))

    def hand_back(self, sent: Iterable[Sent]) -> None:
        """Give batches back that nobody started."""
        for number in dict.fromkeys(one.batch for one in sent):
            self.say(HandedBack(VERSION, number))

    def turn(self) -> bool:
        """One cycle; the budget holds after it, and what is counted is what is there."""
        is_busy = self.shard.turn(0)
        bodies = self.shard.bodies
        assert bodies.resident_bytes == bodies.counted() <= bodies.budget
        return is_busy

    def read_all(self) -> None:
        """Turn until nothing more is decided."""
        while self.turn():
            pass

    def drain(self) -> None:
        """Turn until nothing waits; the worker ends all that it gets."""
        while self.shard.state.ids:
            self.turn()
            received = self.receive()
            assert received, "nothing is sent any more"
            assert all(one.body == self.bodies[one.id] for one in received)
            self.finish(received)
            if self.shard.state.ids and len(received) == len(self.shard.state.ids):
                self.read_all()

    def results(self) -> list[Result]:
        """Every committed result."""
        found = []
        with_all = self.log.reader()
        topic = self.topics.results
        with_all.assign({(topic, number): 0 for number in range(self.log.partitions(topic))})
        while records := with_all.poll(10_000, 0):
            found += [decode_header(record, Result) for record in records]
        return found
