"""One deployment on a real Kafka, with shards and lanes that a test moves by hand.

Run as a program (`python -m tests.support.schedulers BOOTSTRAP PREFIX INSTANCE`) it is a
scheduler that kills itself with an open transaction, at the first one with a batch in it.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from adapters.clock import SystemClock
from adapters.kafka import KafkaLog
from fairlane.publish import publish_policy
from scheduler.core.snapshot import dump
from scheduler.fold import Fold
from scheduler.ports import Clock
from scheduler.recovery import recover
from scheduler.service import Scheduler
from scheduler.shard import Shard
from schemas.codec import decode_header, encode, header
from schemas.log import Headers, Log, Partition, Record, TransactionalProducer
from schemas.policy import Policy
from schemas.records import VERSION, Batch, Cancel, Dead, LaneRecord, Request, Result
from schemas.topics import Topics
from tests.support.lanes import CountingMeter, Holder, ListedNotes, ManualSlots
from tests.support.policies import embed_policy
from tests.support.processes import DEADLINE_S
from workers.lane import Lane
from workers.names import LaneNames
from workers.phase import Phase

POOL = "chat"
TIER = "gold"
TENANT = "acme"
#: Longer than any condition takes on a machine that is busy with other suites.
GIVE_UP_S = 60.0
_POLL_S = 0.02

Commit = Callable[[], None]


class Staged:
    """A log whose transactional producers stop at `init` and `commit` for what a test wants.

    Each entry of `before_init` runs before one init. Each of `at_commit` stands for one
    commit: it is given the producer and does with it what it wants.
    """

    def __init__(self, inner: Log) -> None:
        self._inner = inner
        self.before_init: list[Callable[[], None]] = []
        self.at_commit: list[Callable[[TransactionalProducer], None]] = []

    def transactional(self, transactional_id: str) -> "StagedProducer":
        return StagedProducer(self._inner.transactional(transactional_id), self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class StagedProducer:
    """A transactional producer that asks its log's stage directions first."""

    def __init__(self, inner: TransactionalProducer, stage: Staged) -> None:
        self._inner = inner
        self._stage = stage

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        if self._stage.before_init:
            self._stage.before_init.pop(0)()
        self._inner.init(meanwhile)

    def commit(self) -> None:
        if self._stage.at_commit:
            self._stage.at_commit.pop(0)(self._inner)
        else:
            self._inner.commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Deployment:
    """Topics under one prefix with a policy: what callers, workers and readers do with them."""

    def __init__(self, bootstrap: str, prefix: str, policy: Policy | None = None) -> None:
        self.bootstrap = bootstrap
        self.log = KafkaLog(bootstrap, replication=1)
        self.topics = Topics(prefix)
        self.policy = policy or embed_policy(tiers=(TIER,))
        publish_policy(self.log, self.topics, self.policy)
        self.clock: Clock = SystemClock()
        self.notes = ListedNotes()
        self.meter = CountingMeter()
        self._producer = self.log.producer()
        self._closers: list[Callable[[], None]] = []

    @property
    def requests(self) -> Partition:
        """Where the tenant's requests to the pool stand."""
        number = self.topics.request_partition(POOL, TENANT, self.policy)
        return self.topics.requests(TIER), number

    @property
    def env(self) -> dict[str, str]:
        """What a process of this deployment is told."""
        return {
            "FAIRLANE_KAFKA": self.bootstrap,
            "FAIRLANE_PREFIX": self.topics.prefix,
            "FAIRLANE_REPLICATION": "1",
        }

    def close(self) -> None:
        """Free every client."""
        for close in reversed(self._closers):
            close()
        self._producer.close()
        self.log.close()

    # --- what callers do

    def submit(
        self,
        request_id: str,
        *,
        tenant: str = TENANT,
        endpoint: str = POOL,
        body: bytes = b"body",
        deadline_ms: int = 0,
    ) -> int:
        """Publish a request as the ingress does; returns its offset."""
        meta = Request(VERSION, request_id, tenant, endpoint, deadline_ms=deadline_ms)
        known = self.policy.endpoint(endpoint)
        pool = known.pool if known else POOL
        number = self.topics.request_partition(pool, TENANT, self.policy)
        return self.produce((self.topics.requests(TIER), number), body, header(meta))

    def cancel(self, offset: int) -> None:
        """Ask for the end of the request at this offset."""
        record = encode(Cancel(VERSION, *self.requests, offset))
        self.produce((self.topics.control, 0), record)

    def produce(
        self,
        partition: Partition,
        value: bytes,
        headers: Headers = (),
        key: bytes | None = None,
    ) -> int:
        """Publish any record outside of transactions; returns its offset."""
        offsets: list[int | None] = []
        self._producer.send(
            *partition,
            value,
            key=key,
            headers=headers,
            on_delivery=lambda offset, _: offsets.append(offset),
        )
        assert self._producer.flush(GIVE_UP_S) == 0
        assert offsets[0] is not None, f"{partition} refused the record"
        return offsets[0]

    # --- what schedulers and workers do

    def shard(self, log: Log | None = None) -> Shard:
        """Make a scheduler of the one shard; nothing is taken over yet."""
        made = Shard(
            log or self.log,
            self.topics,
            0,
            clock=self.clock,
            meter=self.meter,
            notes=self.notes,
        )
        self._closers.append(made.close)
        return made

    def running(self, log: Log | None = None) -> Shard:
        """Make a shard that owns the log and has read all that is there."""
        made = self.shard(log)
        made.take_over()
        self.quiet(made)
        return made

    def scheduler(self, instance: str | None = None, log: Log | None = None) -> Scheduler:
        """Make the whole service, that mends what can be mended."""
        made = Scheduler(
            log or self.log,
            self.topics,
            clock=self.clock,
            meter=self.meter,
            notes=self.notes,
            instance=instance,
            idle_wait_s=_POLL_S,
        )
        self._closers.append(made.close)
        return made

    def lane(self, slots: int = 4) -> Holder:
        """Make a worker of the pool's first lane; it has taken nothing yet."""
        made = ManualSlots(slots)
        advice = self.log.producer()
        lane = Lane(
            self.log,
            LaneNames(self.topics, POOL, 0),
            made,
            advice,
            self.clock,
            self.meter,
            self.notes,
        )
        self._closers += [advice.close, lane.drop]
        return Holder(lane, made)

    def serving(self, slots: int = 4) -> Holder:
        """Make a worker that holds the lane and has said so."""
        made = self.lane(slots)
        self.until(lambda: made.lane.phase is Phase.SERVE and made.lane.is_idle, made)
        return made

    def quiet(self, shard: Shard) -> None:
        """Turn a shard until it has read all inputs that are there now."""
        assert shard.state.policy is not None or shard.turn(GIVE_UP_S), "no policy came"
        inputs = [self.requests, (self.topics.control, 0), (self.topics.workers(POOL), 0)]
        last = {(r.topic, r.partition): r.offset for r in self._read(inputs)}

        def has_read_all() -> bool:
            positions = dict(shard.state.positions)
            positions.update((part.partition, part.position) for part in shard.state.parts)
            return all(positions.get(partition, 0) > at for partition, at in last.items())

        self.until(has_read_all, shard)
        while shard.turn(_POLL_S):
            pass

    def until(self, is_so: Callable[[], bool], *movers: Shard | Scheduler | Holder) -> None:
        """Turn shards, schedulers and lanes until something is so; lanes end what they run."""
        give_up = time.monotonic() + GIVE_UP_S
        while not is_so():
            assert time.monotonic() < give_up, f"it never came to be; notes: {self.notes.events}"
            for mover in movers:
                match mover:
                    case Holder():
                        mover.lane.turn(_POLL_S)
                    case Scheduler():
                        mover.turn()
                    case _:
                        mover.turn(_POLL_S)

    def serve_all(self, expected: Sequence[str], *movers: Shard | Scheduler | Holder) -> None:
        """Turn until exactly these ids have ended, each once; the lanes end all they run."""

        def have_ended() -> bool:
            for mover in movers:
                if isinstance(mover, Holder):
                    mover.slots.release()
            return sorted(result.id for result in self.results()) == sorted(expected)

        self.until(have_ended, *movers)

    # --- what is committed

    def recovered(self) -> Fold:
        """Rebuild the shard's memory from the log, for comparison."""
        return recover(self.log, self.topics, 0, self.notes)

    def recovers_as(self, shard: Shard) -> bool:
        """Whether the live state equals the log's, byte for byte.

        Nothing is initialised here, and a reader sees a commit some milliseconds late: read
        again until the last decision is there.
        """
        deadline = time.monotonic() + DEADLINE_S
        recovered = self.recovered().state
        while recovered.seq < shard.state.seq and time.monotonic() < deadline:
            recovered = self.recovered().state
        return dump(shard.state) == dump(recovered)

    def results(self) -> list[Result]:
        """Every committed result."""
        return [decode_header(record, Result) for record in self._all(self.topics.results)]

    def dead(self) -> list[tuple[Dead, bytes]]:
        """Everything set aside, with the original's value."""
        return [(decode_header(r, Dead), r.value) for r in self._all(self.topics.dead)]

    def dispatched(self) -> list[str]:
        """Ids in committed batches of the first lane, in order, repeated where they repeat."""
        return self._ids([(self.topics.batches(POOL), 0)])

    def dispatched_everywhere(self) -> list[str]:
        """Ids in committed batches of all pools, repeated where they repeat."""
        pools = self.policy.pools
        return self._ids(
            [(self.topics.batches(pool.name), n) for pool in pools for n in range(pool.lanes)]
        )

    def _ids(self, partitions: Sequence[Partition]) -> list[str]:
        records = self._read(partitions)
        said: list[LaneRecord] = [decode_header(record, LaneRecord) for record in records]
        return [item.id for batch in said if isinstance(batch, Batch) for item in batch.items]

    def open_end(self, topic: str = "") -> int:
        """End of the pool's first lane, or of a topic, with open transactions counted in."""
        reader = self.log.reader(committed_only=False)
        try:
            return reader.bounds((topic or self.topics.batches(POOL), 0)).end
        finally:
            reader.close()

    def _all(self, topic: str) -> list[Record]:
        return self._read([(topic, number) for number in range(self.policy.topology.buckets)])

    def _read(self, partitions: Sequence[Partition]) -> list[Record]:
        """Every committed record of the partitions."""
        reader = self.log.reader()
        try:
            bounds = {partition: reader.bounds(partition) for partition in partitions}
            reader.assign({partition: found.low for partition, found in bounds.items()})
            records: list[Record] = []
            while not all(reader.reached(at, found.end) for at, found in bounds.items()):
                records += reader.poll(1_000, 0.1)
        finally:
            reader.close()
        return records


def _die(bootstrap: str, prefix: str, instance: str) -> None:
    """Be a scheduler that is killed with a batch in its open transaction."""
    stage = Staged(KafkaLog(bootstrap))
    meter = CountingMeter()
    scheduler = Scheduler(
        stage,
        Topics(prefix),
        clock=SystemClock(),
        meter=meter,
        notes=ListedNotes(),
        instance=instance,
    )

    def kill(producer: Any) -> None:
        shard = scheduler.shards[0]
        if not any(lane.flights for lane in shard.state.pools[POOL].lanes):
            stage.at_commit.append(kill)
            producer.commit()
            return
        producer._client.flush()  # the brokers have the records
        os.kill(os.getpid(), signal.SIGKILL)

    stage.at_commit.append(kill)
    while True:
        scheduler.turn()


if __name__ == "__main__":
    _die(*sys.argv[1:])
