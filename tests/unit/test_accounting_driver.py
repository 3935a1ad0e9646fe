"""What the accounting's Kafka client lets pass, and what it says of each record."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from faust.types import TP

from accounting.driver import Chain, CommittedThread, Consumer, Link, Transport, follows

LANE, SUMS = TP("t.workers.gpu", 0), TP("t.usage.gpu", 0)


class Client:
    """Kafka's client, as far as it is asked here."""

    def __init__(self, committed: dict[TP, int | None]) -> None:
        self._committed = committed
        self.sought: Counter[TP] = Counter()
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=object()))

    def assignment(self) -> set[TP]:
        return set(self._committed)

    async def committed(self, tp: TP) -> int | None:
        return self._committed[tp]

    def seek(self, tp: TP, offset: int) -> None:
        assert tp in self._committed, "the client raises for what is not assigned"
        self.sought[tp] = offset


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    app = faust.App("t", store="memory://", broker="kafka://127.0.0.1:1")
    app.transport = Transport(app.conf.broker_consumer, app)
    monkeypatch.setattr(app.topics, "acks_enabled_for", lambda topic: topic == LANE.topic)
    made = app.consumer
    assert isinstance(made, Consumer)
    yield made
    made._thread.thread_loop.close()


def use(consumer: Consumer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(called: Any, *arguments: Any) -> Any:
        return await called(*arguments)

    monkeypatch.setattr(consumer._thread, "_consumer", client)
    monkeypatch.setattr(consumer._thread, "call_thread", here)


def said(*offsets: int) -> list[Any]:
    return [SimpleNamespace(offset=offset) for offset in offsets]


def claims(chain: Chain, assignment: object, *offsets: int) -> list[int | None]:
    return [link.follows for link in chain.linked(assignment, {LANE: said(*offsets)})[LANE]]


def test_a_record_follows_the_one_before_or_what_was_sought() -> None:
    chain, assignment = Chain(), object()
    assert claims(chain, assignment, 3, 5) == [None, 4]
    assert claims(chain, assignment, 9) == [6]
    chain.sought(assignment, LANE, 4)
    assert chain.upto(LANE) == 4
    assert claims(chain, assignment, 5) == [4]
    assert chain.upto(LANE) == 6


def test_another_assignment_begins_at_an_offset_that_nobody_knows() -> None:
    chain = Chain()
    chain.sought(first := object(), LANE, 0)
    assert claims(chain, first, 1) == [0]
    assert claims(chain, object(), 7) == [None]


def test_lanes_are_held_back_until_the_flow_resumes(consumer: Consumer) -> None:
    """Faust empties its queues between the two."""
    consumer.stop_flow()
    consumer.resume_partitions({LANE, SUMS})
    assert consumer._active_partitions == {SUMS}
    consumer.resume_flow()
    assert consumer._active_partitions == {LANE, SUMS}
    assert consumer.flow_active


def test_lanes_that_are_paused_meanwhile_stay_so(consumer: Consumer) -> None:
    consumer.resume_partitions({LANE})
    consumer.pause_partitions({LANE, SUMS})
    consumer.resume_flow()
    assert not consumer._active_partitions


def test_lanes_are_sought_where_nothing_is_committed_too(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client({LANE: 7, TP(LANE.topic, 1): None, SUMS: None})
    use(consumer, client, monkeypatch)
    asyncio.run(consumer.perform_seek())
    assert client.sought == {LANE: 7, TP(LANE.topic, 1): 0}
    assert consumer.handed_out(LANE) == 7


def test_reading_again_goes_back_and_no_record_is_passed_over(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client({LANE: 7})
    use(consumer, client, monkeypatch)
    consumer._read_offset[LANE] = 9
    asyncio.run(consumer.read_from(LANE, 5))
    assert client.sought == {LANE: 5}
    assert consumer._read_offset[LANE] is None, "Faust would drop what is below"
    asyncio.run(consumer.read_from((LANE.topic, 3), 1))
    assert client.sought == {LANE: 5}


def test_a_message_tells_what_it_follows(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client({LANE: 7})
    use(consumer, client, monkeypatch)
    told = dict.fromkeys(
        ("key", "value", "headers", "checksum", "serialized_key_size", "serialized_value_size")
    )
    record = SimpleNamespace(
        topic=LANE.topic, partition=0, offset=9, timestamp=1, timestamp_type=0, **told
    )

    async def found(*_: Any, **__: Any) -> dict[TP, list[Any]]:
        return {LANE: [record]}

    monkeypatch.setattr(CommittedThread.__base__, "_fetch_records", found)
    asyncio.run(consumer.perform_seek())
    thread: Any = consumer._thread
    fetched = asyncio.run(thread._fetch_records(client, {LANE}))
    assert fetched == {LANE: [Link(record, 7)]}
    message = consumer._to_message(LANE, fetched[LANE][0])
    assert (message.offset, follows(message)) == (9, 7)
