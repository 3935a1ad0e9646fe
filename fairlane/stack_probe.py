"""Asking a service that may not be there yet: one real answer, not merely an open port.

The only file outside `adapters` that knows a client library: the adapters speak to services
that run, and starting one is the face's own business.
"""

import logging
import socket

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

#: One try; the caller looks again until its own limit.
ANSWER_SECONDS_MAX = 2.0

_silent = logging.getLogger("fairlane.stack.probe")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def kafka_answers(bootstrap: str) -> bool:
    """Whether the broker answers a metadata request and is registered."""
    # The client logs and retries refused connections; an open port is asked for first.
    if not _port_is_open(bootstrap):
        return False
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=_silent)
    try:
        return len(admin.list_topics(timeout=ANSWER_SECONDS_MAX).brokers) > 0
    except KafkaException:
        return False


def redis_answers(address: str) -> bool:
    """Whether the server at host:port answers PING with PONG (not: still loading)."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _port_is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX).close()
    except OSError:
        return False
    return True
