"""Bulk calls through the HTTP door: each line its own fate, all of them one call."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from adapters.memory import MemoryLog
from producers import bulk
from producers.bulk import CALLS_MAX, CALLS_PER_TENANT_MAX, WAVE_LINES
from producers.core.submission import BODY_BYTES_MAX
from schemas import codec
from schemas.front import StoreDownError
from schemas.log import Record
from schemas.policy import Tenant
from schemas.records import ApiKey, Refusal, Request
from tests.support.door import POLICY, Clock, Door, door, until
from tests.support.sick import SickProducer

ROUTE = "/v1/requests:bulk"
Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, **options: Any) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), **options) as opened:
            await scenario(opened)

    asyncio.run(with_door())


def published(opened: Door, tier: str = "gold") -> list[Record]:
    return opened.records(opened.topics.requests(tier))


def ndjson(*lines: Any) -> bytes:
    """Lines given as values, or as bytes as they are."""
    return b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )


def chat(given: Any, **fields: Any) -> dict[str, Any]:
    return {"endpoint": "chat", "input": given} | fields


async def send(opened: Door, *lines: Any, tenant: str = "acme") -> list[dict[str, Any]]:
    answer = await opened.http.post(ROUTE, content=ndjson(*lines), headers=opened.bearer(tenant))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_each_line_has_its_verdict_in_the_order_of_the_lines() -> None:
    async def scenario(opened: Door) -> None:
        lines = [
            chat(1, idempotency_key="k-1"),
            b"{broken",
            b"",
            chat("x", endpoint="nope"),
            b'{"endpoint": "chat", "input": "\xff"}',
            chat({"a": 1}, priority=7),
            chat(1, endpoint="heavy", tier="batch"),
            chat(1, idempotency_key=" "),
            chat(1, idempotency_key=5),
            b" \t\r",
            chat("x" * BODY_BYTES_MAX),
            b'{"endpoint":"free","input": [1.0] }\r',
            chat(1, bogus=1),
        ]
        verdicts = await send(opened, *lines)
        assert [(v["line"], v["status"], v.get("reason", "")) for v in verdicts] == [
            (1, 202, ""),
            (2, 400, "invalid_request"),
            (4, 404, "unknown_endpoint"),
            (5, 400, "invalid_request"),
            (6, 202, ""),
            (7, 202, ""),
            (8, 400, "invalid_request"),
            (9, 400, "invalid_request"),
            (11, 413, "body_too_large"),
            (12, 202, ""),
            (13, 400, "invalid_request"),
        ]
        assert set(verdicts[0]) == {"line", "status", "id", "state", "idempotency_key"}
        assert (verdicts[0]["state"], verdicts[0]["idempotency_key"]) == ("waiting", "k-1")
        assert verdicts[6]["faults"][0]["field"] == "idempotency_key"
        assert verdicts[8]["faults"][0]["message"].endswith(f"up to {BODY_BYTES_MAX}")
        assert verdicts[10]["faults"][0]["field"] == "bogus"
        # The same problem as the single call's.
        single = (await opened.post(endpoint="nope", input="x")).json()
        assert verdicts[2] == {"line": 4} | single

        gold = [(r.value, codec.decode_header(r, Request)) for r in published(opened)]
        assert [value for value, _ in gold] == [b"1", b'{"a": 1}', b"[1.0]"]
        assert [request.id for _, request in gold] == [verdicts[n]["id"] for n in (0, 4, 9)]
        assert gold[1][1].priority == 7
        assert len(published(opened, "batch")) == 1
        for verdict in verdicts:
            if verdict["status"] == 202:
                assert (await opened.get(verdict["id"])).json()["state"] == "waiting"

    play(scenario)


def test_a_result_comes_back_and_the_trace_of_the_call_goes_along() -> None:
    async def scenario(opened: Door) -> None:
        named = {"traceparent": "00-aa-bb-01", "X-Request-Id": "run-7"}
        headers = opened.bearer("acme") | named
        answer = await opened.http.post(ROUTE, content=ndjson(chat(1), chat(2)), headers=headers)
        first, second = (json.loads(line)["id"] for line in answer.text.splitlines())
        for record in published(opened):
            passed = codec.passed_through(record.headers)
            assert passed == (("traceparent", b"00-aa-bb-01"), ("x-request-id", b"run-7"))
        opened.finish(second, b'"two"')
        assert (await opened.get(second, wait="30")).json()["output"] == "two"
        assert (await opened.get(first)).json()["state"] == "waiting"

    play(scenario)


def test_many_lines_are_published_in_their_order_named_or_not() -> None:
    async def scenario(opened: Door) -> None:
        keys = [{"idempotency_key": f"k-{n}"} if n % 3 else {} for n in range(500)]
        lines = [chat(n, endpoint="free", **key) for n, key in enumerate(keys)]
        verdicts = await send(opened, *lines)
        assert [verdict["status"] for verdict in verdicts] == [202] * 500
        assert [int(record.value) for record in published(opened)] == list(range(500))

    play(scenario)


def test_without_lines_there_are_no_verdicts() -> None:
    async def scenario(opened: Door) -> None:
        assert await send(opened) == []
        assert await send(opened, b"", b"\r", b"") == []

    play(scenario)


def test_a_limit_in_the_middle_refuses_those_lines_and_cheaper_ones_still_pass() -> None:
    acme = Tenant(name="acme", tiers=("gold",), requests_per_minute={"heavy": 10, "chat": 2})

    async def scenario(opened: Door) -> None:
        heavy = chat(1, endpoint="heavy")
        verdicts = await send(opened, heavy, heavy, heavy, chat(1), heavy, chat(1), chat(1))
        assert [v["status"] for v in verdicts] == [202, 202, 429, 202, 429, 202, 429]
        assert 60 < verdicts[2]["retry_after_s"] <= 65
        assert (verdicts[2]["used"], verdicts[2]["remaining"]) == (8, 2)
        assert len(published(opened)) == 4

        def refusals() -> list[Refusal]:
            records = opened.records(opened.topics.refusals)
            return [codec.decode_value(record, Refusal) for record in records]

        await until(lambda: len(refusals()) == 3)
        assert [(r.reason, r.endpoint, r.cost) for r in refusals()] == [
            ("rate_limit", "heavy", 4), ("rate_limit", "heavy", 4), ("rate_limit", "chat", 1)
        ]  # fmt: skip

    play(scenario, policy=replace(POLICY, tenants=(acme,)))


def test_one_key_twice_in_a_call_is_one_request_and_another_body_is_refused() -> None:
    async def scenario(opened: Door) -> None:
        twice = chat(1, endpoint="heavy", idempotency_key="k")
        turned = {"idempotency_key": "k", "input": 1, "endpoint": "heavy"}
        other = chat(2, endpoint="heavy", idempotency_key="k")
        verdicts = await send(opened, twice, turned, other, twice)
        assert [verdict["status"] for verdict in verdicts] == [202, 202, 422, 202]
        assert len({v["id"] for v in verdicts if v["status"] == 202}) == 1
        assert "this key belongs to another request" in verdicts[2]["detail"]
        assert len(published(opened)) == 1
        # Later as well, by either call; charged once, so that 6 of 10 are left.
        single = await opened.post(key="k", endpoint="heavy", input=1)
        assert single.json()["id"] == verdicts[0]["id"]
        assert [v["status"] for v in await send(opened, twice, other)] == [202, 422]
        assert (await opened.post(key="k", endpoint="heavy", input=2)).status_code == 422
        assert (await opened.post(endpoint="heavy")).status_code == 202
        assert len(published(opened)) == 2

    play(scenario)


def test_simultaneous_calls_of_the_same_lines_are_taken_in_once() -> None:
    async def scenario(opened: Door) -> None:
        lines = [chat(n, endpoint="free", idempotency_key=f"k-{n}") for n in range(200)]
        several = await asyncio.gather(
            send(opened, *lines),
            send(opened, *reversed(lines)),
            *(opened.post(key=f"k-{n}", endpoint="free", input=n) for n in range(0, 200, 20)),
        )
        assert isinstance(several[0], list)
        assert isinstance(several[1], list)
        assert [v["id"] for v in several[0]] == [v["id"] for v in reversed(several[1])]
        assert sorted(int(record.value) for record in published(opened)) == list(range(200))
        assert opened.ingress._flights._under_way == {}

    play(scenario)


# --- a call as a whole


def test_who_proves_no_key_has_no_call() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.post(ROUTE, content=ndjson(chat(1)))
        assert (answer.status_code, answer.json()["reason"]) == (401, "unauthenticated")
        assert (await opened.http.get(ROUTE)).status_code == 405

    play(scenario)


def test_a_key_for_the_whole_call_is_told_where_it_belongs() -> None:
    async def scenario(opened: Door) -> None:
        headers = opened.bearer("acme") | {"Idempotency-Key": "k"}
        answer = await opened.http.post(ROUTE, content=ndjson(chat(1)), headers=headers)
        assert answer.status_code == 400
        assert "each line has its own 'idempotency_key'" in answer.json()["detail"]
        assert published(opened) == []

    play(scenario)


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


def test_a_call_too_large_by_its_length_or_its_lines_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producers.app.BULK_BYTES_MAX", 1_000)
    monkeypatch.setattr(bulk, "BULK_LINES_MAX", 5)

    async def scenario(opened: Door) -> None:
        headers = opened.bearer("acme")
        for content in (b" " * 1_001, ndjson(*[b"{}"] * 6), in_chunks(ndjson(*[b"{}"] * 6))):
            answer = await opened.http.post(ROUTE, content=content, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (413, "body_too_large")
            assert "up to 8000000 bytes in 10000 lines" in answer.json()["detail"]
        assert len(await send(opened, *[b"{}"] * 4, b"{}\n")) == 5
        assert published(opened) == []
        # However often it is refused: the next call begins.
        assert [v["status"] for v in await send(opened, chat(1))] == [202]

    play(scenario)


def test_a_body_that_grows_too_large_has_its_verdicts_and_tells_where_it_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producers.app.BULK_BYTES_MAX", 1_000)

    async def scenario(opened: Door) -> None:
        line = ndjson(chat("x" * 60)) + b"\n"
        whole = 1_000 // len(line)
        answer = await opened.http.post(
            ROUTE, content=in_chunks(line * 20), headers=opened.bearer("acme")
        )
        verdicts = [json.loads(text) for text in answer.text.splitlines()]
        assert [v["status"] for v in verdicts] == [202] * whole + [413]
        assert verdicts[-1]["line"] == whole + 1
        assert f"from line {whole + 1} on nothing was read" in verdicts[-1]["detail"]
        assert len(published(opened)) == whole
        one = await opened.http.post(
            ROUTE, content=in_chunks(b"x" * 5_000), headers=opened.bearer("acme")
        )
        assert [json.loads(text)["line"] for text in one.text.splitlines()] == [1]

    play(scenario)


def test_calls_under_way_are_bounded_by_tenant_and_left_however_they_end() -> None:
    async def scenario(opened: Door) -> None:
        publisher, producer = opened.ingress._publisher, SickProducer()
        healthy, publisher._producer = publisher._producer, producer

        def call(tenant: str, tier: str) -> "asyncio.Task[httpx.Response]":
            content = ndjson(chat(1, endpoint="free", tier=tier))
            headers = opened.bearer(tenant)
            return asyncio.create_task(opened.http.post(ROUTE, content=content, headers=headers))

        async def under_way(tenant: str, tier: str, many: int) -> list[Any]:
            before = len(producer.reports)
            calls = [call(tenant, tier) for _ in range(many)]
            await until(lambda: len(producer.reports) == before + many)
            return calls

        calls = await under_way("acme", "gold", CALLS_PER_TENANT_MAX)
        refused = await call("acme", "gold")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        calls += await under_way("bolt", "batch", CALLS_MAX - CALLS_PER_TENANT_MAX)
        assert (await call("bolt", "batch")).status_code == 503
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        calls += await under_way("acme", "gold", 1)
        for number, report in enumerate(producer.reports):
            report(number, None)
        answers = await asyncio.gather(*calls[1:])
        assert [answer.status_code for answer in answers] == [200] * CALLS_MAX
        publisher._producer = healthy
        assert [v["status"] for v in await send(opened, chat(1))] == [202]

    play(scenario)


def test_a_call_under_way_finishes_while_the_ingress_drains() -> None:
    async def scenario(opened: Door) -> None:
        async def drained() -> AsyncIterator[bytes]:
            yield ndjson(chat(1), b"")
            opened.ingress.drain()
            yield ndjson(chat(2))

        answer = await opened.http.post(ROUTE, content=drained(), headers=opened.bearer("acme"))
        assert [json.loads(v)["status"] for v in answer.text.splitlines()] == [202, 202]

    play(scenario)


# --- what fails below


def test_a_log_that_does_not_confirm_costs_one_time_out_and_each_line_its_503() -> None:
    async def scenario(opened: Door) -> None:
        publisher, producer = opened.ingress._publisher, SickProducer()
        publisher._timeout_s = 0.05
        healthy, publisher._producer = publisher._producer, producer
        lines = [chat(n, endpoint="free", idempotency_key=f"k-{n}") for n in range(300)]
        verdicts = await send(opened, *lines)
        assert {verdict["status"] for verdict in verdicts} == {503}
        assert [v["line"] for v in verdicts] == list(range(1, 301))
        reasons = [verdict["reason"] for verdict in verdicts]
        assert reasons == ["in_doubt"] * bulk.WAVE_LINES + ["unavailable"] * 236
        assert len(producer.reports) == bulk.WAVE_LINES  # the other lines never left
        assert (verdicts[3]["idempotency_key"], verdicts[3]["retry"]) == ("k-3", "same_id")
        assert verdicts[-1]["detail"] == (
            "the log did not confirm line 1 in time: this one was not tried"
        )
        assert verdicts[-1]["retry_after_s"] == 1
        publisher._producer, publisher._timeout_s = healthy, 60
        again = await send(opened, *lines)
        assert {verdict["status"] for verdict in again} == {202}
        for number, report in enumerate(producer.reports):
            report(number, None)

    play(scenario)


class Down:
    """Limits and an index that never answer."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def down(*_: Any) -> Any:
            self.calls[name] += 1
            raise StoreDownError("Redis: gone")

        return down


