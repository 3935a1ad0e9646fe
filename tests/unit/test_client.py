"""The client's single calls: what is tried again, for how long, and what is told at last."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from fairlane import (
    AsyncClient,
    End,
    EndedError,
    FairlaneError,
    Outcome,
    RefusedError,
    Submission,
    UnreachableError,
    WaitTimeoutError,
)
from tests.support import virtual_time
from tests.support.fake_service import Answer, Call, Direct, FakeService, Taken

Handler = Callable[[httpx.Request], httpx.Response]


def client(service: FakeService, **options: Any) -> AsyncClient:
    return AsyncClient("http://door", "k", transport=Direct(service), **options)


def speaking(handler: Handler, **options: Any) -> AsyncClient:
    return AsyncClient("http://door", "k", transport=httpx.MockTransport(handler), **options)


def script(*answers: Answer | None) -> Callable[[Call], Answer | None]:
    """Answer the first calls by these; None and later calls as usual."""
    left = list(answers)
    return lambda _: left.pop(0) if left else None


def busy(status: int, **headers: str) -> Answer:
    return status, {"detail": "busy", "reason": "unavailable"}, headers


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_request_is_submitted_and_waited_for_by_one_call_each() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with client(service) as opened:
            accepted = await opened.submit("embed", {"text": "x"}, tier="gold", priority=3)
            outcome = await opened.wait(accepted.id)
        assert outcome.state is End.SUCCEEDED
        assert outcome.raise_for_state() is outcome
        assert outcome.output == {"text": "x"}
        assert json.loads(outcome.output_bytes) == {"text": "x"}
        assert outcome.usage.input_tokens == 3
        post, get = service.calls
        sent = {"endpoint": "embed", "input": {"text": "x"}, "tier": "gold", "priority": 3}
        assert json.loads(post.body) == sent
        assert post.headers["authorization"] == "Bearer k"
        assert post.headers["idempotency-key"] == accepted.idempotency_key
        assert get.path == f"/v1/requests/{accepted.id}"

    virtual_time.run(scenario())


def test_an_encoded_input_is_sent_as_it_is_and_a_tag_never() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with client(service) as opened:
            raw = msgspec.Raw(b'{"a":  1.50}')
            await opened.submit(Submission("embed", raw, tag=object(), idempotency_key="mine"))
        assert service.calls[0].body == b'{"endpoint":"embed","input":{"a":  1.50}}'
        assert service.calls[0].headers["idempotency-key"] == "mine"

    virtual_time.run(scenario())


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again_under_the_same_key_after_what_was_told(status: int) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = script(busy(status, **{"Retry-After": "40"}))
        async with client(service) as opened:
            began = now()
            await opened.submit("embed", 1)
            assert 40 < now() - began <= 45
        first, second = service.calls
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        assert len(service.taken) == 1

    virtual_time.run(scenario())


def test_without_retry_after_the_pauses_double() -> None:
    async def scenario() -> None:
        service, times = FakeService(), list[float]()

        def answer(_: Call) -> Answer | None:
            times.append(now())
            return busy(503) if len(times) <= 5 else None

        service.answer_first = answer
        async with client(service) as opened:
            await opened.submit("embed", 1)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        for pause, least in zip(pauses, [0.5, 1, 2, 4, 8], strict=True):
            assert least <= pause <= 1.1 * least + 1

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("status", "headers"),
    [(400, {}), (401, {}), (403, {}), (404, {}), (409, {}), (413, {})]
    + [(status, {"X-Should-Retry": "false"}) for status in (408, 429, 500, 503)],
)
def test_what_won_t_pass_is_refused_at_once_with_all_that_was_said(
    status: int, headers: dict[str, str]
) -> None:
    problem = {
        "reason": "invalid_request",
        "detail": "priority: must be 0..999",
        "retry": "never",
        "faults": [{"field": "priority", "message": "must be 0..999", "reason": "x"}],
    }

    async def scenario() -> None:
        service = FakeService()
        service.answer_first = lambda _: (status, problem, headers)
        async with client(service) as opened:
            with pytest.raises(RefusedError, match=r"invalid_request: priority: must be") as caught:
                await opened.submit("embed", 1, idempotency_key="mine")
        assert len(service.calls) == 1
        error = caught.value
        assert (error.status, error.reason, error.retry) == (status, "invalid_request", "never")
        assert error.idempotency_key == "mine"
        assert [fault.field for fault in error.faults] == ["priority"]

    virtual_time.run(scenario())


def test_after_its_patience_it_tells_what_is_known_of_a_request_in_doubt() -> None:
    document = {"reason": "in_doubt", "detail": "?", "id": "req_7", "retry": "same_id"}

    async def scenario() -> None:
        service = FakeService()
        service.answer_first = lambda _: (503, document, {"Retry-After": "1"})
        async with client(service, patience_s=60) as opened:
            began = now()
            with pytest.raises(RefusedError) as caught:
                await opened.submit("embed", 1)
            assert 50 < now() - began <= 62  # the last pause has jitter on top
        error = caught.value
        assert (error.id, error.reason, error.retry) == ("req_7", "in_doubt", "same_id")
        assert error.idempotency_key == service.calls[0].headers["idempotency-key"]

    virtual_time.run(scenario())


def test_it_does_not_wait_for_what_comes_after_its_patience() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = lambda _: busy(429, **{"Retry-After": "3600"})
        async with client(service) as opened:
            began = now()
            with pytest.raises(RefusedError, match="busy"):
                await opened.submit("embed", 1)
            assert now() == began
        assert len(service.calls) == 1

    virtual_time.run(scenario())


def test_who_never_answers_is_unreachable_and_the_key_is_told() -> None:
    keys = set[str]()

    def handler(request: httpx.Request) -> httpx.Response:
        keys.add(request.headers["idempotency-key"])
        raise httpx.ConnectError("connection refused", request=request)

    async def scenario() -> None:
        async with speaking(handler, patience_s=100) as opened:
            with pytest.raises(
                UnreachableError, match=r"door.*100 s: connection refused"
            ) as caught:
                await opened.submit("embed", 1)
        assert keys == {caught.value.idempotency_key}

    virtual_time.run(scenario())


class Breaking(Direct):
    """Loses the answers of the first calls after they had their effect."""

    def __init__(self, service: FakeService, losses: int) -> None:
        super().__init__(service)
        self.losses = losses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        self.losses -= 1
        if self.losses >= 0:
            raise httpx.ReadError("connection reset", request=request)
        return answer


def test_a_connection_that_broke_after_the_request_was_taken_doubles_nothing() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with AsyncClient("http://door", "k", transport=Breaking(service, 3)) as opened:
            accepted = await opened.submit("embed", 1)
        assert list(service.taken) == [accepted.idempotency_key]
        assert service.posts[accepted.idempotency_key] == 4

    virtual_time.run(scenario())


def test_a_limit_of_one_endpoint_holds_up_no_other() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = lambda call: (
            busy(429, **{"Retry-After": "100"}) if b"slow" in call.body and now() < 1_100 else None
        )
        async with client(service) as opened:
            slow = asyncio.create_task(opened.submit("slow", 1))
            await asyncio.sleep(1)
            began = now()
            await opened.submit("quick", 1)
            assert now() == began
            await slow
            assert now() >= 1_100

    virtual_time.run(scenario())


# --- waiting


def test_waiting_polls_long_until_the_end() -> None:
    async def work(taken: Taken) -> None:
        await asyncio.sleep(100)
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        async with client(service) as opened:
            accepted = await opened.submit("embed", 1)
            began = now()
            outcome = await opened.wait(accepted.id)
            assert outcome.is_success
            assert now() - began == pytest.approx(100)
        assert len(service.gets) == 4

    virtual_time.run(scenario())


def test_waiting_ends_with_its_time_and_may_be_tried_again() -> None:
    async def work(taken: Taken) -> None:
        await asyncio.sleep(50)
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        async with client(service) as opened:
            accepted = await opened.submit("embed", 1)
            with pytest.raises(WaitTimeoutError, match="not ended within 0 s"):
                await opened.wait(accepted.id, timeout_s=0)
            began = now()
            with pytest.raises(TimeoutError, match=r"not ended within 45\.5 s") as caught:
                await opened.wait(accepted.id, timeout_s=45.5)
            assert now() - began == 45.5
            assert isinstance(caught.value, WaitTimeoutError)
            assert caught.value.id == accepted.id
            assert (await opened.wait(accepted.id, timeout_s=10)).is_success
            assert (await opened.wait(accepted.id, timeout_s=0)).is_success

    virtual_time.run(scenario())


def test_an_id_that_is_not_indexed_yet_is_looked_for_again_but_not_for_ever() -> None:
    missing: Answer = (404, {"reason": "not_found", "detail": "no such"}, {})

    async def scenario() -> None:
        service = FakeService()
        async with client(service) as opened:
            accepted = await opened.submit("embed", 1)
            service.answer_first = script(missing, missing)
            assert (await opened.wait(accepted.id)).is_success
            began = now()
            with pytest.raises(RefusedError, match="not_found") as caught:
                await opened.wait("req_none")
            assert caught.value.id == "req_none"
            assert 5 < now() - began <= 10

    virtual_time.run(scenario())


def test_polls_that_hold_nobody_are_not_repeated_in_a_circle() -> None:
    """An ingress that stops answers long polls at once."""

    async def scenario() -> None:
        service = FakeService()
        answer: Answer = (200, {"id": "req_0", "state": "waiting"}, {})
        service.answer_first = lambda call: (
            answer if call.method == "GET" and now() < 1_050 else None
        )
        async with client(service) as opened:
            accepted = await opened.submit("embed", 1)
            assert (await opened.wait(accepted.id)).is_success
        assert len(service.gets) < 10

    virtual_time.run(scenario())


def test_an_outcome_says_how_it_ended_and_raises_when_asked() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        document = {
            "id": "req_1",
            "state": "failed",
            "reason": "engine_failed",
            "detail": "out of memory",
            "retry": "later",
            "attempts": 2,
            "wait_ms": 7,
            "service_ms": 9,
            "something_new": [],
        }
        return httpx.Response(200, json=document)

    async def scenario() -> None:
        async with speaking(handler) as opened:
            outcome = await opened.wait("req_1")
        assert (outcome.state, outcome.reason, outcome.retry) == (
            End.FAILED,
            "engine_failed",
            "later",
        )
        assert (outcome.attempts, outcome.wait_ms, outcome.service_ms) == (2, 7, 9)
        assert outcome.output is None
        with pytest.raises(EndedError, match=r"req_1 failed: engine_failed: out of memory") as e:
            outcome.raise_for_state()
        assert e.value.outcome is outcome

    virtual_time.run(scenario())


def test_an_output_that_is_no_json_comes_as_bytes() -> None:
    outcomes: list[Outcome] = []

    def handler(_: httpx.Request) -> httpx.Response:
        document = {
            "id": "req_1",
            "state": "succeeded",
            "output_base64": "/wA=",
            "content_type": "image/x",
        }
        return httpx.Response(200, json=document)

    async def scenario() -> None:
        async with speaking(handler) as opened:
            outcomes.append(await opened.wait("req_1"))

    virtual_time.run(scenario())
    assert outcomes[0].output == outcomes[0].output_bytes == b"\xff\x00"
    assert outcomes[0].content_type == "image/x"


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"id": 5}', b'{"id":"a","state":"new"}'])
def test_who_is_no_ingress_is_told_by_what_it_said(content: bytes) -> None:
    async def scenario() -> None:
        async with speaking(lambda _: httpx.Response(200, content=content)) as opened:
            with pytest.raises(RefusedError, match="this is no"):
                await opened.wait("req_1")
            with pytest.raises(RefusedError, match="HTTP 200"):
                await opened.submit("embed", 1)

    virtual_time.run(scenario())


def test_a_cancel_returns_the_state_as_known() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with client(service) as opened:
            accepted = await opened.submit("embed", 1)
            assert await opened.cancel(accepted.id) == "waiting"
            await opened.wait(accepted.id)
            assert await opened.cancel(accepted.id) == "succeeded"
            with pytest.raises(RefusedError, match="not_found"):
                await opened.cancel("../admin")
        assert service.calls[-1].path.count("/v1/requests/") == 1

    virtual_time.run(scenario())


def test_wrong_arguments_are_told_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLANE_KEY", raising=False)
    with pytest.raises(FairlaneError, match="give `key` or set FAIRLANE_KEY"):
        AsyncClient()
    with pytest.raises(FairlaneError, match="must begin with http"):
        AsyncClient("ftp://x", "k")
    with pytest.raises(FairlaneError, match="connections: must be at least 1"):
        AsyncClient(key="k", connections=0)
    monkeypatch.setenv("FAIRLANE_KEY", "from-the-environment")
    AsyncClient()
