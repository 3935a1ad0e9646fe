"""Where reading starts: positions committed or not, outside of the log, found by time."""

import pytest

from schemas.log import Bounds, Commit, PositionLostError, Record
from tests.contract.harness import POLL_S, Harness, drain, until


def test_nothing_is_committed_at_first(harness: Harness) -> None:
    topic, group = harness.topic(2), harness.fresh("group")
    found = harness.reader().committed(group, [(topic, 0), (topic, 1)])
    assert found == {(topic, 0): None, (topic, 1): None}


def test_positions_outside_of_a_transaction_replace_each_other(harness: Harness) -> None:
    topic, group = harness.topic(2), harness.fresh("group")
    reader = harness.reader()
    reader.commit(group, {(topic, 0): Commit(5, "five"), (topic, 1): Commit(6, "")})
    reader.commit(group, {(topic, 0): Commit(3, "back to three")})
    found = harness.reader().committed(group, [(topic, 0), (topic, 1)])
    assert found == {(topic, 0): Commit(3, "back to three"), (topic, 1): Commit(6, "")}
    assert harness.committed(harness.fresh("group"), (topic, 0)) is None


def test_a_position_below_the_log_start_is_lost(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    harness.fill(partition, [b"%d" % number for number in range(10)])
    harness.log.delete_records({partition: 6})
    reader = harness.reader({partition: 2})
    assert reader.bounds(partition) == Bounds(6, 10)
    with pytest.raises(PositionLostError, match=r"position 2 .* 6\.\.10") as caught:
        poll_until_something(harness, partition, 2)
    assert caught.value.partition == partition
    assert caught.value.position == 2
    assert caught.value.bounds == (6, 10)
    assert harness.values(partition) == [b"6", b"7", b"8", b"9"]


def test_a_position_beyond_the_end_is_lost(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    harness.fill(partition, [b"x"])
    with pytest.raises(PositionLostError, match=r"position 50 .* 0\.\.1"):
        poll_until_something(harness, partition, 50)


def poll_until_something(harness: Harness, partition: tuple[str, int], position: int) -> None:
    reader = harness.reader({partition: position})
    until(lambda: bool(reader.poll(10, POLL_S)), "the reader says something")


def test_a_lost_position_is_said_again_until_assign(harness: Harness) -> None:
    topic = harness.topic(2)
    harness.fill((topic, 1), [b"other"])
    reader = harness.reader({(topic, 0): 5, (topic, 1): 0})
    found: list[Record] = []
    lost: list[tuple[str, int]] = []

    def is_said() -> bool:
        try:
            found.extend(reader.poll(10, POLL_S))
        except PositionLostError as error:
            lost.append(error.partition)
        return len(lost) >= 3 and bool(found)

    until(is_said, "the loss is said again, and the other partition is read")
    assert set(lost) == {(topic, 0)}
    assert [record.value for record in found] == [b"other"]
    reader.assign({(topic, 0): 0, (topic, 1): 1})
    harness.fill((topic, 0), [b"healed"])
    assert [record.value for record in drain(reader, (topic, 0), 1)] == [b"healed"]


def test_a_position_at_the_end_waits_for_what_comes(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    harness.fill(partition, [b"old"])
    reader = harness.reader({partition: 1})
    assert reader.reached(partition, 1)
    assert reader.poll(10, POLL_S) == []
    harness.fill(partition, [b"new"])
    assert [record.value for record in drain(reader, partition, 2)] == [b"new"]


def test_a_time_is_found_by_the_records_own_timestamps(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    stamps: list[int] = []

    def later() -> bool:
        harness.fill(partition, [b"x"])
        stamps[:] = [record.timestamp_ms for record in harness.read(partition)]
        return len(set(stamps)) >= 3

    until(later, "records of three different milliseconds")
    reader = harness.reader()
    for stamp in set(stamps):
        assert reader.offset_at(partition, stamp) == stamps.index(stamp)
        earlier = [other for other in stamps if other < stamp]
        if earlier:
            assert reader.offset_at(partition, max(earlier) + 1) == stamps.index(stamp)
    assert reader.offset_at(partition, 0) == 0
    assert reader.offset_at(partition, max(stamps) + 1) is None


def test_a_time_is_not_found_beyond_the_end(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    reader = harness.reader()
    assert reader.offset_at(partition, 0) is None
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"open")
    everything = harness.reader(committed_only=False)
    until(lambda: everything.bounds(partition).end == 1, "the open record is written")
    assert reader.offset_at(partition, 0) is None
    assert everything.offset_at(partition, 0) == 0
    holder.commit()
    until(lambda: reader.offset_at(partition, 0) == 0, "the commit is settled")


def test_records_deleted_in_the_middle_of_a_transaction_leave_the_rest(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    for value in (b"a", b"b", b"c"):
        holder.send(topic, 0, value)
    holder.commit()
    assert harness.stable_end(partition) == 4
    harness.log.delete_records({partition: 2})
    assert harness.reader().bounds(partition) == (2, 4)
    assert harness.values(partition) == [b"c"]
    harness.log.delete_records({partition: 4})
    assert harness.reader().bounds(partition) == (4, 4)
    assert harness.values(partition) == []


def test_a_paused_partition_gives_nothing_and_loses_nothing(harness: Harness) -> None:
    topic = harness.topic(2)
    held, other = (topic, 0), (topic, 1)
    harness.fill(held, [b"1", b"2"])
    harness.fill(other, [b"a"])
    reader = harness.reader({held: 0, other: 0})
    reader.pause([held])
    assert [record.value for record in drain(reader, other, 1)] == [b"a"]
    assert not reader.reached(held, 1)
    harness.fill(held, [b"3"])
    harness.fill(other, [b"b"])
    assert [record.value for record in drain(reader, other, 2)] == [b"b"]
    reader.pause([other])
    harness.fill(other, [b"c"])
    assert [record.value for record in drain(reader, held, 3)] == [b"1", b"2", b"3"]
    reader.pause([])
    assert [record.value for record in drain(reader, other, 3)] == [b"c"]


def test_a_partition_paused_midway_goes_on_where_it_was(harness: Harness) -> None:
    topic = harness.topic(2)
    held, other = (topic, 0), (topic, 1)
    harness.fill(held, [b"%d" % number for number in range(20)])
    reader = harness.reader({held: 0, other: 0})
    first: list[Record] = []
    while not first:
        first += reader.poll(5, POLL_S)
    reader.pause([held])
    harness.fill(other, [b"a"])
    assert [record.value for record in drain(reader, other, 1)] == [b"a"]
    reader.pause([])
    rest = drain(reader, held, 20)
    assert [record.offset for record in (*first, *rest)] == list(range(20))


def test_an_assignment_ends_every_pause(harness: Harness) -> None:
    topic = harness.topic()
    harness.fill((topic, 0), [b"x"])
    reader = harness.reader({(topic, 0): 0})
    reader.pause([(topic, 0)])
    reader.assign({(topic, 0): 0})
    assert [record.value for record in drain(reader, (topic, 0), 1)] == [b"x"]
