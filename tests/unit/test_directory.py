"""Keys and policy as they are followed: a revocation acts with the turn that reads it."""

import hmac
from random import Random
from typing import Any

import msgspec
import pytest

from adapters.memory import MemoryLog
from producers import directory
from producers.directory import Directory
from schemas import codec, keys
from schemas.keys import digest, key_record, new_key
from schemas.records import ApiKey
from schemas.topics import Topics
from tests.support.door import POLICY, Clock

TOPICS = Topics("t")


def publish(log: MemoryLog, record: ApiKey) -> None:
    producer = log.producer()
    producer.send(TOPICS.keys, 0, codec.encode(record), key=record.id.encode())
    producer.close()


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog(Clock())
    made.ensure_topics(TOPICS.of(POLICY))
    return made


def test_a_revocation_acts_with_the_turn_that_reads_it(log: MemoryLog) -> None:
    made = new_key(Random(1).randbytes)
    record = key_record(made, "acme", 1)
    followed = Directory(log, TOPICS)
    publish(log, record)
    followed.turn(0)
    followed.turn(0)
    assert followed.authenticate(f"Bearer {made}") == record
    assert followed.authenticate(f"bearer  {made} ") == record
    publish(log, msgspec.structs.replace(record, revoked_ms=5))
    assert followed.turn(0) == 1
    assert followed.authenticate(f"Bearer {made}") is None
    followed.close()


def test_the_same_is_compared_whether_or_not_there_is_such_a_key(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(2)
    made = new_key(random.randbytes)
    record = key_record(made, "acme", 1)
    followed = Directory(log, TOPICS)
    publish(log, record)
    followed.turn(0)
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def compare_digest(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    unknown = new_key(random.randbytes)
    wrong = made[:-1] + ("0" if made[-1] != "0" else "1")
    for tried in (unknown, wrong, made):
        followed.authenticate(f"Bearer {tried}")
    assert [other for _, other in compared] == [
        digest(tried.split("_")[2]) for tried in (unknown, wrong, made)
    ]
    assert all(len(one) == len(other) == 32 for one, other in compared)
    assert compared[0][0] == directory._NOBODY.digest
    followed.close()


def test_nobodys_key_is_proven_by_nothing() -> None:
    """Not even by a secret of the digest that it has: it is revoked."""
    assert directory._NOBODY.revoked_ms
    assert not keys.proves(directory._NOBODY, "")
