"""Transactions: all or nothing, for records and positions together; the gaps they leave."""

import pytest

from schemas.log import (
    METADATA_CHARS_MAX,
    RECORD_BYTES_MAX,
    Commit,
    LogError,
    TooLargeError,
    TransactionalProducer,
    UnavailableError,
)
from tests.contract.harness import Harness, drain, until


def test_a_commit_shows_the_records_of_every_partition(harness: Harness) -> None:
    topic, other = harness.topic(2), harness.topic()
    holder = harness.transactional(harness.fresh("id"))
    for value in (b"first", b"second"):
        holder.begin()
        for partition in ((topic, 0), (topic, 1), (other, 0)):
            holder.send(*partition, value)
        holder.commit()
    for partition in ((topic, 0), (topic, 1), (other, 0)):
        assert harness.values(partition) == [b"first", b"second"]


def test_an_open_transaction_holds_back_what_follows_it(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    delivered: list[int | None] = []
    harness.fill(partition, [b"before"])
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"open", on_delivery=lambda offset, _: delivered.append(offset))
    everything = harness.reader({partition: 0}, committed_only=False)
    until(lambda: everything.bounds(partition).end == 2, "the open record is written")
    harness.fill(partition, [b"after"])
    reader = harness.reader({partition: 0})
    assert reader.bounds(partition) == (0, 1)
    assert [record.value for record in drain(reader, partition, 1)] == [b"before"]
    assert [r.value for r in drain(everything, partition, 3)] == [b"before", b"open", b"after"]
    holder.commit()
    assert delivered == [1]
    until(lambda: reader.bounds(partition).end == 4, "the commit is settled")
    assert [record.value for record in drain(reader, partition, 4)] == [b"open", b"after"]


def test_an_aborted_transaction_stays_invisible(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"dropped")
    everything = harness.reader({partition: 0}, committed_only=False)
    until(lambda: everything.bounds(partition).end == 1, "the open record is written")
    holder.abort()
    holder.begin()
    holder.send(topic, 0, b"kept")
    holder.commit()
    assert harness.values(partition) == [b"kept"]
    assert harness.values(partition, committed_only=False) == [b"dropped", b"kept"]
    assert [record.offset for record in harness.read(partition)] == [2]


def test_markers_leave_gaps_and_the_end_is_reached_through_them(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    holder = harness.transactional(harness.fresh("id"))
    for _ in range(3):
        holder.begin()
        holder.send(topic, 0, b"one")
        holder.send(topic, 0, b"two")
        holder.commit()
    everything = harness.reader(committed_only=False)
    for number in range(2):
        holder.begin()
        holder.send(topic, 0, b"aborted")
        written = 10 + 2 * number
        until(lambda written=written: everything.bounds(partition).end == written, "written")  # type: ignore[misc]
        holder.abort()
    assert harness.stable_end(partition) == 13
    reader = harness.reader({partition: 0})
    assert [record.offset for record in drain(reader, partition, 13)] == [0, 1, 3, 4, 6, 7]
    assert reader.reached(partition, 13)
    assert not reader.reached(partition, 14)


def test_reached_is_not_fooled_by_records_not_yet_polled(harness: Harness) -> None:
    topic = harness.topic()
    partition = (topic, 0)
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    for _ in range(10):
        holder.send(topic, 0, b"x")
    holder.commit()
    end = harness.stable_end(partition)
    reader = harness.reader({partition: 0})
    polled = 0
    while polled < 10:
        assert not reader.reached(partition, 10)
        assert not reader.reached(partition, end)
        polled += len(reader.poll(3, 0.05))
    assert reader.reached(partition, 10)
    assert drain(reader, partition, end) == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_positions_go_with_the_records_or_not_at_all(
    harness: Harness, *, is_committed: bool
) -> None:
    topic = harness.topic(2)
    group = harness.fresh("group")
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"progress")
    holder.send_offsets(group, {(topic, 0): Commit(3, "above: 5,7"), (topic, 1): Commit(9, "")})
    if is_committed:
        holder.commit()
    else:
        holder.abort()
    found = harness.reader().committed(group, [(topic, 0), (topic, 1)])
    if is_committed:
        assert found == {(topic, 0): Commit(3, "above: 5,7"), (topic, 1): Commit(9, "")}
        assert harness.values((topic, 0)) == [b"progress"]
    else:
        assert found == {(topic, 0): None, (topic, 1): None}
        assert harness.values((topic, 0)) == []


