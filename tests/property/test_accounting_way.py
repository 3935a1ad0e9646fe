"""Whatever is lost on the way from the log to the accounting, each batch is counted once."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from accounting.counting import Counting
from accounting.driver import Chain
from accounting.lanes import Lanes
from accounting.shelf import Shelf
from schemas.codec import decode_bytes, encode
from schemas.log import Partition, Record
from schemas.usage import UsageSum, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, expected, finished, record, tokens


class Told:
    """Takes notes and figures in, and forgets them."""

    def info(self, event: str, **facts: object) -> None:
        """Forget it."""

    warning = error = info

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Forget it."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Forget it."""


LANE = TP("t.workers.gpu", 0)
BATCHES = [
    finished(number, BEFORE_MIDNIGHT_MS + number * 7_000, [(whose, "gpu")], number + 1)
    for number, whose in enumerate("aabacabbcaab")
]


class Way:
    """The way from a lane to the sums: a client, a queue, and all that Faust does to both."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # Each batch in a transaction: a marker behind it, and now and then aborted records.
        offsets = [number * 2 + 3 * (number // 4) for number in range(len(BATCHES))]
        self.log = [record(o, encode(b)) for o, b in zip(offsets, BATCHES, strict=True)]
        self.told = Told()
        self.lanes = Lanes(self.told, self.told)
        self.shelf = Shelf()
        self.counting = Counting({"gpu": self.shelf})
        self.chain, self.assignment = Chain(), object()
        self.at, self.committed, self.counted_to, self.now_s = 0, 0, 0, 0.0
        self.queue: deque[tuple[Record, int | None]] = deque()
        self.rebalance()

    def handed_out(self, lane: Partition) -> int | None:
        return self.chain.upto(TP(*lane))

    async def read_from(self, lane: Partition, offset: int) -> None:
        self.chain.sought(self.assignment, TP(*lane), offset)
        self.at = offset

    def fetch(self) -> None:
        found = [r for r in self.log if r.offset >= self.at][: self.chance.randint(1, 5)]
        if found:
            linked = self.chain.linked(self.assignment, {LANE: found})
            self.queue += [(link.record, link.follows) for link in linked[LANE]]
            self.at = found[-1].offset + self.chance.randint(1, 2)

    def count(self) -> None:
        for _ in range(min(len(self.queue), self.chance.randint(1, 5))):
            said, follows = self.queue.popleft()
            if asyncio.run(self.lanes.is_next(self, LANE, follows, said.offset, self.now_s)):
                self.counting.take("gpu", said, BEFORE_MIDNIGHT_MS * 2)
                self.counted_to = said.offset + 1

    def store(self) -> None:
        for key, total in self.counting.slice().sums.get("gpu", {}).items():
            self.shelf[key] = encode(total)
        self.committed = max(self.committed, self.counted_to)

    def lose_all(self) -> None:
        """What Faust does when it resumes its flow, or members of its group change."""
        self.queue.clear()

    def lose_one(self) -> None:
        """What it does with the record that it waits to hand on when it suspends its flow."""
        if self.queue:
            del self.queue[self.chance.randrange(len(self.queue))]

    def seek(self) -> None:
        asyncio.run(self.read_from(LANE, self.committed))

    def rebalance(self) -> None:
        """Another assignment: the client begins somewhere, and is told where only later."""
        self.assignment = object()
        self.at = self.chance.choice([self.committed, self.chance.randint(0, self.log[-1].offset)])
        self.counting.reassigned()
        self.counted_to = self.committed
        self.lanes.begin({LANE: self.committed})

    def look(self) -> None:
        self.now_s += 5.0
        asyncio.run(self.lanes.look(self, self.now_s))


STEPS: list[Callable[[Way], None]] = [
    Way.fetch,
    Way.count,
    Way.store,
    Way.lose_all,
    Way.lose_one,
    Way.seek,
    Way.rebalance,
    Way.look,
]


def sums_at_last(way: Way) -> Counter[tuple[object, ...]]:
    """Sums when nothing is lost any more and all that is due is asked for."""
    for _ in range(3 * len(BATCHES)):
        for step in (Way.look, Way.fetch, Way.count, Way.count):
            step(way)
    way.store()
    return tokens(decode_bytes(value, UsageSum, "stored") for value in way.shelf.values())


@given(st.lists(st.sampled_from(STEPS), max_size=80), st.integers(0, 2**32))
def test_each_batch_is_counted_once(steps: list[Callable[[Way], None]], seed: int) -> None:
    way = Way(seed)
    for step in steps:
        step(way)
    assert sums_at_last(way) == expected(BATCHES, Window)


def test_what_is_lost_last_is_counted_though_nothing_comes_behind_it() -> None:
    way = Way(1)
    way.seek()
    while way.at <= way.log[-1].offset:
        way.fetch()
    way.lose_all()
    assert sums_at_last(way) == expected(BATCHES, Window)
