"""The accounting as a process on a real Kafka: what is counted, once, whatever happens."""

import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from accounting.names import group
from adapters.kafka import KafkaLog
from fairlane.publish import publish_policy
from fairlane.stack import Stack
from fairlane.usage_read import read
from schemas.codec import encode
from schemas.log import Commit, Log, LogError
from schemas.records import VERSION, Finished, HandedBack, Started
from schemas.topics import Topics
from schemas.usage import UsageSum, Window
from tests.support.accounting import (
    BEFORE_MIDNIGHT_MS,
    Lane,
    expected,
    finished,
    policy,
    tokens,
)
from tests.support.processes import DEADLINE_S, FairlaneProcess, Processes, until

ACME, GLOBEX = ("acme", "gpu"), ("globex", "gpu")
LANES = 2


class World:
    """A deployment of one pool whose workers are written by hand."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.log: Log = KafkaLog(bootstrap, replication=1)
        self.topics = Topics(f"acct-{uuid.uuid4().hex[:12]}")
        env = {
            "FAIRLANE_KAFKA": bootstrap,
            "FAIRLANE_PREFIX": self.topics.prefix,
            "FAIRLANE_REPLICATION": "1",
        }
        self.processes = Processes(folder, env)
        publish_policy(self.log, self.topics, policy(gpu=LANES))
        self.lanes = [Lane(self.log, self.topics, "gpu", lane) for lane in range(LANES)]
        self.batches: list[Finished] = []
        self._number = 0

    def start(self, *arguments: str) -> FairlaneProcess:
        return self.processes.start("accounting", *arguments)

    def batch(self, after_ms: int = 0) -> Finished:
        self._number += 1
        return finished(
            self._number, BEFORE_MIDNIGHT_MS + after_ms, [ACME, GLOBEX, ACME], self._number
        )

    def finish(self, count: int, every_ms: int = 1_000) -> None:
        """Batches on lanes in turn; all of them have to be counted."""
        for _ in range(count):
            batch = self.batch(self._number * every_ms)
            self.batches.append(batch)
            self.lanes[self._number % LANES].finish(batch)

    def counted(self) -> list[UsageSum]:
        """What is published when the accounting has caught up."""
        until(lambda: not read(self.log, self.topics).behind, "the accounting has caught up")
        return read(self.log, self.topics).sums

    def is_right(self) -> bool:
        return tokens(self.counted()) == expected(self.batches, Window)

    def close(self) -> None:
        self.processes.close()
        for lane in self.lanes:
            lane.close()
        self.log.close()


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[World]:
    made = World(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def test_committed_batches_are_counted_and_nothing_else(world: World) -> None:
    """Aborted ones stand in the log too: without the accounting's own driver this fails."""
    process = world.start()
    first, second = world.lanes
    first.finish(world.batch(), world.batch(), is_committed=False)
    world.finish(6, every_ms=10_000)
    first.say(encode(Started(VERSION, 1)), encode(HandedBack(VERSION, 1)), b"\xc1 no record", b"")
    second.finish(world.batch(), is_committed=False)
    world.finish(3, every_ms=10_000)
    assert world.is_right()
    assert {total.window for total in world.counted()} == set(Window)
    assert len({t.start_ms for t in world.counted() if t.window is Window.MONTH}) == 2
    until(lambda: len(unreadable(process)) == 2, "both unreadable records are noted")
    assert process.stop() == 0


def unreadable(process: FairlaneProcess) -> list[str]:
    return [
        str(note["detail"])
        for note in process.notes()
        if note["event"] == "unreadable record passed over"
    ]


def test_offsets_are_committed_over_markers_and_aborted_records(world: World) -> None:
    process = world.start()
    for _ in range(5):
        world.lanes[0].finish(world.batch(), world.batch(), is_committed=False)
        world.finish(4)
    world.lanes[0].finish(world.batch(), is_committed=False)
    world.finish(2)
    assert world.is_right()
    partitions = [world.lanes[lane].topic for lane in range(LANES)]
    reader = world.log.reader()
    found = reader.committed(
        group(world.topics), [(topic, lane) for lane, topic in enumerate(partitions)]
    )
    # The last record's offset and one, below its transaction's marker.
    for partition, commit in found.items():
        assert commit is not None
        assert commit.offset == reader.bounds(partition).end - 1
    reader.close()
    assert process.stop() == 0


def test_reading_again_from_the_beginning_counts_nothing_twice(world: World) -> None:
    process = world.start()
    world.finish(10)
    assert world.is_right()
    assert process.stop() == 0
    reader = world.log.reader()
    beginning = {(world.lanes[lane].topic, lane): Commit(0, "") for lane in range(LANES)}

    def is_reset() -> bool:
        try:
            reader.commit(group(world.topics), beginning)
        except LogError:  # its member has not left the group yet
            return False
        return True

    until(is_reset, "the offsets are reset")
    reader.close()
    assert read(world.log, world.topics).behind
    again = world.start()
    world.finish(3)
    assert world.is_right()
    assert again.stop() == 0


def test_a_late_batch_raises_the_sum_of_its_old_window(world: World) -> None:
    process = world.start()
    lane = world.lanes[0]
    for after_ms in (0, 300_000, 10):
        batch = world.batch(after_ms)
        world.batches.append(batch)
        lane.finish(batch)
    assert world.is_right()
    minutes = [t for t in world.counted() if t.window is Window.MINUTE and t.tenant == "acme"]
    old, new = sorted(minutes, key=lambda total: total.start_ms)
    assert (old.batches, old.late, new.batches, new.late) == (2, 2, 1, 0)
    assert process.stop() == 0


def test_kill_9_at_any_moment_loses_and_doubles_nothing(world: World) -> None:
    chance = random.Random(7)
    process = world.start("--instance", "a")
    process.wait_for("counting")
    for _ in range(4):
        world.finish(chance.randint(1, 25))
        process.stop(signal.SIGKILL)
        world.finish(chance.randint(0, 5))
        process = world.start("--instance", "a")
        if chance.random() < 0.5:
            process.wait_for("counting")
    world.finish(5)
    assert world.is_right()
    assert process.stop() == 0


def test_two_share_the_lanes_out_and_one_takes_over(world: World) -> None:
    first, second = world.start(), world.start()
    world.finish(10)
    assert world.is_right()
    first.stop(signal.SIGKILL)
    world.finish(10)
    assert world.is_right()
    third = world.start()
    third.wait_for("counting")
    world.finish(10)
    assert world.is_right()
    assert (second.stop(), third.stop()) == (0, 0)


def test_a_pool_of_a_later_policy_is_counted(world: World) -> None:
    process = world.start("--instance", "a")
    process.wait_for("counting")
    publish_policy(world.log, world.topics, policy(gpu=LANES, cpu=1))
    process.wait_for("the policy has other pools: starting again")
    lane = Lane(world.log, world.topics, "cpu", 0)
    batch = finished(1, BEFORE_MIDNIGHT_MS, [("acme", "cpu")])
    lane.finish(batch)
    world.batches.append(batch)
    world.finish(2)
    assert world.is_right()
    lane.close()
    assert process.stop() == 0


def test_sigterm_ends_it_though_the_broker_is_gone(own_stack: Stack, tmp_path: Path) -> None:
    (kafka,) = [service for service in own_stack.status() if service.name == "kafka"]
    world = World(kafka.address, tmp_path)
    process = world.start()
    world.finish(3)
    assert world.is_right()
    own_stack.kill_broker()
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(DEADLINE_S) == 0, process.text()
    world.close()