def test_without_redis_the_lines_pass_the_limit_of_this_process() -> None:
    down: Any = Down()

    async def scenario(opened: Door) -> None:
        lines = [chat(n, idempotency_key=f"k-{n}") for n in range(150)]
        verdicts = await send(opened, *lines)
        assert [v["status"] for v in verdicts] == [202] * 100 + [429] * 50
        assert len(published(opened)) == 100
        # The first wave finds out, then Redis is left alone.
        assert (down.calls["claim"], down.calls["charge"]) == (bulk.WAVE_LINES, 1)

    play(scenario, limits=down, index=down, claims=down)


def test_a_key_that_is_revoked_meanwhile_takes_nothing_more_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(opened: Door) -> None:
        ingress = opened.ingress
        stored = [codec.decode_value(r, ApiKey) for r in opened.records(opened.topics.keys)]
        (record,) = (key for key in stored if key.tenant == "acme")
        submit_all = ingress.submit_all

        async def first_wave(*given: Any) -> Any:
            answers = await submit_all(*given)
            opened.publish_key(replace(record, revoked_ms=5))
            await until(lambda: ingress.directory._keys[record.id].revoked_ms)
            return answers

        monkeypatch.setattr(ingress, "submit_all", first_wave)
        lines = ndjson(*map(chat, range(100)))
        answer = await opened.http.post(ROUTE, content=lines, headers=opened.bearer("acme"))
        statuses = [json.loads(line)["status"] for line in answer.text.splitlines()]
        assert statuses == [202] * WAVE_LINES + [401] * (100 - WAVE_LINES)

    play(scenario)
