"""The log on Apache Kafka: the factory, topics, and questions about partitions and groups.

What belongs here: what needs no producer, reader or member of its own; one admin client, one
client for questions about partitions, and one for each group whose positions are read or
written. (The admin client's answers about offsets are not to be trusted: after a time-out it
reports -1001 without an error, and it keeps a leader's old epoch.) What does not: policy about when
to call what. Settings and the meaning of errors: kafka_client.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names
    AdminClient,
    ClusterMetadata,
    NewTopic,
)

from adapters.kafka_client import (
    REQUEST_TIMEOUT_S,
    RETRY_PAUSE_S,
    Setting,
    Settings,
    error_of,
    meaning,
    patiently,
)
from adapters.kafka_members import KafkaMembership
from adapters.kafka_plain import KafkaProducer
from adapters.kafka_producers import KafkaTransactional
from adapters.kafka_reader import KafkaReader
from schemas.log import (
    Bounds,
    Commit,
    LogError,
    Partition,
    TopicSpec,
    UnavailableError,
    check_commits,
)

Result = TypeVar("Result")

#: How long a killed member keeps its partitions; the lowest that rides out a pause of the JVM.
SESSION_TIMEOUT_MS = 6_000
#: A rebalance is noticed with the next heartbeat.
HEARTBEAT_MS = 300
#: Longer than a transaction can stay open, so that `committed` outlasts a dead holder's.
PATIENCE_S = 10.0
#: How long `ensure_topics` and `delete_topic` wait until all brokers' metadata agrees.
METADATA_TIMEOUT_S = 30.0
#: The readers' group, for which nothing is committed: a consumer wants one to ask for topics.
UNUSED_GROUP = "fairlane-reader"


class KafkaLog:
    """A log on Kafka.

    Args:
        bootstrap: addresses, `host:port,...`.
        replication: replicas of topics that are created; -1 is the brokers' default.
        min_insync: their `min.insync.replicas`; None is the brokers' default.
        session_timeout_ms: how long a killed member keeps its partitions.
        heartbeat_ms: how soon members notice a rebalance.
        patience_s: how long a question is repeated while the brokers can't answer it, or an open
            transaction withholds the answer.
        overrides: client settings by their Kafka names, for every client (security, sockets).
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        replication: int = -1,
        min_insync: int | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        heartbeat_ms: int = HEARTBEAT_MS,
        patience_s: float = PATIENCE_S,
        **overrides: Setting,
    ) -> None:
        self._settings = Settings(bootstrap, session_timeout_ms, heartbeat_ms, overrides)
        self._replication = replication
        self._min_insync = min_insync
        self._patience_s = patience_s
        self._admin = AdminClient(self._settings.admin())
        self._askers: dict[bool, Consumer] = {}
        self._groups: dict[str, Consumer] = {}
        self._lock = threading.Lock()

    def producer(self, *, linger_ms: int = 0) -> KafkaProducer:
        """Make an idempotent producer; a record waits up to `linger_ms` for others to go along."""
        return KafkaProducer(self._settings, linger_ms)

    def transactional(self, transactional_id: str) -> KafkaTransactional:
        """Make a transactional producer; nothing is taken over before `init`."""
        return KafkaTransactional(self._settings, self.group_client, transactional_id)

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> KafkaReader:
        """Make a reader. With `committed_only` False it also shows open and aborted records."""
        return KafkaReader(self._settings, self, committed_only=committed_only, ahead=ahead)

    def membership(self, group: str, topic: str, instance: str | None = None) -> KafkaMembership:
        """Join `group` on `topic`; `instance` names a static member that survives a restart."""
        return KafkaMembership(self._settings, group, topic, instance)

    def ensure_topics(self, topics: Sequence[TopicSpec]) -> list[str]:
        """Create what is missing and wait until it is known; returns the names created.

        Raises:
            LogError: a topic exists with another number of partitions, or can't be created.
            UnavailableError: the brokers don't answer, or don't settle in time.
        """
        counts = self._counts()
        for spec in topics:
            _check_shape(spec, counts.get(spec.name, spec.partitions))
        missing = [spec for spec in topics if spec.name not in counts]
        if not missing:
            return []
        created = [spec.name for spec in missing if self._create(spec)]
        self._await_metadata(
            "ensure_topics",
            lambda known: all(_is_led(known, spec.name) for spec in missing),
        )
        counts = self._counts()
        for spec in missing:
            _check_shape(spec, counts[spec.name])
        return created

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; 0 when it does not exist."""
        # Not by the admin client: where brokers create topics on demand, its question does. And by
        # a client of its own: one that was told of no such topic refuses to ask for its offsets.
        client = self.group_client(UNUSED_GROUP)
        found = self._patiently(
            f"topic {topic}", lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        ).topics[topic]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise meaning(found.error, f"topic {topic}")

    def topic_id(self, topic: str) -> str:
        """The topic's identity. Raises LogError when there is none of this name."""
        request = TopicCollection([topic])
        return self._patiently(
            f"topic {topic}",
            lambda: str(self._admin.describe_topics(request)[topic].result().topic_id),
        )

    def topics(self) -> list[str]:
        """Names of all topics but the brokers' own, sorted."""
        return sorted(name for name in self._counts() if not name.startswith("__"))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with everything in it, and wait until it is gone."""
        asked = self._admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            asked.result()
        except KafkaException as raised:
            if error_of(raised).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise meaning(error_of(raised), f"topic {topic}: delete") from raised
        self._await_metadata("delete_topic", lambda known: topic not in known.topics)

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Drop everything below the given offsets. Raises LogError beyond the end."""
        wanted = [TopicPartition(topic, number, at) for (topic, number), at in before.items()]
        if not wanted:
            return
        asked = self._admin.delete_records(wanted, request_timeout=REQUEST_TIMEOUT_S)
        for item, future in asked.items():
            try:
                future.result()
            except KafkaException as raised:
                place = f"{item.topic}[{item.partition}]: delete_records before {item.offset}"
                raise meaning(error_of(raised), place) from raised

    def bounds(self, partition: Partition, *, committed_only: bool = True) -> Bounds:
        """First offset and end of a partition, asked of the broker."""
        client = self._asker(committed_only=committed_only)
        name = TopicPartition(*partition)

        def ask() -> Bounds:
            found = client.get_watermark_offsets(name, REQUEST_TIMEOUT_S, cached=False)
            if found is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            return Bounds(*found)

        return self._patiently(f"{partition[0]}[{partition[1]}]: bounds", ask)

    def offset_at(
        self, partition: Partition, time_ms: int, *, committed_only: bool = True
    ) -> int | None:
        """First offset whose timestamp is at least `time_ms`; None when there is none."""
        client = self._asker(committed_only=committed_only)
        wanted = [TopicPartition(*partition, time_ms)]

        def ask() -> int:
            found = client.offsets_for_times(wanted, REQUEST_TIMEOUT_S)
            _check_each(found)
            return found[0].offset

        offset = self._patiently(f"{partition[0]}[{partition[1]}]: offset_at", ask)
        return offset if offset >= 0 else None

    def committed(
        self, group: str, partitions: Sequence[Partition]
    ) -> dict[Partition, Commit | None]:
        """What the group committed.

        Raises:
            UnavailableError: an open transaction that holds such commits did not end in time.
        """
        client = self.group_client(group)
        wanted = [TopicPartition(topic, number) for topic, number in partitions]

        def ask() -> list[TopicPartition]:
            found = client.committed(wanted, self._patience_s)
            _check_each(found)
            return found

        return {
            (item.topic, item.partition): (
                Commit(item.offset, item.metadata or "") if item.offset >= 0 else None
            )
            for item in self._patiently(f"group {group}: committed", ask)
        }

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions outside of a transaction. Raises TooLargeError for metadata."""
        check_commits(group, commits)
        if not commits:
            return
        client = self.group_client(group)
        offsets = [
            TopicPartition(topic, number, commit.offset, commit.metadata)
            for (topic, number), commit in commits.items()
        ]
        self._patiently(
            f"group {group}: commit",
            lambda: _check_each(client.commit(offsets=offsets, asynchronous=False)),
        )

    def group_client(self, group: str) -> Consumer:
        """The client that stands for a group without members; one for each group."""
        with self._lock:
            client = self._groups.get(group)
            if client is None:
                client = self._groups[group] = Consumer(self._settings.group(group))
            return client

    def close(self) -> None:
        """Free the clients."""
        with self._lock:
            for client in (*self._groups.values(), *self._askers.values()):
                client.close()
            self._groups.clear()
            self._askers.clear()

    def _patiently(self, place: str, call: Callable[[], Result]) -> Result:
        return patiently(place, call, self._patience_s)

    def _asker(self, *, committed_only: bool) -> Consumer:
        """The client for questions about partitions; what it sees depends on its isolation."""
        with self._lock:
            client = self._askers.get(committed_only)
            if client is None:
                client = Consumer(self._settings.reader(committed_only=committed_only, ahead=True))
                self._askers[committed_only] = client
            return client

    def _counts(self) -> dict[str, int]:
        return {name: len(found.partitions) for name, found in self._metadata().topics.items()}

    def _create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when somebody else did meanwhile."""
        config = dict(spec.config)
        if self._min_insync is not None:
            config.setdefault("min.insync.replicas", str(self._min_insync))
        topic = NewTopic(spec.name, spec.partitions, self._replication, config=config)
        try:
            self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[
                spec.name
            ].result()
        except KafkaException as raised:
            if error_of(raised).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise meaning(error_of(raised), f"topic {spec.name}: create") from raised
        return True

    def _await_metadata(self, place: str, is_settled: Callable[[ClusterMetadata], bool]) -> None:
        deadline = time.monotonic() + METADATA_TIMEOUT_S
        while not is_settled(self._metadata()):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{place}: the brokers' metadata did not settle within {METADATA_TIMEOUT_S} s"
                )
            time.sleep(RETRY_PAUSE_S)

    def _metadata(self) -> ClusterMetadata:
        return self._patiently(
            "metadata", lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        )


def _is_led(known: ClusterMetadata, topic: str) -> bool:
    found = known.topics.get(topic)
    return (
        found is not None
        and found.error is None
        and bool(found.partitions)
        and all(part.leader >= 0 for part in found.partitions.values())
    )


def _check_shape(spec: TopicSpec, has: int) -> None:
    if has != spec.partitions:
        raise LogError(
            f"topic {spec.name} has {has} partitions and needs {spec.partitions}; "
            "use another prefix, or the topology that it was created with"
        )


def _check_each(found: list[TopicPartition]) -> None:
    """Raise what an answer says about one of its partitions."""
    for item in found:
        if item.error is not None:
            raise KafkaException(item.error)
