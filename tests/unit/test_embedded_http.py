"""A client's request straight into an application: what goes in, what comes out, what fails."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from adapters.memory import MemoryLog
from fairlane.embedded_http import App, InProcess
from schemas.log import TopicSpec


def call(app: App, method: str = "POST", path: str = "/v1/a%20b?wait=1") -> httpx.Response:
    async def story() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=InProcess(app), base_url="http://embedded", headers={"X-Name": "value"}
        ) as http:
            return await http.request(method, path, content=b"body")

    return asyncio.run(story())


def test_an_application_sees_the_request_and_is_heard() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        seen.update(scope)
        seen["body"] = await receive()
        await send({"type": "http.response.start", "status": 202, "headers": [(b"x-a", b"b")]})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})
        assert (await receive())["type"] == "http.disconnect"

    answer = call(app)
    assert (answer.status_code, answer.headers["x-a"], answer.content) == (202, "b", b"one two")
    assert (seen["method"], seen["path"], seen["query_string"]) == ("POST", "/v1/a b", b"wait=1")
    assert (b"x-name", b"value") in seen["headers"]
    assert seen["body"] == {"type": "http.request", "body": b"body", "more_body": False}


def test_what_an_application_raises_comes_through_unless_it_has_answered() -> None:
    async def broken(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        raise ValueError("out of order")

    async def late(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500})
        await send({"type": "http.response.body", "body": b"sorry"})
        raise ValueError("out of order")

    with pytest.raises(ValueError, match="out of order"):
        call(broken)
    assert call(late).content == b"sorry"


class Clock:
    def now_ms(self) -> int:
        return 1


def test_the_tail_of_a_partition_is_as_large_as_asked() -> None:
    log = MemoryLog(Clock())
    log.ensure_topics([TopicSpec("t", 1, {})])
    producer = log.producer()
    assert log.tail(("t", 0), 10) == 0
    for _ in range(5):
        producer.send("t", 0, b"1234")
    assert [log.tail(("t", 0), size) for size in (0, 3, 4, 11, 12, 19, 20, 99)] == [
        *(5, 5, 4, 3, 2, 1, 0, 0)
    ]
    log.delete_records({("t", 0): 2})
    assert [log.tail(("t", 0), size) for size in (4, 99)] == [4, 2]
