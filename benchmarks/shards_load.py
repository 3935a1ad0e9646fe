"""What flows through several schedulers in `shards`: a policy, who appends, who answers."""

import random
import time
from collections import deque
from collections.abc import Sequence
from enum import IntEnum, auto
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import Producer

from benchmarks.stream import BATCH, PATIENCE_S, PRODUCER, Count, Stub, produce
from schemas.codec import HEADER, encode
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier, Topology
from schemas.records import VERSION, Batch, Finished, Request, Seen
from schemas.topics import Topics

TIER = "all"
SHARDS = 3
LANES = 4
#: More than makes a cycle full.
SLOTS = 16
TOKENS_MAX = 4_096
#: Tenants of each pool: who has four times the weight, and who does not.
WEIGHTS = {"four": 4, "one": 1}
#: A pool is judged from this part of its requests on ...
BEGIN = 0.1
#: ... until so few of the tenant of weight 4 are left: what two cycles dispatch at the most. The
#: batches of one are read lane after lane, so in the last one it seems to run dry early.
END = 2 * LANES * SLOTS * BATCH
#: A gap between the batches of a pool that is worth being told.
GAP_S = 0.25
#: While schedulers come and go a batch takes up to so long, chance says how long.
HOLD_S = 4.0
#: What is appended to a pool at once then, whenever it has less: more than makes a cycle full.
CHUNK = 4_000


def pools() -> tuple[str, ...]:
    """Three names, each on another shard."""
    found: dict[int, str] = {}
    for number in count():
        name = f"pool-{number}"
        found.setdefault(Topics().shard_of(name, SHARDS), name)
        if len(found) == SHARDS:
            return tuple(found[shard] for shard in range(SHARDS))
    raise AssertionError


POOLS = pools()

POLICY = Policy(
    tiers=(Tier(name=TIER),),
    pools=tuple(Pool(name=pool, lanes=LANES, prefetch=0) for pool in POOLS),
    endpoints=tuple(
        Endpoint(
            name=pool,
            pool=pool,
            cost=CostModel.TOKEN,
            quantum=TOKENS_MAX,
            tokens_max=TOKENS_MAX,
            batch_requests=BATCH,
            wait_ms_max=3_600_000,
            waiting=10_000_000,
        )
        for pool in POOLS
    ),
    tenants=tuple(
        Tenant(name=f"{pool}-{name}", tiers=(TIER,), weight=weight)
        for pool in POOLS
        for name, weight in WEIGHTS.items()
    ),
    topology=Topology(shards=SHARDS),
)


class Figure(IntEnum):
    """What is known of a pool: places in an array that processes share, see `at`."""

    APPENDED = 0
    FOUR = auto()  # requests of the tenant of weight 4 in committed batches
    ONE = auto()
    FOUR_COST = auto()  # ... what they cost in truth
    ONE_COST = auto()
    LAST_S = auto()  # when the latest batch was read, by the monotonic clock
    LONGEST_S = auto()  # the longest gap between two since this was set to 0


def at(pool: int, figure: Figure) -> int:
    """Where a figure of a pool stands in the array."""
    return pool * len(Figure) + figure


#: Three more in the array: how long a batch takes at most, slots of each lane that are open, and
#: whether `feed` has to stop.
HOLD = SHARDS * len(Figure)
OPEN = HOLD + 1
STOP = OPEN + 1
FIGURES = STOP + 1


class Window:
    """What a pool is judged by: from a part of its requests until its heavier tenant runs dry."""

    def __init__(self, figures: Any, pool: int, requests: int) -> None:
        self._figures, self._pool, self._requests = figures, pool, requests
        self._fours, self._ones = self._of(Figure.FOUR), self._of(Figure.ONE)
        self._costs: tuple[float, float] | None = None
        self.error: float | None = None  #: known when it is over

    def _of(self, figure: Figure) -> float:
        return float(self._figures[at(self._pool, figure)])

    def look(self) -> bool:
        """Whether it is over."""
        if self.error is not None:
            return True
        fours, ones = self._of(Figure.FOUR) - self._fours, self._of(Figure.ONE) - self._ones
        costs = self._of(Figure.FOUR_COST), self._of(Figure.ONE_COST)
        if self._costs is None:
            if fours + ones >= 2 * self._requests * BEGIN:
                self._costs = costs
            return False
        if fours < self._requests - END:
            return False
        if ones >= self._requests - END:
            raise RuntimeError(f"{POOLS[self._pool]}: the tenant of weight 1 had no backlog")
        four, one = costs[0] - self._costs[0], costs[1] - self._costs[1]
        self.error = abs(four / one / 4 - 1)
        return True


class Gap(NamedTuple):
    """Nothing was committed to a pool for long."""

    pool: str
    from_s: float
    to_s: float


