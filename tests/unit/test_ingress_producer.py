"""The plain producer's thread, with a client whose failures are handed in."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from adapters import kafka_plain
from adapters.kafka_client import Settings
from adapters.kafka_plain import KafkaProducer
from schemas.log import InDoubtError, LogError, UnavailableError

FATAL = KafkaException(KafkaError(KafkaError._FATAL, "injected", fatal=True))
Report = Callable[[KafkaError | None, Any], None]


class Delivered:
    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


class Client:
    """The first client fails as it is told; later ones deliver at once."""

    made: list["Client"]

    def __init__(self, _: object) -> None:
        self.is_first = not self.made
        self.made.append(self)
        self.reports: list[Report] = []
        self.fails_at: dict[str, Exception] = {}
        self.polls = 0
        self.turn = threading.Event()

    def _fail(self, call: str) -> None:
        if call in self.fails_at:
            raise self.fails_at[call]

    def produce(self, topic: str, *, on_delivery: Report, **_: object) -> None:
        self._fail("produce")
        if self.is_first:
            self.reports.append(on_delivery)
        else:
            on_delivery(None, Delivered())

    def poll(self, timeout_s: float) -> int:
        self.polls += 1
        self.turn.wait(timeout_s / 10)
        self._fail("poll")
        return 0

    def purge(self, **_: object) -> None:
        pass

    def flush(self, _: float) -> int:
        for report in self.reports:
            report(KafkaError(KafkaError._PURGE_INFLIGHT), Delivered())
        self.reports.clear()
        return 0

    def close(self) -> None:
        self._fail("close")


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> KafkaProducer:
    Client.made = []
    monkeypatch.setattr(kafka_plain, "Producer", Client)
    monkeypatch.setattr(kafka_plain, "RENEW_PAUSE_S", 0.05)
    return KafkaProducer(Settings("127.0.0.1:1", 6000, 300, {}))


def delivered(producer: KafkaProducer) -> int | None:
    """Offset of a record sent until a client takes it."""
    offsets: list[int | None] = []
    gone = threading.Event()
    for _ in range(1_000):
        try:
            producer.send("t", 0, b"x", on_delivery=lambda offset, _: offsets.append(offset))
        except UnavailableError:
            gone.wait(0.01)
        else:
            break
    return offsets[0]


@pytest.mark.parametrize("call", ["poll", "produce"])
def test_a_fatal_error_renews_the_client_and_reports_what_it_held(
    producer: KafkaProducer, call: str
) -> None:
    held: list[LogError | None] = []
    reported = threading.Event()

    def report(_: int | None, error: LogError | None) -> None:
        held.append(error)
        reported.set()

    producer.send("t", 0, b"held", on_delivery=report)
    Client.made[0].fails_at = {call: FATAL, "close": FATAL}
    if call == "produce":
        with pytest.raises(UnavailableError, match="the client failed: injected"):
            producer.send("t", 0, b"x")
    assert reported.wait(30)
    assert isinstance(held[0], InDoubtError)
    assert delivered(producer) == 7
    assert len(Client.made) == 2
    producer.close()


def test_any_other_error_leaves_the_thread_alive(producer: KafkaProducer) -> None:
    Client.made[0].fails_at = {"poll": ZeroDivisionError("ours")}
    polled = threading.Event()
    while Client.made[0].polls < 3:
        polled.wait(0.01)
    assert producer._thread.is_alive()
    assert len(Client.made) == 1
    producer.close()
