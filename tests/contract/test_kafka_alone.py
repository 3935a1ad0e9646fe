"""What only the adapter of a real Kafka has: topics' own limits, options, failing callbacks."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names
    AdminClient,
    ConfigResource,
    ResourceType,
)

from adapters.kafka import KafkaLog
from adapters.kafka_members import KafkaMembership
from schemas.log import (
    AbortedError,
    LogError,
    TooLargeError,
    TopicSpec,
    TransactionalProducer,
)
from tests.contract.harness import POLL_S, Harness, until


@pytest.fixture
def harness(kafka_bootstrap: str) -> Iterator[Harness]:
    log = KafkaLog(kafka_bootstrap, replication=1, min_insync=1)
    made = Harness(log, log)
    yield made
    made.close()
    log.close()


def test_a_record_above_the_topics_own_limit_fails_its_transaction_for_good(
    harness: Harness,
) -> None:
    topic = harness.fresh("topic")
    harness.log.ensure_topics([TopicSpec(topic, 1, {"max.message.bytes": "2000"})])
    holder = harness.transactional(harness.fresh("id"))
    holder.begin()
    holder.send(topic, 0, b"sibling")
    holder.send(topic, 0, bytes(5000))
    with pytest.raises(TooLargeError, match=rf"{topic}\[0\]"):
        holder.commit()
    until(lambda: _is_committed(holder, topic), "the holder goes on")
    assert harness.values((topic, 0)) == [b"next"]


def _is_committed(holder: TransactionalProducer, topic: str) -> bool:
    """The client may abort one more transaction before it numbers records afresh."""
    holder.begin()
    holder.send(topic, 0, b"next")
    try:
        holder.commit()
    except AbortedError:
        return False
    return True


def test_a_plain_record_above_the_topics_own_limit_is_reported(harness: Harness) -> None:
    topic = harness.fresh("topic")
    harness.log.ensure_topics([TopicSpec(topic, 1, {"max.message.bytes": "2000"})])
    reports: list[tuple[int | None, LogError | None]] = []
    producer = harness.producer()
    producer.send(topic, 0, bytes(5000), on_delivery=lambda *report: reports.append(report))
    until(lambda: bool(reports), "the delivery is reported")
    [(offset, error)] = reports
    assert offset is None
    assert isinstance(error, TooLargeError)


def test_created_topics_have_the_replication_that_was_asked_for(
    harness: Harness, kafka_bootstrap: str
) -> None:
    topic = harness.topic()
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result()
    assert config["min.insync.replicas"].value == "1"
    assert not config["min.insync.replicas"].is_default
    described = admin.list_topics(topic, timeout=10).topics[topic]
    assert [len(part.replicas) for part in described.partitions.values()] == [1]


def test_an_assignment_that_cannot_be_taken_ends_the_membership(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: KafkaMembership, client: Consumer, partitions: list[TopicPartition]) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(KafkaMembership, "_assign", fail)
    member = harness.membership(harness.fresh("group"), harness.topic())
    with pytest.raises(LogError, match="no room"):
        until(lambda: member.poll(POLL_S) is not None, "the failure is raised")
    with pytest.raises(LogError, match="no room"):
        member.poll(POLL_S)


def test_a_membership_on_an_unknown_topic_says_so(harness: Harness) -> None:
    topic = f"missing-{uuid.uuid4().hex}"
    member = harness.membership(harness.fresh("group"), topic)
    with pytest.raises(LogError, match="ensure_topics"):
        until(lambda: member.poll(POLL_S) is not None, "the failure is raised")


def test_other_work_is_asked_again_after_it_had_nothing_to_do(harness: Harness) -> None:
    """Brokers take half a second to end a predecessor's transaction; something may come."""
    topic, name = harness.topic(), harness.fresh("id")
    predecessor = harness.transactional(name)
    predecessor.begin()
    predecessor.send(topic, 0, b"open")
    asked: list[bool] = []

    def nothing() -> bool:
        asked.append(False)
        return False

    everything = harness.reader(committed_only=False)
    until(lambda: everything.bounds((topic, 0)).end == 1, "the open record is written")
    heir = harness.log.transactional(name)
    heir.init(nothing)
    heir.close()
    assert len(asked) > 1
