"""The accounting as a process on a real Kafka: what is counted, once, whatever happens.

Most tests share one deployment and its process, in any order; who kills it starts it again.
"""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from accounting.core.sums import KEPT_MS, slot_of
from accounting.core.windows import MINUTE_MS
from accounting.names import group
from fairlane.publish import publish_policy
from fairlane.run import EXIT_HALTED
from fairlane.stack import Stack
from fairlane.usage_read import read
from schemas.codec import encode
from schemas.log import Commit, LogError
from schemas.records import VERSION, HandedBack, Started
from schemas.usage import UsageSum, Used, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, Lane, finished, policy
from tests.support.accounting_world import ACME, APART, INITECH, LANES, World
from tests.support.processes import DEADLINE_S, FairlaneProcess, until


@pytest.fixture(scope="module")
def world(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(kafka_bootstrap, tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture
def fresh(kafka_bootstrap: str, tmp_path: Path) -> Iterator[World]:
    """A deployment of one test's own."""
    made = World(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def test_committed_batches_are_counted_and_nothing_else(world: World) -> None:
    """Aborted ones stand in the log too: without the accounting's own driver this fails."""
    process = world.running()
    first, second, _ = world.lanes
    first.finish(world.batch(), world.batch(), is_committed=False)
    world.finish(6, every_ms=10_000)
    first.say(encode(Started(VERSION, 1)), encode(HandedBack(VERSION, 1)), b"\xc1 no record", b"")
    second.finish(world.batch(), is_committed=False)
    world.finish(3, every_ms=10_000)
    assert world.is_right()
    sums = world.counted()
    assert {total.window for total in sums} == set(Window)
    # Their windows were over long before: the records' own time says so.
    assert all(t.late == t.used.requests for t in sums if t.window is Window.MINUTE)
    until(lambda: len(unreadable(process)) == 2, "both unreadable records are noted")


def unreadable(process: FairlaneProcess) -> list[str]:
    return [
        str(note["detail"])
        for note in process.notes()
        if note["event"] == "unreadable record passed over"
    ]


def test_offsets_are_committed_over_markers_and_aborted_records(world: World) -> None:
    world.running()
    for _ in range(3):
        world.lanes[0].finish(world.batch(), world.batch(), is_committed=False)
        world.finish(4)
    world.lanes[0].finish(world.batch(), is_committed=False)
    world.finish(2)
    assert world.is_right()
    partitions = [(world.topics.workers("gpu"), lane) for lane in range(LANES)]
    reader = world.log.reader()
    # The last record's offset and one, below its transaction's marker.
    for partition, commit in reader.committed(group(world.topics), partitions).items():
        assert commit is not None
        assert commit.offset == reader.bounds(partition).end - 1
    reader.close()


def test_what_stood_there_before_the_first_start_is_counted(fresh: World) -> None:
    fresh.finish(10)
    process = fresh.start()
    assert fresh.is_right()
    assert process.stop() == 0


def test_reading_again_from_the_beginning_counts_nothing_twice(fresh: World) -> None:
    process = fresh.start()
    fresh.finish(10)
    assert fresh.is_right()
    assert process.stop() == 0
    reader = fresh.log.reader()
    beginning = {(fresh.topics.workers("gpu"), lane): Commit(0, "") for lane in range(LANES)}

    def is_reset() -> bool:
        try:
            reader.commit(group(fresh.topics), beginning)
        except LogError:  # its member has not left the group yet
            return False
        return True

    until(is_reset, "the offsets are reset")
    reader.close()
    assert read(fresh.log, fresh.topics).behind
    again = fresh.start()
    fresh.finish(3)
    assert fresh.is_right()
    assert again.stop() == 0


def test_windows_no_longer_kept_are_dropped(world: World) -> None:
    """On a lane of their own: the lane's time decides."""
    world.running()
    after_ms = (MINUTE_MS, KEPT_MS[Window.MINUTE] + MINUTE_MS)
    for number, late_ms in enumerate(after_ms):
        world.lanes[APART].finish(finished(number, BEFORE_MIDNIGHT_MS + late_ms, [INITECH], 100))

    def totals(window: Window) -> list[int]:
        mine = [total for total in world.counted() if total.tenant == INITECH[0]]
        return [total.batches for total in mine if total.window is window]

    until(lambda: totals(Window.MINUTE) == [1], "the first minute's sum is gone")
    assert totals(Window.HOUR) == [1, 1]
    assert totals(Window.ALL) == [2]


def test_kill_9_at_any_moment_loses_and_doubles_nothing(world: World) -> None:
    chance = random.Random(7)
    process = world.running()
    process.wait_for("counting")
    for has_begun in (True, False):
        world.finish(chance.randint(1, 25))
        process.stop(signal.SIGKILL)
        world.finish(chance.randint(0, 5))
        process = world.running()
        if has_begun:
            process.wait_for("counting")
    world.finish(5)
    assert world.is_right()


def test_two_share_the_lanes_out_and_one_takes_over(world: World) -> None:
    first, second = world.running(), world.start()
    second.wait_for("counting")
    world.finish(10)
    assert world.is_right()
    first.stop(signal.SIGKILL)
    world.finish(10)
    assert world.is_right()
    assert second.stop() == 0


def test_pools_are_counted_when_they_come_and_after_they_left(fresh: World) -> None:
    process = fresh.start("--instance", "a")
    process.wait_for("counting")
    publish_policy(fresh.log, fresh.topics, policy(gpu=LANES + 1, cpu=1))
    process.wait_for("the policy has other pools: starting again")
    lane = Lane(fresh.log, fresh.topics, "cpu", 0)

    def finish() -> None:
        batch = finished(1, BEFORE_MIDNIGHT_MS, [("acme", "cpu")])
        lane.finish(batch)
        fresh.batches.append(batch)
        fresh.finish(2)

    finish()
    assert fresh.is_right()
    publish_policy(fresh.log, fresh.topics, policy(gpu=LANES + 1))
    process.stop(signal.SIGKILL)
    finish()
    again = fresh.start("--instance", "a")
    assert fresh.is_right()
    lane.close()
    assert again.stop() == 0


def test_what_a_later_release_says_halts_it_and_what_was_lost_is_told(fresh: World) -> None:
    fresh.lanes[0].finish(*(fresh.batch() for _ in range(5)))
    partition = (fresh.topics.workers("gpu"), 0)
    reader = fresh.log.reader()
    reader.commit(group(fresh.topics), {partition: Commit(2, "")})
    fresh.log.delete_records({partition: 6})
    at = reader.bounds(partition).end
    fresh.lanes[0].say(encode(replace(fresh.batch(), v=VERSION + 1)))
    fresh.lanes[0].finish(fresh.batch())
    process = fresh.start()
    assert process.process.wait(DEADLINE_S) == EXIT_HALTED, process.text()
    halted = process.noted("halted")
    assert halted is not None
    assert "upgrade the accounting" in halted["detail"]
    lost = process.noted("records lost before they were counted")
    assert lost is not None
    assert lost["offsets"] == "2..5"
    found = read(fresh.log, fresh.topics)
    assert [(told.from_offset, told.to_offset) for told in found.lost] == [(2, 6)]
    assert [(lane.lane, lane.batches >= 2) for lane in found.behind] == [(0, True)]
    commit = reader.committed(group(fresh.topics), [partition])[partition]
    assert commit is not None
    assert commit.offset <= at
    reader.close()


def test_a_sum_of_a_later_release_halts_it(fresh: World) -> None:
    total = UsageSum(VERSION + 1, *ACME, Window.ALL, 0, "gpu", 1, 9, Used(7))
    producer = fresh.log.producer()
    producer.send(fresh.topics.usage("gpu"), 1, encode(total), key=slot_of(total).key)
    producer.close()
    fresh.finish(4)
    process = fresh.start()
    assert process.process.wait(DEADLINE_S) == EXIT_HALTED, process.text()
    reader = fresh.log.reader()
    partitions = [(fresh.topics.workers("gpu"), lane) for lane in range(LANES)]
    assert not any(reader.committed(group(fresh.topics), partitions).values())
    reader.close()


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
