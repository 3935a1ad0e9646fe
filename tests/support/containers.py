"""Kafka and Redis in containers: the source of last resort (tests.support.services)."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import docker
import pytest
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer

from fairlane import stack_probe, stack_process
from fairlane.stack import free_ports
from fairlane.stack_kafka import SINGLE_NODE
from fairlane.stack_tools import KAFKA_VERSION

#: A broker on a busy machine; pulling the images comes before and isn't counted.
CONTAINER_SECONDS_MAX = 90.0
KAFKA_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
REDIS_IMAGE = "redis:7.2-alpine"


class KafkaContainer(DockerContainer):
    """Kafka's own image as a single node that advertises its port on 127.0.0.1.

    The broker writes transaction markers to itself through its inner listener: with the
    advertised one alone it would look for itself at an address that only the host knows.
    """

    def __init__(self, port: int) -> None:
        super().__init__(KAFKA_IMAGE)
        _publish(self, 9092, port)
        inner = "INNER://localhost:9094,CONTROLLER://localhost:9093"
        settings = {
            **SINGLE_NODE,
            "node.id": "1",
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            "listeners": f"PLAINTEXT://0.0.0.0:9092,{inner}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},INNER://localhost:9094",
            "inter.broker.listener.name": "INNER",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
        }
        for name, value in settings.items():
            self.with_env("KAFKA_" + name.upper().replace(".", "_"), value)


@contextmanager
def kafka() -> Iterator[str]:
    """The bootstrap address of a broker in a container."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with KafkaContainer(port):
        _await(lambda: stack_probe.kafka_answers(address), KAFKA_IMAGE)
        yield address


@contextmanager
def redis_url() -> Iterator[str]:
    """The URL of a Redis in a container."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    container = DockerContainer(REDIS_IMAGE)
    _publish(container, 6379, port)
    with container:
        _await(lambda: stack_probe.redis_answers(address), REDIS_IMAGE)
        yield f"redis://{address}/0"


def _publish(container: DockerContainer, inside: int, port: int) -> None:
    """Publish on 127.0.0.1 alone; the class's own way listens on every interface."""
    container.ports[str(inside)] = ("127.0.0.1", port)  # type: ignore[assignment]


def _await(answers: Callable[[], bool], image: str) -> None:
    if not stack_process.until(answers, CONTAINER_SECONDS_MAX):
        pytest.fail(f"{image} gave no answer in {CONTAINER_SECONDS_MAX:.0f} s", pytrace=False)


def docker_answers() -> bool:
    """Whether there is a Docker that this user may talk to."""
    with contextlib.suppress(DockerException):
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    return False
