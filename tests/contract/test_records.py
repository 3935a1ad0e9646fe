"""Plain records: what is sent is read, in order, once, with everything that belongs to it."""

import time

import pytest

from schemas.log import RECORD_BYTES_MAX, LogError, Record, TooLargeError
from tests.contract.harness import PATIENCE_S, Harness, drain, until


def test_a_partition_keeps_the_order_of_sending(harness: Harness) -> None:
    topic = harness.topic(2)
    producer = harness.producer()
    for number in range(2000):
        producer.send(topic, number % 2, b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    for partition in range(2):
        values = [int(value) for value in harness.values((topic, partition))]
        assert values == list(range(partition, 2000, 2))


def test_key_headers_value_and_place_arrive_untouched(harness: Harness) -> None:
    topic = harness.topic(2)
    before = time.time_ns() // 1_000_000
    producer = harness.producer()
    headers = [("meta", b"\x00\xff"), ("traceparent", b""), ("meta", b"twice")]
    producer.send(topic, 1, b"\x00body\xff", key=b"key", headers=headers)
    producer.send(topic, 1, b"")
    assert producer.flush(PATIENCE_S) == 0
    first, second = harness.read((topic, 1))
    assert first[:3] == (topic, 1, 0)
    assert before - 1000 <= first.timestamp_ms <= time.time_ns() // 1_000_000 + 1000
    assert first[4:] == (b"key", b"\x00body\xff", tuple(headers))
    assert second[4:] == (None, b"", ())
    assert isinstance(first, Record)
    assert first.place == f"{topic}[1]@0"


def test_each_delivery_is_reported_once_with_its_offset(harness: Harness) -> None:
    topic = harness.topic()
    reports: list[tuple[int, int | None, LogError | None]] = []
    producer = harness.producer()
    for number in range(500):
        producer.send(
            topic,
            0,
            b"%d" % number,
            on_delivery=lambda offset, error, number=number: reports.append(  # type: ignore[misc]
                (number, offset, error)
            ),
        )
    assert producer.flush(PATIENCE_S) == 0
    until(lambda: len(reports) == 500, "every delivery is reported")
    assert reports == [(number, number, None) for number in range(500)]
    assert harness.values((topic, 0)) == [b"%d" % number for number in range(500)]


def test_a_delivery_is_reported_without_flush(harness: Harness) -> None:
    topic = harness.topic()
    reports: list[tuple[int | None, LogError | None]] = []
    producer = harness.producer()
    producer.send(topic, 0, b"x", on_delivery=lambda *report: reports.append(report))
    until(lambda: reports == [(0, None)], "the delivery is reported")


def test_an_oversize_record_is_refused_alone(harness: Harness) -> None:
    topic = harness.topic()
    producer = harness.producer()
    producer.send(topic, 0, b"before")
    with pytest.raises(TooLargeError, match=rf"{topic}\[0\].*{RECORD_BYTES_MAX}"):
        producer.send(topic, 0, bytes(RECORD_BYTES_MAX + 1))
    with pytest.raises(TooLargeError):
        producer.send(topic, 0, bytes(RECORD_BYTES_MAX - 5), headers=[("name", b"xx")])
    producer.send(topic, 0, b"after")
    assert producer.flush(PATIENCE_S) == 0
    assert harness.values((topic, 0)) == [b"before", b"after"]


def test_the_largest_record_passes(harness: Harness) -> None:
    topic = harness.topic()
    headers = [("meta", bytes(996))]
    body = bytes(RECORD_BYTES_MAX - 1000)
    producer = harness.producer()
    for _ in range(3):
        producer.send(topic, 0, body, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    assert [len(value) for value in harness.values((topic, 0))] == [len(body)] * 3


def test_a_record_for_an_unknown_partition_is_not_lost_in_silence(harness: Harness) -> None:
    topic = harness.topic()
    producer = harness.producer()
    producer.send(topic, 0, b"x")
    assert producer.flush(PATIENCE_S) == 0
    with pytest.raises(LogError, match=rf"{topic}\[7\]"):
        _send_and_flush(harness, topic)


def _send_and_flush(harness: Harness, topic: str) -> None:
    producer = harness.producer()
    producer.send(topic, 7, b"x")
    producer.flush(PATIENCE_S)


def test_a_reader_takes_up_to_its_limit_from_all_its_partitions(harness: Harness) -> None:
    topic = harness.topic(3)
    for partition in range(3):
        harness.fill((topic, partition), [b"%d" % number for number in range(50)])
    reader = harness.reader({(topic, 0): 0, (topic, 2): 20})
    found: list[Record] = []
    while not (reader.reached((topic, 0), 50) and reader.reached((topic, 2), 50)):
        polled = reader.poll(7, 0.05)
        assert len(polled) <= 7
        found += polled
    assert [r.offset for r in found if r.partition == 0] == list(range(50))
    assert [r.offset for r in found if r.partition == 2] == list(range(20, 50))
    assert len(found) == 80


def test_assign_replaces_what_was_assigned(harness: Harness) -> None:
    topic = harness.topic(2)
    harness.fill((topic, 0), [b"a", b"b", b"c"])
    harness.fill((topic, 1), [b"d"])
    reader = harness.reader({(topic, 0): 0, (topic, 1): 0})
    drain(reader, (topic, 0), 3)
    reader.assign({(topic, 0): 1})
    assert [record.offset for record in drain(reader, (topic, 0), 3)] == [1, 2]
    with pytest.raises(LogError, match=rf"{topic}\[1\]"):
        reader.reached((topic, 1), 1)


def test_an_empty_partition_is_reached_at_once(harness: Harness) -> None:
    topic = harness.topic()
    reader = harness.reader({(topic, 0): 0})
    assert reader.bounds((topic, 0)) == (0, 0)
    assert reader.reached((topic, 0), 0)
    assert reader.poll(10, 0.0) == []
    harness.fill((topic, 0), [b"x"])
    assert not reader.reached((topic, 0), 1)
    assert [record.value for record in drain(reader, (topic, 0), 1)] == [b"x"]
