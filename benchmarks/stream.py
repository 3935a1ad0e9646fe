"""A stream of requests for `pipeline` and `latency`: a policy, who appends, who answers.

These are processes of their own, so that none takes another's turn: `append` writes requests
as the ingress does, and `Stub` stands for all workers of the pool. It reads the headers of
committed batches, never a body, and says at once that they are finished, with true costs that
are not the estimated ones; a few batches it hands back.
"""

import struct
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum, auto
from multiprocessing.connection import Connection
from random import Random
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from schemas.codec import HEADER, encode
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import (
    PRIORITY_DEFAULT,
    VERSION,
    Batch,
    BatchCancel,
    End,
    Finished,
    HandedBack,
    Outcome,
    Request,
    Seen,
    Usage,
)
from schemas.topics import Topics

TIERS = ("gold", "silver", "bronze")
POOL, ENDPOINT, GREEDY = "gpu", "embed", "greedy"
BATCH = 32
LANES = 4
#: Batches at once in a lane: together more than a scheduler decides while a batch is away.
SLOTS = 256
BODY = b"x" * 512
TOKENS_MAX = 4_096
#: Each so many requests of a burst of the greedy tenant, whose cap is lower than the burst; one
#: that is no request; and one of a tenant for a tier that is not its own.
GREEDY_EVERY, GREEDY_BURST, GREEDY_WAITING = 8_192, 64, 8
UNREADABLE_EVERY, FOREIGN_EVERY = 4_096, 4_096
#: One batch in so many is handed back; 0: none.
HAND_BACK_EVERY = 200
#: A header that passes through: `time.monotonic_ns` of the produce call.
SENT = "sent"
STAMP = struct.Struct("<q")
#: What is due within so many seconds is appended together: waking up for each takes as much of
#: a core as the scheduler does.
STEP_S = 0.001
#: ... and at such a pace gathered for so long, milliseconds: records sent one by one keep five
#: requests away, and then the client's thread looks for room without a pause.
LINGER_FROM, LINGER_MS = 1_000, 2
#: How long anything may stand still before the run is given up.
PATIENCE_S = 60.0
#: What every client has, as the product's have (adapters.kafka_client).
CLIENT: Mapping[str, Any] = {"retry.backoff.ms": 10, "socket.nagle.disable": True, "log_level": 2}
PRODUCER: Mapping[str, Any] = {
    **CLIENT,
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
}
CONSUMER: Mapping[str, Any] = {
    **CLIENT,
    "group.id": "bench-reader",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 20_000,
}

Made = tuple[str, int, bytes, bytes]


class Count(IntEnum):
    """What processes tell each other: places in an array that they share."""

    SEEN = 0  # requests in committed batches, those of batches handed back not counted
    BATCHES = auto()
    SETTLED = auto()  # requests finished whose true cost is not what was estimated
    HANDED_BACK = auto()
    AGAIN = auto()  # requests handed back that came again
    CPU_MS = auto()  # the stub's own
    LATE_US = auto()  # how late the latest of the requests with a time was, at the most
    STARTED = auto()  # the last request of the append that runs now
    STOP = auto()


def policy(tenants: int) -> Policy:
    """Tenants in three tiers, and a greedy one; caps for all, above what they need.

    In flight a tenant may have twice its part of what the pool holds. Names are short, so that
    many fit into the one record that a policy is.
    """
    held = LANES * SLOTS * BATCH
    cap = 2 * held // tenants + BATCH
    names = [Tenant(name=f"t{n}", tiers=(TIERS[n % len(TIERS)],)) for n in range(tenants)]
    greedy = Tenant(name=GREEDY, tiers=(TIERS[-1],), waiting={ENDPOINT: GREEDY_WAITING})
    return Policy(
        tiers=tuple(Tier(name=name) for name in TIERS),
        pools=(Pool(name=POOL, lanes=LANES, prefetch=0),),
        endpoints=(
            Endpoint(
                name=ENDPOINT,
                pool=POOL,
                cost=CostModel.TOKEN,
                quantum=TOKENS_MAX,
                tokens_max=TOKENS_MAX,
                batch_requests=BATCH,
                wait_ms_max=3_600_000,
                in_flight=cap,
                burst=cap,
                waiting=1_000_000,
            ),
        ),
        tenants=(*names, greedy),
    )


