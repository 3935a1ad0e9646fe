"""Topics: created once, checked ever after, and told from their namesakes."""

import pytest

from schemas.log import LogError, TopicSpec
from tests.contract.harness import Harness


def test_ensure_creates_what_is_missing_and_says_what(harness: Harness) -> None:
    specs = [TopicSpec(harness.fresh("topic"), 1 + number, {}) for number in range(3)]
    assert harness.log.ensure_topics(specs[:1]) == [specs[0].name]
    assert harness.log.ensure_topics(specs) == [specs[1].name, specs[2].name]
    assert harness.log.ensure_topics(specs) == []
    assert [harness.log.partitions(spec.name) for spec in specs] == [1, 2, 3]
    assert {spec.name for spec in specs} <= set(harness.log.topics())
    assert harness.log.topics() == sorted(harness.log.topics())


def test_another_shape_is_refused_and_nothing_is_created(harness: Harness) -> None:
    topic, missing = harness.topic(2), harness.fresh("topic")
    with pytest.raises(LogError, match=rf"{topic} has 2 partitions and needs 3; .*prefix"):
        harness.log.ensure_topics([TopicSpec(missing, 1, {}), TopicSpec(topic, 3, {})])
    assert harness.log.partitions(topic) == 2
    assert harness.log.partitions(missing) == 0


def test_topic_settings_are_taken(harness: Harness) -> None:
    name = harness.fresh("topic")
    kept = {"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}
    assert harness.log.ensure_topics([TopicSpec(name, 1, kept)]) == [name]
    harness.fill((name, 0), [b"x"])
    assert harness.values((name, 0)) == [b"x"]


def test_a_recreated_topic_is_another_one(harness: Harness) -> None:
    topic = harness.topic()
    first = harness.log.topic_id(topic)
    assert first == harness.log.topic_id(topic)
    harness.fill((topic, 0), [b"old"])
    harness.log.delete_topic(topic)
    assert harness.log.partitions(topic) == 0
    assert topic not in harness.log.topics()
    harness.log.ensure_topics([TopicSpec(topic, 1, {})])
    assert harness.log.topic_id(topic) != first
    assert harness.reader().bounds((topic, 0)) == (0, 0)
    assert harness.log.topic_id(harness.topic()) != harness.log.topic_id(topic)


def test_questions_about_an_unknown_topic_name_it(harness: Harness) -> None:
    missing = harness.fresh("topic")
    assert harness.log.partitions(missing) == 0
    with pytest.raises(LogError, match=missing):
        harness.log.topic_id(missing)
    with pytest.raises(LogError, match=missing):
        harness.reader().bounds((missing, 0))


def test_deleting_beyond_the_end_is_refused(harness: Harness) -> None:
    topic = harness.topic()
    harness.fill((topic, 0), [b"x"])
    with pytest.raises(LogError, match=rf"{topic}\[0\]"):
        harness.log.delete_records({(topic, 0): 5})
    assert harness.values((topic, 0)) == [b"x"]
