"""Ranges of request partitions: what is wanted comes, once and in order, and little beside."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from adapters.memory import MemoryLog
from scheduler.ranges import AHEAD_MAX, JUMP_RECORDS, LostRangeError, Ranges, ranges_of
from schemas.log import TopicSpec
from simulation.world import VirtualClock
from tests.support.counting_log import CountingLog, places

TOPIC = "requests"


def log_of(*counts: int) -> CountingLog:
    """A topic with so many records in each partition."""
    log = MemoryLog(VirtualClock())
    log.ensure_topics([TopicSpec(TOPIC, len(counts), {})])
    producer = log.producer()
    for number, count in enumerate(counts):
        for _ in range(count):
            producer.send(TOPIC, number, b"")
    return CountingLog(log)


def read_all(ranges: Ranges) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while ranges.is_wanting:
        found += places(ranges.poll(0.0))
    return found


@given(st.sets(st.integers(0, 2_000), max_size=200), st.integers(0, 50))
def test_ranges_cover_the_offsets_and_no_long_gap(offsets: set[int], gap: int) -> None:
    found = list(ranges_of(BitMap64(offsets), gap))
    covered = [n for start, stop in found for n in range(start, stop)]
    assert covered == sorted(set(covered))
    assert offsets <= set(covered)
    assert all(start in offsets and stop - 1 in offsets for start, stop in found)
    ordered = sorted(offsets)
    gaps = [b - a - 1 for a, b in pairwise(ordered)]
    assert len(found) == (sum(one > gap for one in gaps) + 1 if offsets else 0)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_wanted_comes_once_in_order(seed: int) -> None:
    random = Random(seed)
    counts = [random.randrange(1, 60_000) for _ in range(3)]
    ranges = Ranges(log_of(*counts))
    wanted: list[tuple[int, int]] = []
    at = [0, 0, 0]
    found: list[tuple[int, int]] = []
    for _ in range(40):
        number = random.randrange(3)
        start = at[number] + random.choice((0, 0, 3, 1_000, 25_000))
        stop = start + random.choice((0, 1, 50, 5_000))
        if stop <= counts[number]:
            ranges.want((TOPIC, number), start, stop)
            wanted += [(number, offset) for offset in range(start, stop)]
            at[number] = stop
        if random.randrange(3) == 0:
            found += read_all(ranges)
            assert all(ranges.passed((TOPIC, number), at[number]) for number in range(3))
    found += read_all(ranges)
    assert sorted(found) == sorted(wanted)
    for number in range(3):
        mine = [place for place in found if place[0] == number]
        assert mine == sorted(mine)


def test_a_long_gap_is_jumped_over() -> None:
    last = 10 * JUMP_RECORDS
    log = log_of(last + 1)
    ranges = Ranges(log)
    ranges.want((TOPIC, 0), 0, 1)
    ranges.want((TOPIC, 0), last, last + 1)
    assert read_all(ranges) == [(0, 0), (0, last)]
    assert log.read[TOPIC] < JUMP_RECORDS
    assert log.readers == 2


def test_short_gaps_are_read_through_with_one_client() -> None:
    log = log_of(50_000)
    ranges = Ranges(log)
    for start in range(0, 50_000, 1_000):
        ranges.want((TOPIC, 0), start, start + 1)
    assert len(read_all(ranges)) == 50
    assert log.readers == 1


def test_small_steps_behind_each_other_need_one_client() -> None:
    """As a standby takes them: the client is ahead by what one poll brings."""
    log = log_of(AHEAD_MAX, AHEAD_MAX)
    ranges = Ranges(log)
    for start in range(0, AHEAD_MAX, 100):
        for number in range(2):
            ranges.want((TOPIC, number), start, start + 100)
        assert len(read_all(ranges)) == 200
    assert log.readers == 1
    assert log.read[TOPIC] == 2 * AHEAD_MAX


def test_a_partition_of_which_nothing_more_is_wanted_is_let_go() -> None:
    """Its millions behind the one that is wanted are not read while another is."""
    far = 8 * AHEAD_MAX
    log = log_of(far, far)
    ranges = Ranges(log)
    ranges.want((TOPIC, 0), 0, 1)
    ranges.want((TOPIC, 1), 0, far)
    assert len(read_all(ranges)) == far + 1
    assert log.read[TOPIC] < far + 3 * AHEAD_MAX


@pytest.mark.parametrize(("start", "stop"), [(5, 20), (50, 101)])
def test_what_the_log_lost_is_named(start: int, stop: int) -> None:
    log = log_of(100)
    log.delete_records({(TOPIC, 0): 10})
    ranges = Ranges(log)
    ranges.want((TOPIC, 0), start, stop)
    text = rf"requests\[0\]: offsets {start}\.\.{stop} are needed, the log holds 10\.\.100"
    with pytest.raises(LostRangeError, match=text):
        ranges.poll(0.0)


def test_a_position_lost_where_nothing_is_wanted_harms_nobody() -> None:
    log = MemoryLog(VirtualClock())
    log.ensure_topics([TopicSpec("t", 2, {})])
    producer = log.producer()

    def add() -> None:
        for partition in (0, 1):
            for _ in range(5):
                producer.send("t", partition, b"x")

    add()
    ranges = Ranges(log)
    ranges.want(("t", 0), 0, 5)
    ranges.want(("t", 1), 0, 5)
    while ranges.is_wanting:
        ranges.poll(0)
    add()
    log.delete_records({("t", 1): 8})
    ranges.want(("t", 0), 5, 10)
    found: list[int] = []
    while ranges.is_wanting:
        found += [record.offset for _, records in ranges.poll(0) for record in records]
    assert found == [5, 6, 7, 8, 9]
