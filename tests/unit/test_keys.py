"""API keys: opaque, kept as digests; created and revoked on the topic."""

from random import Random

import pytest
from msgspec.structs import replace

from adapters.memory import MemoryLog
from fairlane.keys import KeysError, create, revoke
from fairlane.publish import publish_policy, published_keys
from schemas.keys import digest, key_record, new_key, parse, proves
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.topics import Topics

POLICY = Policy(
    tiers=(Tier(name="only"),),
    pools=(Pool(name="gpu", lanes=1),),
    endpoints=(Endpoint(name="embed", pool="gpu"),),
    tenants=(Tenant(name="acme", tiers=("only",)),),
)
TOPICS = Topics("t")


class Clock:
    def now_ms(self) -> int:
        return 1_000


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(Clock())
    publish_policy(log, TOPICS, POLICY)
    return log


def test_a_key_parses_into_its_parts_and_only_its_secret_proves() -> None:
    key = new_key(Random(1).randbytes)
    parts = parse(key)
    assert parts is not None
    key_id, secret = parts
    assert key == f"fl_{key_id}_{secret}"
    assert len(bytes.fromhex(secret)) * 8 == 256
    record = key_record(key, "acme", 5, "note")
    assert (record.id, record.tenant, record.created_ms, record.note) == (key_id, "acme", 5, "note")
    assert secret not in repr(record)
    assert proves(record, secret)
    assert not proves(record, "0" * 64)
    assert not proves(replace(record, revoked_ms=6), secret)
    assert digest(secret) == record.digest


@pytest.mark.parametrize(
    "text",
    ["", "fl_", "fl_a_b", f"fl_{'0' * 16}_{'g' * 64}", f"fl_{'0' * 16}_{'0' * 64}\n", "x" * 10_000],
)
def test_other_texts_are_no_keys(text: str) -> None:
    assert parse(text) is None
    with pytest.raises(ValueError, match="no key of the form"):
        key_record(text, "acme", 0)


def test_a_created_key_is_on_the_topic_as_a_digest_until_revoked(log: MemoryLog) -> None:
    key = create(log, TOPICS, "acme", 7, "laptop", Random(1).randbytes)
    parts = parse(key)
    assert parts is not None
    key_id, secret = parts
    assert published_keys(log, TOPICS) == {key_id: key_record(key, "acme", 7, "laptop")}
    assert revoke(log, TOPICS, key_id, 9).revoked_ms == 9
    assert not proves(published_keys(log, TOPICS)[key_id], secret)
    assert revoke(log, TOPICS, key, 11).revoked_ms == 9, "revoked once is revoked"


def test_keys_of_nobody_are_refused(log: MemoryLog) -> None:
    with pytest.raises(KeysError, match='tenant "acmee" is not defined; defined are: acme'):
        create(log, TOPICS, "acmee", 0)
    with pytest.raises(KeysError, match="the note has 201 characters; 200 are kept"):
        create(log, TOPICS, "acme", 0, "n" * 201)
    with pytest.raises(KeysError, match="no policy is published under 'fairlane'"):
        create(log, Topics(), "acme", 0)
    with pytest.raises(KeysError, match="no key has the id 'abc'"):
        revoke(log, TOPICS, "abc", 0)
