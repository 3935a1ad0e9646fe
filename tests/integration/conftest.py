"""A deployment of a test's own on the session's Kafka and Redis."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.topics import Topics
from tests.support.processes import Processes


@pytest.fixture
def topics() -> Topics:
    """Names that nobody else has."""
    return Topics(f"run-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def processes(
    kafka_bootstrap: str, redis_url: str, topics: Topics, tmp_path: Path
) -> Iterator[Processes]:
    """Starts processes of that deployment; all are ended with the test."""
    env = {
        "FAIRLANE_KAFKA": kafka_bootstrap,
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_PREFIX": topics.prefix,
        "FAIRLANE_REPLICATION": "1",
    }
    found = Processes(tmp_path, env)
    yield found
    found.close()
