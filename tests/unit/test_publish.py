"""Publishing: a policy once and whole, the loser of a race publishes nothing."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.memory import MemoryLog
from fairlane.policy_file import load
from fairlane.publish import PublishError, publish_policy, published_policy
from schemas.policy import POLICY_KEY, Policy, PolicyError, Topology
from schemas.topics import Topics

EXAMPLE = load(Path("examples/policy.toml"))
OTHER = replace(EXAMPLE, tenants=EXAMPLE.tenants[:1])
TOPICS = Topics("t")


class Clock:
    def now_ms(self) -> int:
        return 1_000


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(Clock())


def test_versions_count_and_the_same_is_published_once(log: MemoryLog) -> None:
    assert published_policy(log, TOPICS) is None
    assert publish_policy(log, TOPICS, EXAMPLE) == replace(EXAMPLE, version=1)
    assert publish_policy(log, TOPICS, EXAMPLE) is None
    assert publish_policy(log, TOPICS, OTHER) == replace(OTHER, version=2)
    assert published_policy(log, TOPICS) == replace(OTHER, version=2)


def test_the_topics_are_there_before_the_policy(log: MemoryLog) -> None:
    publish_policy(log, TOPICS, EXAMPLE)
    assert set(log.topics()) == {spec.name for spec in TOPICS.of(EXAMPLE)}


def test_a_topic_that_was_deleted_is_made_by_the_same_policy(log: MemoryLog) -> None:
    publish_policy(log, TOPICS, EXAMPLE)
    log.delete_topic(TOPICS.dead)
    assert publish_policy(log, TOPICS, EXAMPLE) is None
    assert set(log.topics()) == {spec.name for spec in TOPICS.of(EXAMPLE)}


def test_who_is_asked_sees_the_published_one_and_may_say_no(log: MemoryLog) -> None:
    publish_policy(log, TOPICS, EXAMPLE)
    seen: list[Policy | None] = []

    def says_no(before: Policy | None) -> bool:
        seen.append(before)
        return False

    assert publish_policy(log, TOPICS, OTHER, says_no) is None
    assert seen == [replace(EXAMPLE, version=1)]
    assert published_policy(log, TOPICS) == replace(EXAMPLE, version=1)


def test_what_may_not_follow_is_refused_whole(log: MemoryLog) -> None:
    publish_policy(log, TOPICS, EXAMPLE)
    with pytest.raises(PolicyError, match="FAIRLANE_PREFIX"):
        publish_policy(log, TOPICS, replace(OTHER, topology=Topology(shards=3)))
    assert published_policy(log, TOPICS) == replace(EXAMPLE, version=1)


def test_of_two_who_apply_at_once_one_is_overtaken(log: MemoryLog) -> None:
    publish_policy(log, TOPICS, EXAMPLE)

    def overtaken(_: Policy | None) -> bool:
        assert publish_policy(log, TOPICS, OTHER) is not None
        return True

    third = replace(EXAMPLE, tenants=EXAMPLE.tenants[:2])
    with pytest.raises(PublishError, match="another policy was applied meanwhile"):
        publish_policy(log, TOPICS, third, overtaken)
    assert published_policy(log, TOPICS) == replace(OTHER, version=2)


def test_a_published_policy_that_is_none_is_told_with_its_place(log: MemoryLog) -> None:
    log.ensure_topics(TOPICS.base())
    log.producer().send(TOPICS.policy, 0, b"{}", key=POLICY_KEY)
    with pytest.raises(PolicyError, match=r"t\.policy\[0\]@0: policy: "):
        published_policy(log, TOPICS)
