"""Callers that send slowly, stop, or take no answer: they keep nobody else from the door."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Message

from adapters.memory import MemoryLog
from fairlane.stack import free_ports
from producers import app as http_door
from producers import reading
from producers.app import build_app
from producers.bulk import CALLS_MAX, CALLS_PER_TENANT_MAX
from schemas import codec
from schemas.records import Refusal
from tests.support.door import Clock, Door, door, until

SINGLE, BULK = "/v1/requests", "/v1/requests:bulk"
LINE = b'{"endpoint": "free", "input": 1}\n'


def play(scenario: Callable[[Door], Awaitable[None]]) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock())) as opened:
            await scenario(opened)

    asyncio.run(with_door())


def post(
    opened: Door, content: bytes | AsyncIterator[bytes], route: str = BULK, tenant: str = "acme"
) -> "asyncio.Task[httpx.Response]":
    call = opened.http.post(route, content=content, headers=opened.bearer(tenant))
    return asyncio.create_task(call)


class Hanging:
    """Bodies that stop after their beginning, until they are let go on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    async def body(self, beginning: bytes = b"", end: bytes = b"") -> AsyncIterator[bytes]:
        self.begun += 1
        yield beginning
        await self.gate.wait()
        yield end


def test_bodies_that_do_not_come_keep_nobody_from_a_bulk_call() -> None:
    async def scenario(opened: Door) -> None:
        hanging = Hanging()
        tenants = ["acme", "bolt"] * CALLS_MAX
        calls = [post(opened, hanging.body(), tenant=tenant) for tenant in tenants]
        await until(lambda: hanging.begun == len(calls))
        answer = await post(opened, LINE)
        assert (answer.status_code, json.loads(answer.content)["status"]) == (200, 202)
        hanging.gate.set()
        assert {call.status_code for call in await asyncio.gather(*calls)} <= {200, 503}

    play(scenario)


@pytest.mark.parametrize("route", [SINGLE, BULK])
def test_a_body_that_stops_is_a_408_and_the_end_of_its_connection(
    monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(reading, "CHUNK_S", 0.02)

    async def scenario(opened: Door) -> None:
        answer = await post(opened, Hanging().body(LINE), route)
        assert (answer.status_code, answer.json()["reason"]) == (408, "too_slow")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert opened.records(opened.topics.requests("gold")) == []

        def refusals() -> list[Refusal]:
            records = opened.records(opened.topics.refusals)
            return [codec.decode_value(record, Refusal) for record in records]

        await until(refusals)
        assert [(r.tenant, r.reason) for r in refusals()] == [("acme", "too_slow")]

    play(scenario)


@pytest.mark.parametrize("route", [SINGLE, BULK])
def test_a_body_that_trickles_has_an_end_as_well(
    monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0)

    async def scenario(opened: Door) -> None:
        assert (await post(opened, trickle(), route)).status_code == 408

    play(scenario)


def test_bytes_on_their_way_in_are_bounded_by_tenant_and_in_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 1_500)
    monkeypatch.setattr(reading, "READ_BYTES_PER_TENANT_MAX", 1_000)

    async def scenario(opened: Door) -> None:
        hanging = Hanging()
        first = post(opened, hanging.body(b" " * 900, LINE))
        await until(lambda: hanging.begun == 1)
        await asyncio.sleep(0)
        refused = await post(opened, b" " * 101)
        assert (refused.status_code, refused.json()["reason"]) == (503, "unavailable")
        assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "1")
        assert (await post(opened, b" " * 100)).status_code == 200
        assert (await post(opened, b" " * 600, tenant="bolt")).status_code == 200
        assert (await post(opened, b" " * 601, tenant="bolt")).status_code == 503
        hanging.gate.set()
        assert (await first).status_code == 200
        # Whatever ended how: nothing is counted any more.
        assert (await post(opened, b" " * 1_000)).status_code == 200

    play(scenario)


def test_who_takes_no_verdicts_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "SEND_S", 0.02)

    async def scenario(opened: Door) -> None:
        application = build_app(opened.ingress)
        headers = [(b"authorization", opened.bearer("acme")["Authorization"].encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST",
            "path": BULK, "headers": headers, "query_string": b"", "http_version": "1.1",
        }  # fmt: skip
        never = asyncio.Event()

        async def call(version: str) -> None:
            messages = [{"type": "http.request", "body": LINE * 200, "more_body": False}]

            async def receive() -> Message:
                if messages:
                    return messages.pop()
                await never.wait()
                raise AssertionError

            async def send(message: Message) -> None:
                if message["type"] == "http.response.body":
                    await never.wait()

            asgi = {"version": "3.0", "spec_version": version}
            await application(scope | {"asgi": asgi}, receive, send)

        for version in ("2.3", "2.4"):
            for _ in range(CALLS_PER_TENANT_MAX + 1):
                await call(version)
        messages: list[Any] = [{"type": "http.request", "body": LINE, "more_body": False}]
        answers = list[Message]()

        async def receive() -> Message:
            if messages:
                return dict(messages.pop())
            await never.wait()
            raise AssertionError

        async def send(message: Message) -> None:
            answers.append(message)

        await application(scope, receive, send)
        assert answers[0]["status"] == 200

    play(scenario)


def test_a_real_connection_that_stops_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_S", 0.05)

    async def scenario(opened: Door) -> None:
        (port,) = free_ports(1)
        config = uvicorn.Config(
            build_app(opened.ingress), host="127.0.0.1", port=port, lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        for route in (SINGLE, BULK):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"POST {route} HTTP/1.1\r\nHost: door\r\nContent-Length: 1000\r\n"
                f"Authorization: {opened.bearer('acme')['Authorization']}\r\n\r\n".encode()
                + LINE
            )
            answer = await reader.read()  # to the end of the connection
            assert answer.startswith(b"HTTP/1.1 408 ")
            writer.close()
        server.should_exit = True
        await serving

    play(scenario)
