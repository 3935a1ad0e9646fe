"""What fails below the door: followers, late reports, hung calls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from adapters.memory import MemoryLog
from producers import bodies, following
from producers.publisher import OPEN_BYTES_MAX, Publisher
from producers.refilling import MARGIN_MS, Refill
from schemas import codec
from schemas.front import Terminal
from schemas.log import FencedError, LogError, UnavailableError
from schemas.records import Cancel, End
from tests.support.door import POLICY, Clock, Door, door, until
from tests.support.sick import SickProducer

ENDED = Terminal("chat", End.SUCCEEDED, "results", 0, 3, size=100_000)
Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, **options: Any) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), **options) as opened:
            await scenario(opened)

    asyncio.run(with_door())


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), LogError("the log's")])
def test_a_follower_outlives_any_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "ERROR_PAUSE_S", 0.01)

    async def scenario() -> None:
        turns: list[int] = []

        async def turn() -> int:
            turns.append(1)
            if len(turns) <= 2:
                raise error
            return 0

        def recover() -> None:
            raise error

        followers = following.Followers(asyncio.to_thread)
        followers.start("index", turn, recover)
        await until(lambda: len(turns) > 2)
        assert followers.ended() == ""
        assert "index: " in caplog.text
        await followers.stop()

    asyncio.run(scenario())


def test_a_fenced_follower_ends_and_readiness_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(opened: Door) -> None:
        async def fenced(_: float) -> int:
            raise FencedError("another one")

        monkeypatch.setattr(opened.ingress._indexer, "turn", fenced)
        await until(opened.ingress.why_not_ready)
        ready = await opened.http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["detail"].startswith("it follows index no more")

    play(scenario)


def test_bytes_on_their_way_to_the_log_are_bounded() -> None:
    async def scenario() -> None:
        producer = SickProducer()
        publisher = Publisher(producer, timeout_s=60)
        value = bytes(1_000_000)
        room = OPEN_BYTES_MAX // len(value)
        sent = [asyncio.create_task(publisher.publish("t", 0, value)) for _ in range(room + 1)]
        with pytest.raises(UnavailableError, match=f"{room} records of {room}000000 bytes"):
            await sent[-1]
        for report in producer.reports:
            report(7, None)
        assert await asyncio.gather(*sent[:-1]) == [7] * room
        again = asyncio.create_task(publisher.publish("t", 0, value))
        await until(lambda: len(producer.reports) > room)
        producer.reports[-1](8, None)
        assert await again == 8

    asyncio.run(scenario())


def test_a_lost_index_is_filled_again_with_what_it_had_indexed() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        opened.finish(request_id, b'"kept"')
        assert (await opened.get(request_id, wait="30")).json()["output"] == "kept"
        part = (opened.topics.results, 0)
        reader = opened.log.reader()
        await until(lambda: reader.committed("fairlane.index", [part])[part])
        await opened.redis.flushall()

        async def is_found() -> bool:
            answer = await opened.get(request_id)
            return answer.status_code == 200 and answer.json()["output"] == "kept"

        await until(is_found)

    play(scenario)


def test_a_lost_index_is_filled_again_with_what_waits() -> None:
    async def scenario(opened: Door) -> None:
        named = opened.bearer("acme") | {"X-Request-Id": "trace-1"}
        body = {"endpoint": "free", "input": 1, "tier": "batch"}
        sent = [
            (await opened.http.post("/v1/requests", json=body, headers=named)).json()["id"],
            (await opened.post(key="twice")).json()["id"],
        ]
        before = [(await opened.get(request_id)).json() for request_id in sent]
        await opened.redis.flushall()

        async def are_found() -> bool:
            answers = [await opened.get(request_id) for request_id in sent]
            return all(answer.status_code == 200 for answer in answers)

        await until(are_found)
        after = [(await opened.get(request_id)).json() for request_id in sent]
        for one, other in zip(before, after, strict=True):
            assert one | {"accepted_ms": 0} == other | {"accepted_ms": 0}
        listed = await opened.http.get("/v1/requests?x_request_id=trace-1", headers=named)
        assert [request["id"] for request in listed.json()["data"]] == sent[:1]
        # The same key is the same request, and a cancel finds its place.
        assert (await opened.post(key="twice")).json()["id"] == sent[1]
        assert (await opened.cancel(sent[0])).status_code == 202
        place = opened.records(opened.topics.requests("batch"))[0]
        cancel = codec.decode_value(opened.records(opened.topics.control)[-1], Cancel)
        assert (cancel.topic, cancel.offset) == (place.topic, place.offset)

    play(scenario)


def test_requests_are_read_once_for_each_index_and_no_further_back_than_they_wait() -> None:
    written = Clock()

    async def scenario(opened: Door) -> None:
        old = (await opened.post(endpoint="free")).json()["id"]
        longest_ms = max(endpoint.wait_ms_max for endpoint in POLICY.endpoints)
        opened.clock.value_ms += longest_ms + MARGIN_MS + 1
        written.value_ms = opened.clock.value_ms
        young = (await opened.post(endpoint="free")).json()["id"]
        await until(lambda: opened.ingress._refill._done)
        first = opened.ingress._refill._done
        await opened.redis.flushall()
        await until(lambda: opened.ingress._refill._done not in {"", first})
        assert (await opened.get(young)).status_code == 200
        assert (await opened.get(old)).status_code == 404

        ingress = opened.ingress
        again = Refill(
            *(opened.log, opened.topics, ingress._index, opened.clock, in_place),
            *(ingress.directory, lambda: ingress._indexer.generation),
        )
        assert await again.turn(0) == 0
        assert again._done == ingress._refill._done

    async def with_door() -> None:
        async with door(MemoryLog(written)) as opened:
            await scenario(opened)

    asyncio.run(with_door())


async def in_place(call: Callable[[], Any]) -> Any:
    return call()


def test_outputs_are_read_one_at_a_time_and_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "TURN_WAIT_S", 0.02)

    async def scenario() -> None:
        gate, running = asyncio.Event(), list[int]()

        async def hung(_: Callable[[], Any]) -> Any:
            running.append(1)
            await gate.wait()
            return b"done"

        reading = bodies.Bodies(MemoryLog(Clock()), hung)
        first = asyncio.create_task(reading.fetch(ENDED))
        await until(lambda: running)
        first.cancel()
        with pytest.raises(UnavailableError, match="being read"):
            await reading.fetch(ENDED)
        assert running == [1]
        gate.set()
        assert await reading.fetch(ENDED) == b"done"

    asyncio.run(scenario())


def test_what_the_last_flush_reports_is_still_indexed() -> None:
    async def scenario(opened: Door) -> None:
        producer = SickProducer()
        publisher = opened.ingress._publisher
        publisher._producer, publisher._timeout_s = producer, 0.02
        request_id = (await opened.post(key="mine")).json()["id"]
        producer.at_flush = lambda: producer.reports[0](4, None)
        await opened.ingress.stop()
        names = [key.decode() async for key in opened.redis.scan_iter("fairlane:{*")]
        assert f"fairlane:{{acme}}:request:{request_id}" in names

    play(scenario)
