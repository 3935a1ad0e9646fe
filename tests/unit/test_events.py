"""A request's events: valid JSON in every event, nothing skipped, nothing left behind."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from adapters.memory import MemoryLog
from producers import events, http_events
from producers.app import build_app
from producers.core import sse
from schemas import codec
from schemas.records import ApiKey
from tests.support.conforms import validator
from tests.support.door import Clock, Door, door, until


def play(scenario: Callable[[Door], Awaitable[None]]) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock())) as opened:
            await scenario(opened)

    asyncio.run(with_door())


class Listener:
    """A caller of a stream, who may leave."""

    def __init__(self, opened: Door, request_id: str, *headers: tuple[bytes, bytes]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.leaves = asyncio.Event()
        bearer = opened.bearer("acme")["Authorization"].encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "GET",
            "path": f"/v1/requests/{request_id}/events", "query_string": b"",
            "headers": [(b"authorization", bearer), *headers], "http_version": "1.1",
        }  # fmt: skip
        app = build_app(opened.ingress)
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages).decode()

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    def events(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Name, id and data of each event, as a reader of the standard finds them."""
        found = []
        for block in self.text.split("\n\n")[:-1]:
            fields = [line for line in block.split("\n") if not line.startswith(":")]
            read = dict(line.split(": ", 1) for line in fields)
            assert len(read) == len(fields), "one line a field"
            document = json.loads(read["data"])
            validator("Status").validate(document)
            found.append((read["event"], read.get("id", ""), document))
        return found


def test_the_state_and_then_the_end_are_told_and_it_is_over() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        listener = Listener(opened, request_id)
        await until(lambda: len(opened.ingress.room))
        opened.finish(request_id, b'{\r\n  "text": "a\\nb"\n}')
        await listener.task
        assert listener.status == 200
        (waiting, no_id, _), (name, end_id, ended) = listener.events()
        assert (waiting, no_id, name) == ("waiting", "", "succeeded")
        assert ended["output"] == {"text": "a\nb"}
        assert listener.messages[-1]["more_body"] is False
        assert not opened.ingress.room._waiting

        # Who comes back with what they saw last misses nothing and gets nothing twice.
        for last, events_left in ((b"", 1), (b"nonsense", 1), (end_id.encode(), 0)):
            again = Listener(opened, request_id, (b"last-event-id", last))
            await again.task
            assert (again.status, len(again.events())) == (200 if events_left else 204, events_left)
            assert all(event[2]["output"] == {"text": "a\nb"} for event in again.events())

    play(scenario)


def test_signs_of_life_are_comments_and_make_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)

    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        listener = Listener(opened, request_id)
        await until(lambda: listener.text.count(sse.COMMENT.decode()) >= 3)
        opened.finish(request_id)
        await listener.task
        assert [name for name, _, _ in listener.events()] == ["waiting", "succeeded"]
        assert not any(block.strip().startswith("id") for block in listener.text.split("\n\n"))

    play(scenario)


def test_who_leaves_leaves_nothing_behind() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        listeners = [Listener(opened, request_id) for _ in range(5)]
        await until(lambda: len(opened.ingress.room) == 5)
        for listener in listeners:
            listener.leaves.set()
        await asyncio.gather(*(listener.task for listener in listeners))
        assert (len(opened.ingress.room), opened.ingress.room._waiting) == (0, {})

    play(scenario)


def test_who_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_events, "SEND_S", 0.02)

    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        never = asyncio.Event()

        class Stuck(Listener):
            async def _send(self, message: Any) -> None:
                if message["type"] == "http.response.body":
                    await never.wait()

        await Stuck(opened, request_id).task
        assert (len(opened.ingress.room), opened.ingress.room._waiting) == (0, {})

    play(scenario)


def test_a_stop_ends_the_stream_without_an_end_of_the_request() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        listener = Listener(opened, request_id)
        await until(lambda: len(opened.ingress.room))
        opened.ingress.drain()
        await listener.task
        assert [name for name, _, _ in listener.events()] == ["waiting"]
        later = Listener(opened, request_id)
        await later.task
        assert later.status == 503

    play(scenario)


def test_a_revoked_key_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        listener = Listener(opened, request_id)
        await until(lambda: len(opened.ingress.room))
        poll = asyncio.create_task(opened.get(request_id, wait="30"))
        await until(lambda: len(opened.ingress.room) == 2)
        key_id = opened.keys["acme"].split("_")[1]
        stored = [codec.decode_value(r, ApiKey) for r in opened.records(opened.topics.keys)]
        (record,) = (key for key in stored if key.id == key_id)
        opened.publish_key(msgspec.structs.replace(record, revoked_ms=5))
        bearer = opened.bearer("acme")["Authorization"]
        await until(lambda: opened.ingress.directory.authenticate(bearer) is None)
        opened.finish(request_id)
        await listener.task
        assert [name for name, _, _ in listener.events()] == ["waiting"]
        assert (await poll).status_code == 401

    play(scenario)


def test_a_head_of_a_stream_does_not_wait_for_its_end() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        path = f"/v1/requests/{request_id}/events"
        answer = await opened.http.head(path, headers=opened.bearer("acme"))
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith(sse.TYPE)
        assert len(opened.ingress.room) == 0

    play(scenario)


def test_no_stream_of_what_is_not_there_or_anothers() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post("bolt", endpoint="free")).json()["id"]
        for path in (request_id, "nonsense"):
            listener = Listener(opened, path)
            await listener.task
            assert listener.status == 404
        answer = await opened.http.get(f"/v1/requests/{request_id}/events")
        assert answer.status_code == 401

    play(scenario)
