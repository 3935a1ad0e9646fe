"""The contract suite's one fixture: a log, in memory and on a real Kafka."""

from collections.abc import Iterator

import pytest

from adapters.clock import SystemClock
from adapters.kafka import KafkaLog
from adapters.memory import MemoryLog
from schemas.log import Producer
from tests.contract.harness import Harness

#: A test sees an open transaction withhold positions for this long, and no longer.
IMPATIENT_S = 0.2


@pytest.fixture(scope="session")
def kafka_parts(kafka_bootstrap: str) -> Iterator[tuple[KafkaLog, KafkaLog, Producer]]:
    """A log, one to the same brokers that gives up early, and a producer."""
    log = KafkaLog(kafka_bootstrap)
    impatient = KafkaLog(kafka_bootstrap, patience_s=IMPATIENT_S)
    producer = log.producer()
    yield log, impatient, producer
    producer.close()
    impatient.close()
    log.close()


@pytest.fixture(params=["memory", "kafka"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if request.param == "memory":
        memory = MemoryLog(SystemClock())
        made = Harness(memory, memory)
    else:
        made = Harness(*request.getfixturevalue("kafka_parts"))
    yield made
    made.close()