class Requests:
    """Requests by number: the same number is the same request in every process."""

    def __init__(self, prefix: str, made: Policy) -> None:
        topics = Topics(prefix)
        self.topics = [topics.requests(tier) for tier in TIERS]
        self._places = [
            (
                topics.requests(tenant.tiers[0]),
                topics.request_partition(POOL, tenant.name, made),
                tenant.name,
                tenant.name.encode(),
            )
            for tenant in made.tenants
        ]
        self._random = Random(1)

    def make(self, number: int) -> Made:
        """Topic, partition, key and metadata of a request."""
        random = self._random
        if number % GREEDY_EVERY < GREEDY_BURST:
            topic, partition, tenant, key = self._places[-1]
        else:
            topic, partition, tenant, key = self._places[
                int(random.random() * (len(self._places) - 1))
            ]
        if number % UNREADABLE_EVERY == UNREADABLE_EVERY - 1:
            return topic, partition, key, b"\xc1"
        if number % FOREIGN_EVERY == FOREIGN_EVERY - 2:
            topic = next(other for other in self.topics if other != topic)
        meta = Request(
            VERSION,
            f"req_{number:026d}",
            tenant,
            ENDPOINT,
            PRIORITY_DEFAULT if number % 4 else number % 1_000,
            0 if number % 4 else int(time.time() * 1000) + 3_000_000,
            len(BODY) // 4,
            int(random.random() * 1_000),
        )
        return topic, partition, key, encode(meta)


class Append(NamedTuple):
    """Requests `first` to `first + requests` for the log.

    With `pace`, so many a second at their times (`STEP_S`), each with that of its call. With
    `ahead`, at most so many more than the stub has seen since `seen`.
    """

    kafka: str
    prefix: str
    tenants: int
    first: int
    requests: int
    pace: float = 0.0
    ahead: int = 0
    seen: int = 0


def append(order: Append, counts: Any) -> None:
    """Write requests to the request topics; a process of its own."""
    requests = Requests(order.prefix, policy(order.tenants))
    linger = 5 if not order.pace else LINGER_MS if order.pace >= LINGER_FROM else 0
    producer = Producer({**PRODUCER, "bootstrap.servers": order.kafka, "linger.ms": linger})
    last = order.first + order.requests
    producer.list_topics(timeout=30.0)  # connected before the clock starts
    counts[Count.STARTED] = last
    started, number = time.monotonic(), order.first
    while number < last and not counts[Count.STOP]:
        stop = min(number + 1_000, last)
        if order.pace:
            passed_s = time.monotonic() - started
            stop = min(stop, order.first + int(passed_s * order.pace) + 1)
            late_s = passed_s - (number - order.first) / order.pace
            counts[Count.LATE_US] = max(counts[Count.LATE_US], int(late_s * 1e6))
        if order.ahead:
            stop = min(stop, order.first + order.ahead + counts[Count.SEEN] - order.seen)
        for one in range(number, stop):
            topic, partition, key, meta = requests.make(one)
            headers: list[tuple[str, str | bytes | None]] = [(HEADER, meta)]
            if order.pace:
                headers.append((SENT, STAMP.pack(time.monotonic_ns())))
            produce(producer, topic, partition, BODY, key, headers)
        number = max(number, stop)
        producer.poll(0)
        if order.pace:
            due = started + (number - order.first) / order.pace
            while (left_s := due - time.monotonic()) > 0 and not counts[Count.STOP]:
                time.sleep(min(max(left_s, STEP_S), 0.1))
        elif stop < last and order.ahead:
            time.sleep(0.002)
    if left := producer.flush(PATIENCE_S):
        raise RuntimeError(f"{left} requests did not reach the log")


