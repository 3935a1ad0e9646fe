"""Predicted waits and waiting limits through the HTTP door."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from adapters.memory import MemoryLog
from schemas import codec
from schemas.policy import Predict
from schemas.records import Refusal
from tests.support.door import POLICY, Clock, Door, door, until
from tests.support.predictions import Desk, row

CHAT = replace(POLICY.endpoints[0], predict=Predict.ON, latency_ms={"gold": 1_000}, waiting=2_000)
ASKED = replace(POLICY, endpoints=(CHAT, *POLICY.endpoints[1:]))


def play(scenario: Callable[[Door], Awaitable[None]], *, work: int, **published: Any) -> None:
    """With so much of the tenant's waiting, as published; the ingress has read it."""
    desk = Desk(ASKED)
    desk.publish(row("acme", work), **published)

    async def with_door() -> None:
        async with door(MemoryLog(Clock()), policy=ASKED, backlog=desk.board) as opened:
            await until(lambda: opened.ingress.predictor.views)
            await scenario(opened)

    asyncio.run(with_door())


async def _refusals(opened: Door) -> list[Refusal]:
    await until(lambda: opened.records(opened.topics.refusals))
    return [
        codec.decode_value(record, Refusal) for record in opened.records(opened.topics.refusals)
    ]


def test_a_request_that_would_be_late_is_refused_charged_nothing_and_recorded() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(key="k")
        assert answer.status_code == 503
        problem = answer.json()
        assert (problem["reason"], problem["retry"]) == ("would_wait", "later")
        assert 1 <= int(answer.headers["retry-after"]) == problem["retry_after_s"] <= 3
        assert opened.records(opened.topics.requests("gold")) == []
        assert [key async for key in opened.redis.scan_iter("*:limit*")] == []
        (refusal,) = await _refusals(opened)
        assert (refusal.reason, refusal.tenant, refusal.endpoint) == ("would_wait", "acme", "chat")
        assert refusal.retry_after_s == problem["retry_after_s"]
        later = await opened.post(key="k", deadline_ms=600_000)
        assert later.status_code == 202

    play(scenario, work=1_500)


def test_without_workers_nobody_is_let_in() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post()
        assert (answer.status_code, answer.json()["reason"]) == (503, "no_workers")
        assert int(answer.headers["retry-after"]) >= 5
        assert (await opened.post(endpoint="free")).status_code == 202  # nothing is known of it

    play(scenario, work=0, lanes=0)


def test_more_than_may_wait_is_refused_with_the_numbers() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(deadline_ms=600_000)
        assert (answer.status_code, answer.json()["reason"]) == (429, "waiting_limit")
        numbers = {name: answer.json()[name] for name in ("limit", "used", "remaining")}
        assert numbers == {"limit": 2_000, "used": 2_000, "remaining": 0}

    play(scenario, work=2_000)


def test_lines_of_a_bulk_call_count_for_those_behind_them() -> None:
    async def scenario(opened: Door) -> None:
        line = json.dumps({"endpoint": "chat", "input": "hello", "deadline_ms": 600_000})
        answer = await opened.http.post(
            "/v1/requests:bulk", content="\n".join([line] * 8), headers=opened.bearer("acme")
        )
        verdicts = [json.loads(text) for text in answer.text.splitlines()]
        assert [verdict["status"] for verdict in verdicts] == [202] * 5 + [429] * 3

    play(scenario, work=1_995)


def test_what_another_limit_refuses_does_not_count_as_waiting() -> None:
    async def scenario(opened: Door) -> None:
        answers = [await opened.post(deadline_ms=600_000) for _ in range(120)]
        reasons = [answer.json().get("reason", "in") for answer in answers]
        assert reasons == ["in"] * 100 + ["rate_limit"] * 20

    play(scenario, work=1_899)
