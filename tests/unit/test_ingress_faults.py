"""Bodies that are hostile, and faults of the ingress itself."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.memory import MemoryLog
from fairlane.submit_files import read_lines
from producers.app import build_app
from producers.core.submission import FAULTS_MAX
from tests.support.door import Clock, Door, door

Scenario = Callable[[Door], Awaitable[None]]

DEEP = b"[" * 4_000


def play(scenario: Scenario) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock())) as opened:
            await scenario(opened)

    asyncio.run(with_door())


@pytest.mark.parametrize(
    "body", [b'{"endpoint": "chat", "input": ' + DEEP, b'{"endpoint": ' + DEEP]
)
def test_deep_nesting_is_a_fault_of_the_body(body: bytes) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.post("/v1/requests", content=body, headers=opened.bearer("acme"))
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
        assert answer.json()["detail"] == "body: the body is nested too deeply"

    play(scenario)


def test_faults_are_bounded_and_those_of_known_fields_come_first() -> None:
    async def scenario(opened: Door) -> None:
        unknown: dict[str, Any] = {f"x{n}": n for n in range(10_000)}
        answer = await opened.post(**unknown, priority=-1)
        faults = answer.json()["faults"]
        assert len(faults) == FAULTS_MAX
        assert [fault["field"] for fault in faults[:2]] == ["priority", "x0"]

    play(scenario)


def test_an_output_nested_too_deeply_comes_back_as_bytes() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        opened.finish(request_id, DEEP + b"]" * len(DEEP))
        document = (await opened.get(request_id, wait="30")).json()
        assert document["state"] == "succeeded"
        assert document["output_base64"].startswith("W1tb")

    play(scenario)


def test_a_line_nested_too_deeply_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"input": ' + DEEP + b"\n" + b'{"id": ' + DEEP)
    assert [line.error for line in read_lines(path, "d")] == ["nested too deeply"] * 2


def test_a_fault_of_the_ingress_is_a_problem_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(opened: Door) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(opened.ingress, "submit", broken)
        app = httpx.ASGITransport(build_app(opened.ingress), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=app, base_url="http://door") as http:
            answer = await http.post("/v1/requests", json={}, headers=opened.bearer("acme"))
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert "ZeroDivisionError; look the request up" in answer.json()["detail"]

    play(scenario)
