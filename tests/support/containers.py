"""Kafka and Redis in containers: the source of last resort (tests.support.services)."""

import gc
import warnings
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


def node_settings(port: int) -> dict[str, str]:
    """The environment of a single node in a container that is reached at 127.0.0.1:port.

    The broker writes transaction markers to itself through its inner listener: with the
    advertised one alone it would look for itself at an address that only the host knows.
    """
    inner = "INNER://localhost:9094"
    settings = {
        **SINGLE_NODE,
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://0.0.0.0:9092,{inner},CONTROLLER://localhost:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},{inner}",
        "inter.broker.listener.name": "INNER",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
    }
    return {"KAFKA_" + name.upper().replace(".", "_"): text for name, text in settings.items()}


class KafkaContainer(DockerContainer):
    """Kafka's own image as a single node that advertises its port on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        super().__init__(KAFKA_IMAGE)
        _publish(self, 9092, port)
        self.with_envs(**node_settings(port))


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
    with warnings.catch_warnings():
        # The client leaves its socket to the collector when nobody answers.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _ping()
        gc.collect()
        return answers


def _ping() -> bool:
    try:
        client = docker.from_env(timeout=5)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except DockerException:
        return False
    finally:
        client.close()
