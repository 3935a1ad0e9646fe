"""Bulk calls on a real Kafka and a real Redis, over a real connection."""

import asyncio
import json
import logging
from secrets import token_hex

import httpx
import pytest
import uvicorn

from adapters.kafka import KafkaLog
from adapters.redis import RedisIndex, connect
from adapters.redis_claims import RedisClaims
from adapters.redis_limits import RedisLimits
from fairlane.stack import free_ports
from producers.app import build_app
from schemas import codec
from schemas.records import Request
from tests.support.door import Door, door, until

LINES = 1_000


def ndjson(count: int, prefix: str) -> bytes:
    return b"".join(
        json.dumps({"endpoint": "free", "input": n, "idempotency_key": f"{prefix}-{n}"}).encode()
        + b"\n"
        for n in range(count)
    )


async def served(opened: Door) -> tuple[uvicorn.Server, asyncio.Task[None], int]:
    """The door on a real port; its lifespan is the test's."""
    (port,) = free_ports(1)
    config = uvicorn.Config(
        build_app(opened.ingress), host="127.0.0.1", port=port, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    return server, task, port


def inputs(opened: Door) -> list[int]:
    return [int(record.value) for record in opened.records(opened.topics.requests("gold"))]


def test_a_thousand_lines_are_in_the_log_in_their_order_and_found(
    kafka_bootstrap: str, redis_url: str
) -> None:
    async def scenario() -> None:
        log = KafkaLog(kafka_bootstrap)
        async with door(log, redis_url=redis_url, prefix=f"t{token_hex(4)}") as opened:
            server, serving, port = await served(opened)
            async with httpx.AsyncClient(timeout=60, headers=opened.bearer("acme")) as http:
                url = f"http://127.0.0.1:{port}/v1/requests:bulk"
                for _ in range(2):  # the second time all of them are known
                    answer = await http.post(url, content=ndjson(LINES, "k"))
                    verdicts = [json.loads(line) for line in answer.text.splitlines()]
                    assert [verdict["line"] for verdict in verdicts] == list(range(1, LINES + 1))
                    assert {verdict["status"] for verdict in verdicts} == {202}
                    assert inputs(opened) == list(range(LINES))
            records = opened.records(opened.topics.requests("gold"))
            ids = [codec.decode_header(record, Request).id for record in records]
            assert ids == [verdict["id"] for verdict in verdicts]
            opened.finish(ids[-1], b'"last"')
            assert (await opened.get(ids[-1], wait="30")).json()["output"] == "last"
            server.should_exit = True
            await serving
        log.close()

    asyncio.run(scenario())


def test_what_a_caller_that_went_away_had_accepted_stays_and_nothing_complains(
    kafka_bootstrap: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        log = KafkaLog(kafka_bootstrap)
        async with door(log, redis_url=redis_url, prefix=f"t{token_hex(4)}") as opened:
            server, serving, port = await served(opened)
            body = ndjson(5_000, "gone")
            head = (
                f"POST /v1/requests:bulk HTTP/1.1\r\nHost: door\r\nContent-Length: {len(body)}\r\n"
                f"Authorization: {opened.bearer('acme')['Authorization']}\r\n\r\n"
            ).encode()
            for sent in (body[:1_000], body):  # gone while it sends; gone while it is answered
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head + sent)
                await writer.drain()
                if sent is body:
                    await until(lambda: inputs(opened))
                writer.transport.abort()
            await until(lambda: not opened.ingress._flights._under_way)
            taken = inputs(opened)
            assert taken == list(range(len(taken)))
            # The same lines again: those that were taken in are the same requests.
            headers = opened.bearer("acme")
            url = f"http://127.0.0.1:{port}/v1/requests:bulk"
            async with httpx.AsyncClient(timeout=60, headers=headers) as http:
                answer = await http.post(url, content=ndjson(5_000, "gone"))
            assert len(answer.text.splitlines()) == 5_000
            assert inputs(opened) == list(range(5_000))
            server.should_exit = True
            await serving
        log.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert caplog.records == []


def test_with_redis_hung_the_lines_are_taken_in_all_the_same(kafka_bootstrap: str) -> None:
    async def scenario() -> None:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_ones.append(writer)

        open_ones: list[asyncio.StreamWriter] = []
        hung = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = hung.sockets[0].getsockname()[1]
        log = KafkaLog(kafka_bootstrap)
        client = connect(f"redis://127.0.0.1:{port}/0")
        limits, index = RedisLimits(client, "t"), RedisIndex(client, "t")
        claims = RedisClaims(client, "t")
        prefix = f"t{token_hex(4)}"
        async with door(log, prefix=prefix, limits=limits, index=index, claims=claims) as opened:
            lines = b"\n".join([b'{"endpoint": "chat", "input": 1, "idempotency_key": "a"}'] * 2)
            more = b"\n" + b"\n".join([b'{"endpoint": "chat", "input": 1}'] * 200)
            answer = await opened.http.post(
                "/v1/requests:bulk", content=lines + more, headers=opened.bearer("acme")
            )
            statuses = [json.loads(line)["status"] for line in answer.text.splitlines()]
            assert statuses == [202] * 101 + [429] * 101  # the limit of this process: 100
        await client.aclose()
        log.close()
        hung.close()
        for writer in open_ones:
            writer.close()

    asyncio.run(scenario())
