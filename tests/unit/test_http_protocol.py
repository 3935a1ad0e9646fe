"""Connections before a request is there: slow and endless headers, nonsense, and too many."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn

from adapters.memory import MemoryLog
from fairlane import http_protocol
from fairlane.http_protocol import HEADER_BYTES_MAX, GuardedProtocol
from fairlane.run_ingress import DrainingServer
from fairlane.stack import free_ports
from producers.app import build_app
from tests.support.door import Clock, Door, door, until

GOOD = b"GET /healthz HTTP/1.1\r\nHost: door\r\n\r\n"


class Served:
    """A real server in front of a door."""

    def __init__(self, opened: Door, server: DrainingServer, port: int) -> None:
        self.opened, self.server, self._port = opened, server, port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def send(self, data: bytes) -> bytes:
        """Send, and read until the other side closes."""
        reader, writer = await self.connect()
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def served(drain_s: float = 0.0) -> AsyncIterator[Served]:
    async with door(MemoryLog(Clock())) as opened:
        (port,) = free_ports(1)
        config = uvicorn.Config(
            build_app(opened.ingress),
            host="127.0.0.1",
            port=port,
            http=GuardedProtocol,
            lifespan="off",
            log_config=None,
        )
        server = DrainingServer(config, opened.ingress, drain_s)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield Served(opened, server, port)
        finally:
            server.should_exit = True
            await serving


def play(scenario: Callable[[Served], Awaitable[None]], drain_s: float = 0.0) -> None:
    async def run() -> None:
        async with served(drain_s) as there:
            await scenario(there)

    asyncio.run(run())


def status(answer: bytes) -> int:
    """The status of a whole answer, which is a problem with a name."""
    head, _, body = answer.partition(b"\r\n\r\n")
    code = int(head.split(b" ")[1])
    assert b"content-type: application/problem+json" in head
    assert b"\r\nx-request-id: " in head
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["status"] == code
    return code


@pytest.mark.parametrize("begun", [b"GET /heal", GOOD[:-2], b"GET / HTTP/1.1\r\nA: b\r\nC"])
def test_headers_that_stop_end_with_a_408(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_S", 0.05)

    async def scenario(there: Served) -> None:
        answer = await there.send(begun)
        assert status(answer) == 408
        assert b"\r\nretry-after: 1\r\n" in answer

    play(scenario)


def test_a_connection_without_a_word_is_closed_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_S", 0.05)

    async def scenario(there: Served) -> None:
        assert await there.send(b"") == b""

    play(scenario)


def test_headers_that_trickle_have_an_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_S", 0.2)

    async def scenario(there: Served) -> None:
        reader, writer = await there.connect()
        answer = asyncio.create_task(reader.read())
        writer.write(b"GET / HTTP/1.1\r\n")
        while not answer.done():
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.01)
        assert status(answer.result()) == 408
        writer.close()

    play(scenario)


def test_a_slow_second_request_is_limited_too_and_a_slow_answer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_S", 0.05)

    async def scenario(there: Served) -> None:
        reader, writer = await there.connect()
        writer.write(GOOD)
        assert b"200 OK" in await reader.readuntil(b"}")
        writer.write(GOOD[:10])
        assert status(await reader.read()) == 408
        writer.close()

        request_id = (await there.opened.post()).json()["id"]
        bearer = there.opened.bearer("acme")["Authorization"]
        reader, writer = await there.connect()
        writer.write(
            f"GET /v1/requests/{request_id}?wait=0.3 HTTP/1.1\r\nHost: door\r\n"
            f"Authorization: {bearer}\r\n\r\n".encode()
        )
        assert b"200 OK" in await reader.readuntil(b"}")
        writer.close()

    play(scenario)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("where", ["header", "url"])
def test_too_many_bytes_of_headers_are_a_431(pieces: int, where: str) -> None:
    async def scenario(there: Served) -> None:
        filling = b"x" * (HEADER_BYTES_MAX + 1)
        if where == "header":
            data = GOOD[:-2] + b"A: " + filling + b"\r\n\r\n"
        else:
            data = GOOD.replace(b"/healthz", b"/" + filling)
        reader, writer = await there.connect()
        for start in range(0, len(data), -(-len(data) // pieces)):
            writer.write(data[start : start + -(-len(data) // pieces)])
            await asyncio.sleep(0.01)
        assert status(await reader.read()) == 431
        writer.close()

    play(scenario)


def test_headers_without_end_are_a_431() -> None:
    async def scenario(there: Served) -> None:
        assert status(await there.send(GOOD[:-2] + b"A: b\r\n" * 12_000)) == 431

    play(scenario)


@pytest.mark.parametrize("data", [b"\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"hello world\r\n\r\n"])
def test_what_is_no_request_is_a_problem(data: bytes) -> None:
    async def scenario(there: Served) -> None:
        assert status(await there.send(data)) == 400

    play(scenario)


def test_too_many_connections_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 2)

    async def scenario(there: Served) -> None:
        held = [await there.connect() for _ in range(2)]
        await until(lambda: len(there.server.server_state.connections) == 2)
        assert status(await there.send(GOOD)) == 503
        for _, writer in held:
            writer.close()
        await until(lambda: not there.server.server_state.connections)
        reader, writer = await there.connect()
        writer.write(GOOD)
        assert b"200 OK" in await reader.readuntil(b"}")
        writer.close()

    play(scenario)


def test_balancers_are_told_before_connections_are_refused() -> None:
    async def scenario(there: Served) -> None:
        there.server.handle_exit(15, None)
        await until(lambda: there.opened.ingress.is_draining)
        reader, writer = await there.connect()
        writer.write(GOOD.replace(b"healthz", b"readyz"))
        assert b"503 Service Unavailable" in await reader.readuntil(b"}")
        writer.close()
        assert not there.server.should_exit
        there.server.handle_exit(15, None)  # the second one does not wait
        assert there.server.should_exit
        there.server._captured_signals.clear()  # or the server raises it again, for us

    play(scenario, drain_s=3_600.0)


LONG_BODY = b"POST /v1/requests HTTP/1.1\r\nHost: door\r\nContent-Length: 1000\r\n\r\n"
CHUNKED = b"POST /v1/requests HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("call", "then"),
    [(GOOD, b"\r\n"), (LONG_BODY, b"a"), (CHUNKED, b"1\r\na\r\n"), (GOOD, b"GET /heal")],
)
def test_what_follows_an_answer_has_to_become_a_request(
    monkeypatch: pytest.MonkeyPatch, call: bytes, then: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_S", 1.0)  # a busy machine answers by then

    async def scenario(there: Served) -> None:
        reader, writer = await there.connect()
        writer.write(call)
        await reader.readuntil(b"}")
        writer.write(then)
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()

    play(scenario)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_S", 0.1)

    async def scenario(there: Served) -> None:
        _, writer = await there.connect()
        call = b"GET /openapi.json HTTP/1.1\r\nHost: door\r\n\r\n"
        writer.write(call * 300)
        await until(lambda: bool(there.server.server_state.connections))
        async with asyncio.timeout(20):
            await until(lambda: not there.server.server_state.connections)
        writer.transport.abort()

    play(scenario)


def test_what_comes_behind_a_body_is_no_header() -> None:
    async def scenario(there: Served) -> None:
        trailer = b"0\r\nX-Request-Id: smuggled\r\nAuthorization: Bearer no\r\n\r\n"
        reader, writer = await there.connect()
        writer.write(CHUNKED + b"2\r\n{}\r\n" + trailer)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"smuggled" not in head
        writer.close()

    play(scenario)
