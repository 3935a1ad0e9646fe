"""HTTP manners: names, headers, problems, metrics; and what strangers can't do."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from adapters.memory import MemoryLog
from adapters.metrics import PrometheusMeter
from producers.core.limit_headers import headers
from producers.http_frame import CALL_HEADER, UNKNOWN, Frame, Tally
from schemas.front import LimitState
from schemas.keys import new_key
from tests.support.calls import served
from tests.support.door import Clock, Door, door

Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, **options: Any) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), **options) as opened:
            await scenario(opened)

    asyncio.run(with_door())


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/requests", "/v1/requests/req_x"])
@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ("trace-1_a.b:c/d", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("a{b}", False),
        ("a\tb", False),
        ("", False),
    ],
)
def test_a_harmless_x_request_id_is_taken_over_any_other_is_not(
    path: str, sent: str, *, taken: bool
) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.get(path, headers={"X-Request-Id": sent})
        found = answer.headers["x-request-id"]
        assert (found == sent) is taken
        assert re.fullmatch(r"[A-Za-z0-9._:/-]{1,128}", found)

    play(scenario)


def test_two_x_request_ids_are_none() -> None:
    async def scenario(opened: Door) -> None:
        named = [("X-Request-Id", "a"), ("X-Request-Id", "b")]
        answer = await opened.http.get("/healthz", headers=named)
        assert answer.headers["x-request-id"] not in {"a", "b"}

    play(scenario)


def test_another_method_is_told_all_that_there_are() -> None:
    async def scenario(opened: Door) -> None:
        for method, path, allowed in (
            ("DELETE", "/v1/requests", "GET, HEAD, POST"),
            ("PUT", "/v1/requests/req_x", "GET, HEAD"),
            ("GET", "/v1/requests:bulk", "POST"),
        ):
            answer = await opened.http.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
            assert answer.json()["status"] == 405

    play(scenario)


def test_a_slash_too_many_is_no_redirect_to_a_host_of_the_callers() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.get("/v1/requests/", headers={"Host": "evil"})
        assert answer.status_code == 404
        assert "location" not in answer.headers

    play(scenario)


def test_an_error_of_ours_is_a_problem_with_a_name_and_is_counted() -> None:
    meter, sent = PrometheusMeter(), list[Any]()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        scope["endpoint"] = broken
        raise ZeroDivisionError

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    tally = Tally(meter)
    frame = Frame(broken, {broken: "/v1/requests"}, tally, Random(1).randbytes)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(frame({"type": "http", "headers": []}, receive, send))
    assert sent[0]["status"] == 500
    assert dict(sent[0]["headers"])[b"content-type"] == b"application/problem+json"
    assert CALL_HEADER in dict(sent[0]["headers"])
    tally.tell()
    assert meter.value("ingress_requests_total", route="/v1/requests", status="500") == 1.0
    tally.tell()
    assert meter.value("ingress_requests_total", route="/v1/requests", status="500") == 1.0


def test_strangers_leave_no_key_in_redis_no_label_and_a_bounded_log() -> None:
    meter = PrometheusMeter()

    async def scenario(opened: Door) -> None:
        before = await opened.redis.dbsize()
        random = Random(3)
        known = new_key(random.randbytes)
        for number in range(120):
            bearer = f"Bearer {known[:-2]}{number:02x}" if number % 3 else f"Bearer {number}"
            named = {
                "Authorization": bearer,
                "X-Request-Id": f"stranger-{number}",
                "X-Tenant": f"tenant-{number}",
                "Idempotency-Key": f"key-{number}",
                "User-Agent": f"agent-{number}",
            }
            path = (f"/v1/requests/req_{number}", "/v1/requests", f"/wp-{number}.php")[number % 3]
            for method in ("GET", "POST", f"M{number}"):
                answer = await opened.http.request(method, path, headers=named, content=b"{}")
                assert answer.status_code in {401, 404, 405}
        assert await opened.redis.dbsize() == before
        opened.ingress.measure()
        text = meter.text().decode()
        routes = set(re.findall(r'fairlane_ingress_requests_total\{route="([^"]*)"', text))
        assert routes <= {path for _, path in served()} | {UNKNOWN}
        for part in ("stranger", "tenant-", "agent-", "wp-", "M1"):
            assert part not in text
        assert len(opened.records(opened.topics.refusals)) <= 20

    play(scenario, meter=meter)


def test_metrics_tell_what_was_answered_and_refused() -> None:
    meter = PrometheusMeter(process="3")

    async def scenario(opened: Door) -> None:
        assert (await opened.post()).status_code == 202
        assert (await opened.post(endpoint="nowhere")).status_code == 404
        opened.ingress.measure()
        text = meter.text().decode()
        for line in (
            'fairlane_ingress_requests_total{process="3",route="/v1/requests",status="202"} 1.0',
            'fairlane_ingress_refusals_total{process="3",reason="unknown_endpoint"} 1.0',
            'fairlane_ingress_ready{process="3"} 1.0',
        ):
            assert line in text.splitlines(), text
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert all('process="3"' in line for line in samples)

    play(scenario, meter=meter)


MINUTE = LimitState("requests/minute", 100, 1, 99, 60, 65)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), {}),
        (
            (MINUTE,),
            {
                "RateLimit-Policy": '"requests-minute";q=100;w=60',
                "RateLimit": '"requests-minute";r=99;t=65',
                "x-ratelimit-limit-requests": "100",
                "x-ratelimit-remaining-requests": "99",
                "x-ratelimit-reset-requests": "1m5s",
            },
        ),
        (
            (
                LimitState("tokens/month", 10, 12, -2, 2_678_400, 90_061),
                LimitState("in_flight", 4, 1, 3, 0, 0),
            ),
            {
                "RateLimit-Policy": '"tokens-month";q=10;fairlane-unit="tokens";w=2678400, '
                '"in-flight";q=4;qu="concurrent-requests"',
                "RateLimit": '"tokens-month";r=0;t=90061, "in-flight";r=3',
            },
        ),
        (
            (MINUTE, MINUTE._replace(limit=1_000, remaining=5)),  # a tenant and its parent
            {
                "RateLimit-Policy": '"requests-minute";q=1000;w=60',
                "RateLimit": '"requests-minute";r=5;t=65',
                "x-ratelimit-limit-requests": "1000",
                "x-ratelimit-remaining-requests": "5",
                "x-ratelimit-reset-requests": "1m5s",
            },
        ),
        (
            (LimitState("tokens/minute", 10**18, 0, 10**18, 60, 0),),
            {
                "RateLimit-Policy": '"tokens-minute";q=999999999999999;fairlane-unit="tokens";w=60',
                "RateLimit": '"tokens-minute";r=999999999999999;t=0',
                "x-ratelimit-limit-tokens": "999999999999999",
                "x-ratelimit-remaining-tokens": "999999999999999",
                "x-ratelimit-reset-tokens": "0s",
            },
        ),
    ],
)
def test_where_limits_stand_in_headers(
    states: tuple[LimitState, ...], expected: dict[str, str]
) -> None:
    assert headers(states) == expected
    assert "x-ratelimit-reset" not in headers(states)
