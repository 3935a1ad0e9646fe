"""Which lanes the accounting counts, and what it says was lost before it begins."""

import pytest

from accounting.names import group
from adapters.memory import MemoryLog
from fairlane.accounting_lanes import lanes_to_count, note_losses
from fairlane.usage_read import read
from schemas.codec import encode
from schemas.log import Commit
from schemas.records import VERSION
from schemas.topics import Topics
from schemas.usage import UsageLost
from tests.support.accounting import finished, policy
from tests.support.lanes import ManualClock

TOPICS = Topics("t")
NOW_MS = 1_775_001_570_000


class Told:
    """Remembers what is noted and counted."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, dict[str, object]]] = []
        self.counted = 0

    def error(self, event: str, *, exc_info: bool, **facts: object) -> None:
        self.errors.append((event, {"exc_info": exc_info, **facts}))

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        assert (name, labels) == ("accounting_lost_records_total", {"pool": "gpu"})
        self.counted += amount


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog(ManualClock())
    made.ensure_topics(TOPICS.of(policy(gpu=2, cpu=3)))
    return made


def test_a_pool_that_left_the_policy_is_still_counted(log: MemoryLog) -> None:
    assert lanes_to_count(log, TOPICS, policy(gpu=2)) == {"gpu": 2, "cpu": 3}


def test_topics_of_other_deployments_are_no_pools(log: MemoryLog) -> None:
    log.ensure_topics(Topics("t.workers.x").of(policy(gpu=1)))
    log.ensure_topics(Topics("other").of(policy(tpu=1)))
    assert lanes_to_count(log, TOPICS, policy(gpu=2, cpu=3)) == {"gpu": 2, "cpu": 3}


def test_a_loss_is_noted_and_outlives_the_offsets_that_told_it(log: MemoryLog) -> None:
    topic, told = TOPICS.workers("gpu"), Told()
    producer, reader = log.producer(), log.reader()
    for number in range(10):
        producer.send(topic, 1, encode(finished(number, 1_000, [("acme", "gpu")])))
    reader.commit(group(TOPICS), {(topic, 1): Commit(2, "")})
    log.delete_records({(topic, 1): 6})
    pools = {"gpu": 2, "cpu": 3}
    note_losses(log, TOPICS, pools, NOW_MS, told, told)
    log.delete_records({(topic, 1): 9})
    note_losses(log, TOPICS, pools, NOW_MS + 1, told, told)
    reader.commit(group(TOPICS), {(topic, 1): Commit(10, "")})
    assert note_losses(log, TOPICS, pools, NOW_MS + 2, told, told) == []
    assert read(log, TOPICS).lost == [UsageLost(VERSION, "gpu", 1, 2, 9, NOW_MS + 1)]
    assert told.counted == 4 + 7
    assert told.errors[0] == (
        "records lost before they were counted",
        {"exc_info": False, "lane": "gpu[1]", "offsets": "2..5"},
    )
