"""Tail: every kind of record readable, what can't be read shown, the rest goes on."""

import json

import pytest
from msgspec import Struct

from adapters.memory import MemoryLog
from fairlane.tail import UnknownTopicError, as_dict, as_json, as_text, full_name, records
from schemas.codec import encode, header
from schemas.decisions import Chain, Decision
from schemas.log import Record, TopicSpec
from schemas.records import Request, Seen, Started
from schemas.topics import Topics
from tests.support.record_samples import SAMPLES, kind_of

TOPICS = Topics("t")
TOPIC = "t.workers.gpu"


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_123


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(Clock())
    log.ensure_topics([TopicSpec(TOPIC, 2, {})])
    return log


def record(value: bytes = b"", headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    return Record("t.x", 0, 7, 1_700_000_000_123, None, value, headers)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not isinstance(s, Chain)], ids=kind_of)
def test_every_kind_is_shown_with_its_name_and_fields(sample: Struct) -> None:
    with_body = kind_of(sample) in {"request", "batch", "batch_cancel", "result", "dead"}
    shown = record(b"text", tuple(header(sample))) if with_body else record(encode(sample))
    fields = json.loads(as_json(shown, TOPICS))
    assert fields["kind"] == kind_of(sample)
    assert set(fields["record"]) == set(sample.__struct_fields__)
    line = as_text(shown, TOPICS)
    assert line.startswith(f"t.x[0]@7 2023-11-14T22:13:20.123Z {kind_of(sample)} ")
    assert "\n" not in line


def test_steps_of_a_decision_say_what_they_are() -> None:
    (decision,) = (s for s in SAMPLES if isinstance(s, Decision))
    shown = as_dict(record(encode(decision), tuple(header(Chain(1, 1, b"d")))), TOPICS)
    kinds = [step["kind"] for step in shown["record"]["steps"]]
    assert {"policy", "worker", "arrived", "picked", "sealed"} <= set(kinds)
    assert shown["record"]["steps"][1]["record"]["kind"] == "handed_back"
    assert "body" not in shown


def test_bodies_are_text_or_hex_and_never_long() -> None:
    head = tuple(header(Request(1, "id", "acme", "embed"), [("trace", b"\x00\x01")]))
    assert as_dict(record(b"hello", head), TOPICS)["body"] == "hello"
    assert as_dict(record(b"hello", head), TOPICS)["headers"] == [["trace", "0x0001"]]
    assert as_dict(record(b"\xff\x00" * 500, head), TOPICS)["body"].endswith("... (1000 bytes)")
    assert len(as_text(record(b"x" * 100_000, head), TOPICS)) < 500


def test_what_can_not_be_read_says_why_and_shows_its_first_bytes() -> None:
    shown = as_text(record(b"\xc1" + b"\x02" * 100), TOPICS)
    assert "! unreadable: " in shown
    assert shown.endswith(f"bytes: c1{'02' * 31}")
    assert as_dict(record(encode(Seen(9, 1))), TOPICS)["error"] == "unknown_version"
    policy = Record(TOPICS.policy, 0, 0, 0, b"policy", b"{}", ())
    assert as_dict(policy, TOPICS)["error"] == "unreadable"
    assert as_dict(record(), TOPICS)["first_bytes"] == "none"


def fill(log: MemoryLog, *numbers: int) -> None:
    for number in numbers:
        log.producer().send(TOPIC, number % 2, encode(Started(1, number)))


def numbers(found: list[Record]) -> list[int]:
    return sorted(as_dict(r, TOPICS)["record"]["number"] for r in found)


def test_from_the_beginning_to_the_end_as_it_was(log: MemoryLog) -> None:
    fill(log, 0, 1, 2, 3)
    reading = records(log, TOPIC, from_beginning=True, follow=False)
    first = next(reading)
    fill(log, 4, 5)
    assert numbers([first, *reading]) == [0, 1, 2, 3]


def test_a_limit_ends_it_and_following_starts_at_the_end(log: MemoryLog) -> None:
    fill(log, 0, 1, 2, 3)
    assert len(list(records(log, TOPIC, from_beginning=True, limit=3))) == 3
    asked = 0

    def is_stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            fill(log, 6)
        return asked > 3

    assert numbers(list(records(log, TOPIC, is_stopped=is_stopped))) == [6]


def test_a_topic_is_found_with_or_without_its_prefix(log: MemoryLog) -> None:
    assert full_name(log, TOPICS, "workers.gpu") == full_name(log, TOPICS, TOPIC) == TOPIC
    with pytest.raises(UnknownTopicError, match=r'"none" does not exist; .*: t\.workers\.gpu$'):
        full_name(log, TOPICS, "none")