class Workers(Stub):
    """The stub, that adds up by pool and tenant, notes gaps, and can take its time."""

    def __init__(
        self, kafka: str, prefix: str, counts: Any, figures: Any, pipe: Connection, hand_back: int
    ) -> None:
        super().__init__(kafka, prefix, 0, hand_back, counts, pipe, POOLS)
        self._figures = figures
        self._pool = {pool: number for number, pool in enumerate(POOLS)}
        self._late: list[tuple[float, int, str, int, Finished]] = []
        self._number = count()
        self._chance = random.Random(1)

    def _came(self, batch: Batch) -> None:
        figures, pool = self._figures, self._pool[batch.pool]
        now_s, last_s = time.monotonic(), figures[at(pool, Figure.LAST_S)]
        figures[at(pool, Figure.LAST_S)] = now_s
        if not last_s:
            return
        longest = at(pool, Figure.LONGEST_S)
        figures[longest] = max(figures[longest], now_s - last_s)
        if now_s - last_s > GAP_S:
            self._waits_ns.append(Gap(batch.pool, last_s, now_s))

    def _answer(self, pool: str, lane: int, finished: Finished) -> None:
        figures, number = self._figures, self._pool[pool]
        four = f"{pool}-four"
        for outcome, tenant in zip(finished.outcomes, finished.tenants, strict=True):
            is_four = tenant == four
            figures[at(number, Figure.FOUR if is_four else Figure.ONE)] += 1
            cost = at(number, Figure.FOUR_COST if is_four else Figure.ONE_COST)
            figures[cost] += outcome.usage.tokens
        if not figures[HOLD]:
            self._say(pool, lane, finished)
            return
        due_s = time.monotonic() + self._chance.random() * figures[HOLD]
        heappush(self._late, (due_s, next(self._number), pool, lane, finished))

    def _answer_late(self) -> None:
        if (slots := int(self._figures[OPEN])) != self._slots:
            self._slots = slots
            for pool, lane in self._lanes:
                self._say(pool, lane, Seen(VERSION, slots))
        now_s = time.monotonic()
        while self._late and (self._late[0][0] <= now_s or not self._figures[HOLD]):
            _, _, pool, lane, finished = heappop(self._late)
            self._say(pool, lane, finished)


def workers(*arguments: Any) -> None:
    """The stub's process."""
    Workers(*arguments).run()


class Appender:
    """Writes requests to the request topics, each call in one transaction: all come at once."""

    def __init__(self, kafka: str, prefix: str, figures: Any, size: int) -> None:
        topics = Topics(prefix)
        self._figures, self._body = figures, b"x" * size
        self._topic = topics.requests(TIER)
        self._chance = random.Random(2)
        self._partitions = [topics.request_partition(pool, "", POLICY) for pool in POOLS]
        if sorted(self._partitions) != list(range(SHARDS)):
            raise RuntimeError(f"pools share a shard: {self._partitions}")
        name = f"{prefix}.appender"
        self._producer = Producer(
            {**PRODUCER, "bootstrap.servers": kafka, "linger.ms": 5, "transactional.id": name}
        )
        self._producer.init_transactions(PATIENCE_S)
        self.number = int(sum(figures[at(pool, Figure.APPENDED)] for pool in range(SHARDS)))

    def append(self, amounts: Sequence[int]) -> None:
        """So many for each pool, of both tenants alike, in an order that chance says."""
        order = [pool for pool, amount in enumerate(amounts) for _ in range(amount)]
        self._chance.shuffle(order)
        names = deque(WEIGHTS)
        self._producer.begin_transaction()
        for pool in order:
            self._send(pool, f"{POOLS[pool]}-{self._chance.choice(names)}")
        self._producer.commit_transaction(PATIENCE_S)
        for pool, amount in enumerate(amounts):
            self._figures[at(pool, Figure.APPENDED)] += amount

    def _send(self, pool: int, tenant: str) -> None:
        tokens = int(self._chance.random() * 1_000)
        number, self.number = self.number, self.number + 1
        meta = Request(VERSION, request_id(number), tenant, POOLS[pool], input_tokens=tokens)
        headers: list[tuple[str, str | bytes | None]] = [(HEADER, encode(meta))]
        partition = self._partitions[pool]
        produce(self._producer, self._topic, partition, self._body, tenant.encode(), headers)
        if not number % 1_000:
            self._producer.poll(0)


def request_id(number: int) -> str:
    """Id of the request that was appended as this one."""
    return f"req_{number:026d}"


def append(kafka: str, prefix: str, figures: Any, amount: int, size: int) -> None:
    """Append so many for each pool; a process of its own."""
    Appender(kafka, prefix, figures, size).append([amount] * SHARDS)


def feed(kafka: str, prefix: str, figures: Any, size: int) -> None:
    """Keep every pool in backlog until STOP is set; a process of its own."""
    appender = Appender(kafka, prefix, figures, size)
    while not figures[STOP]:
        amounts = [CHUNK if waiting(figures, pool) < CHUNK else 0 for pool in range(SHARDS)]
        if any(amounts):
            appender.append(amounts)
        time.sleep(0.05)


def waiting(figures: Any, pool: int) -> int:
    """Requests of a pool that were appended and not dispatched yet."""
    done = figures[at(pool, Figure.FOUR)] + figures[at(pool, Figure.ONE)]
    return int(figures[at(pool, Figure.APPENDED)] - done)


def seen(counts: Any) -> int:
    """Requests in committed batches, those of batches handed back not counted."""
    return int(counts[Count.SEEN])