def test_positions_without_records_are_committed_too(harness: Harness) -> None:
    topic, group = harness.topic(), harness.fresh("group")
    holder = harness.transactional(harness.fresh("id"))
    for offset in (1, 2):
        holder.begin()
        holder.send_offsets(group, {(topic, 0): Commit(offset, f"at {offset}")})
        holder.commit()
    assert harness.committed(group, (topic, 0)) == Commit(2, "at 2")
    holder.begin()
    holder.send_offsets(group, {})
    holder.commit()
    assert harness.committed(group, (topic, 0)) == Commit(2, "at 2")


def test_the_positions_of_an_open_transaction_are_awaited(harness: Harness) -> None:
    topic, group = harness.topic(), harness.fresh("group")
    reader = harness.reader()
    reader.commit(group, {(topic, 0): Commit(1, "before")})
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send_offsets(group, {(topic, 0): Commit(2, "within")})
    impatient = harness.impatient_reader()
    with pytest.raises(UnavailableError, match=group):
        impatient.committed(group, [(topic, 0)])
    holder.commit()
    assert harness.committed(group, (topic, 0)) == Commit(2, "within")


def test_an_oversize_record_does_not_end_the_transaction_of_its_siblings(
    harness: Harness,
) -> None:
    topic = harness.topic()
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"before")
    with pytest.raises(TooLargeError, match=rf"{topic}\[0\]"):
        holder.send(topic, 0, bytes(RECORD_BYTES_MAX + 1))
    holder.send(topic, 0, b"after")
    holder.commit()
    assert harness.values((topic, 0)) == [b"before", b"after"]


def test_metadata_of_the_longest_length_passes_and_more_is_refused(harness: Harness) -> None:
    topic, group = harness.topic(), harness.fresh("group")
    partition = (topic, 0)
    longest, longer = "m" * METADATA_CHARS_MAX, "m" * (METADATA_CHARS_MAX + 1)
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"x")
    with pytest.raises(TooLargeError, match=rf"{group}.*{topic}\[0\].*4096"):
        holder.send_offsets(group, {partition: Commit(1, longer)})
    holder.send_offsets(group, {partition: Commit(1, longest)})
    holder.commit()
    assert harness.committed(group, partition) == Commit(1, longest)
    assert harness.values(partition) == [b"x"]
    reader = harness.reader()
    with pytest.raises(TooLargeError, match="4096"):
        reader.commit(group, {partition: Commit(2, longer)})
    reader.commit(group, {partition: Commit(2, longest[1:] + "\u00e9")})
    assert harness.committed(group, partition) == Commit(2, longest[1:] + "\u00e9")


def test_calls_out_of_turn_say_what_is_missing(harness: Harness) -> None:
    topic = harness.topic()
    fresh = harness.log.transactional(harness.fresh("id"))
    with pytest.raises(LogError, match="init"):
        fresh.begin()
    fresh.init()
    for call in (fresh.commit, fresh.abort, lambda: fresh.send(topic, 0, b"x")):
        with pytest.raises(LogError, match="begin"):
            call()
    fresh.begin()
    with pytest.raises(LogError, match="open already"):
        fresh.begin()
    fresh.send(topic, 0, b"x")
    fresh.commit()
    fresh.close()
    assert harness.values((topic, 0)) == [b"x"]


def test_a_record_for_an_unknown_partition_fails_its_transaction_for_good(
    harness: Harness,
) -> None:
    topic = harness.topic()
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"sibling")
    with pytest.raises(LogError, match=rf"{topic}\[7\]") as caught:
        _send_and_commit(holder, topic, 7)
    assert type(caught.value) is LogError, "an abort would invite to send the same again"
    holder.init()
    holder.begin()
    _send_and_commit(holder, topic, 0)
    assert harness.values((topic, 0)) == [b"last"]


def _send_and_commit(holder: TransactionalProducer, topic: str, partition: int) -> None:
    holder.send(topic, partition, b"last")
    holder.commit()