def produce(
    producer: Producer,
    topic: str,
    partition: int,
    value: bytes,
    key: bytes | None = None,
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> None:
    """Produce, and wait while the client's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition, headers=headers or [])
        except BufferError:
            producer.poll(0.01)
        else:
            return


class Stub:
    """All workers of the pools: reads headers of committed batches, answers at once."""

    def __init__(
        self,
        kafka: str,
        prefix: str,
        slots: int,
        hand_back_every: int,
        counts: Any,
        pipe: Connection,
        pools: Sequence[str] = (POOL,),
    ) -> None:
        self._topics, self._counts, self._pipe = Topics(prefix), counts, pipe
        self._lanes = [(pool, lane) for pool in pools for lane in range(LANES)]
        self._slots, self._hand_back_every = slots, hand_back_every
        self._producer = Producer({**PRODUCER, "bootstrap.servers": kafka, "linger.ms": 0})
        self._consumer = Consumer({**CONSUMER, "bootstrap.servers": kafka})
        self._consumer.assign(
            [TopicPartition(self._topics.batches(pool), lane, 0) for pool, lane in self._lanes]
        )
        self._read = msgspec.msgpack.Decoder(Batch | BatchCancel)
        self._usages: dict[int, Usage] = {}
        self._handed_back: set[int] = set()
        self._waits_ns: list[Any] = []

    def run(self) -> None:
        for pool, lane in self._lanes:
            self._say(pool, lane, Seen(VERSION, self._slots))
        while not self._counts[Count.STOP]:
            messages = self._consumer.consume(1, self._patience_s())
            if messages:
                messages += self._consumer.consume(999, 0)
            for message in messages:
                self._take(message)
            self._answer_late()
            self._producer.poll(0)
            self._counts[Count.CPU_MS] = int(time.process_time() * 1000)
            while self._pipe.poll():  # whoever asks gets the waits since the last time
                self._pipe.recv()
                self._pipe.send(self._waits_ns)
                self._waits_ns = []
        self._producer.flush(5.0)
        self._consumer.close()

    def _patience_s(self) -> float:
        """How long to wait for batches."""
        return 0.05

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            raise RuntimeError(message.error())
        now_ns = time.monotonic_ns()
        headers: Any = message.headers()
        batch = self._read.decode(dict(headers)[HEADER])
        if isinstance(batch, BatchCancel):
            return
        self._came(batch)
        counts, items = self._counts, batch.items
        counts[Count.BATCHES] += 1
        if self._handed_back:
            again = self._handed_back.intersection([item.key for item in items])
            self._handed_back -= again
            counts[Count.AGAIN] += len(again)
        for item in items:
            for name, content in item.headers:
                if name == SENT:
                    self._waits_ns.append(now_ns - STAMP.unpack(content)[0])
        lane = message.partition() or 0
        if self._hand_back_every and counts[Count.BATCHES] % self._hand_back_every == 0:
            self._handed_back.update(item.key for item in items)
            counts[Count.HANDED_BACK] += 1
            self._say(batch.pool, lane, HandedBack(VERSION, batch.number))
            return
        outcomes = tuple([Outcome(item.key, End.SUCCEEDED, self._true(item)) for item in items])
        tenants = tuple([item.tenant for item in items])
        endpoints = (items[0].endpoint,) * len(items)
        ended_ms = int(time.time() * 1000)
        finished = Finished(VERSION, batch.number, outcomes, tenants, endpoints, ended_ms)
        self._answer(batch.pool, lane, finished)
        counts[Count.SEEN] += len(items)

    def _came(self, batch: Batch) -> None:
        """Called for each batch."""

    def _answer(self, pool: str, lane: int, finished: Finished) -> None:
        """Say that a batch is finished; whoever takes longer says it in `_answer_late`."""
        self._say(pool, lane, finished)

    def _answer_late(self) -> None:
        """Called now and then."""

    def _true(self, item: Any) -> Usage:
        """A quarter more or less than the estimate; of one in eight exactly that."""
        tokens = item.tokens
        kind = item.key & 7
        if kind:
            tokens += tokens // 4 if kind & 1 else -(tokens // 4)
            self._counts[Count.SETTLED] += tokens != item.tokens
        usage = self._usages.get(tokens)
        if usage is None:
            usage = self._usages[tokens] = Usage(tokens, 0, 0, 0, 20)
        return usage

    def _say(self, pool: str, lane: int, record: msgspec.Struct) -> None:
        produce(self._producer, self._topics.workers(pool), lane, encode(record))


def stub(*arguments: Any) -> None:
    """The stub's process."""
    Stub(*arguments).run()
