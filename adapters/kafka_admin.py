"""What a cluster says about itself: brokers, topics as they really are, live members of groups.

For looking, not for working: nothing here writes, and nothing waits longer than it is told to.
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names
    AdminClient,
    ConfigResource,
    ResourceType,
)

from adapters.kafka_client import Setting, Settings, error_of, meaning
from schemas.log import LogError, UnavailableError

#: What the client waits beyond the brokers' own limit before a future counts as lost.
MARGIN_S = 0.5

_silent = logging.getLogger("fairlane.kafka.admin")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class TopicFacts(NamedTuple):
    """A topic as it is: partitions, the fewest copies that one has, and those without leader."""

    partitions: int
    copies: int
    leaderless: int


class ClusterFacts(NamedTuple):
    """A cluster as its metadata describes it; `topics` by name, the brokers' own left out."""

    id: str
    brokers: int
    topics: Mapping[str, TopicFacts]


class GroupFacts(NamedTuple):
    """Live members of a group, and how many partitions they hold together."""

    members: int
    held: int


class KafkaAdmin:
    """Questions to a cluster; each waits `timeout_s` at most. Raises LogError."""

    def __init__(self, bootstrap: str, timeout_s: float, **overrides: Setting) -> None:
        """Connect to nothing yet; `overrides` are client settings by their Kafka names."""
        self._timeout_s = timeout_s
        settings = Settings(bootstrap, 6_000, 300, overrides).admin()
        try:
            self._client = AdminClient(settings, logger=_silent)
        except KafkaException as raised:
            raise meaning(error_of(raised), "client settings") from raised

    def cluster(self) -> ClusterFacts:
        """The cluster's id, brokers and topics."""
        try:
            found = self._client.list_topics(timeout=self._timeout_s)
        except KafkaException as raised:
            raise meaning(error_of(raised), "metadata") from raised
        topics = {
            name: TopicFacts(
                len(topic.partitions),
                min((len(part.replicas) for part in topic.partitions.values()), default=0),
                sum(part.leader < 0 for part in topic.partitions.values()),
            )
            for name, topic in found.topics.items()
            if not name.startswith("__")
        }
        return ClusterFacts(str(found.cluster_id), len(found.brokers), topics)

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Settings in force of topics that exist, by topic and name; defaults are included."""
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not wanted:
            return {}
        asked = self._client.describe_configs(wanted, request_timeout=self._timeout_s)
        return {
            resource.name: {
                name: entry.value
                for name, entry in self._answer(future, f"topic {resource.name}").items()
                if entry.value is not None
            }
            for resource, future in asked.items()
        }

    def groups(self, names: Iterable[str]) -> dict[str, GroupFacts]:
        """Live members of groups, by group; one that doesn't exist has none."""
        asked = self._client.describe_consumer_groups(list(names), request_timeout=self._timeout_s)
        return {name: self._group(future, name) for name, future in asked.items()}

    def _group(self, future: "Future[Any]", name: str) -> GroupFacts:
        try:
            members = self._answer(future, f"group {name}").members
        except LogError as error:
            cause = error.__cause__
            if (
                isinstance(cause, KafkaException)
                and error_of(cause).code() == KafkaError.GROUP_ID_NOT_FOUND
            ):
                return GroupFacts(0, 0)
            raise
        return GroupFacts(
            len(members),
            sum(len(item.assignment.topic_partitions) for item in members if item.assignment),
        )

    def _answer(self, future: "Future[Any]", place: str) -> Any:
        try:
            return future.result(timeout=self._timeout_s + MARGIN_S)
        except TimeoutError as raised:
            raise UnavailableError(f"{place}: no answer within {self._timeout_s:g} s") from raised
        except KafkaException as raised:
            raise meaning(error_of(raised), place) from raised
