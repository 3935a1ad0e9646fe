"""The ingress through its HTTP door, on the in-process log and the in-process Redis."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from adapters.memory import MemoryLog
from schemas import codec
from schemas.log import InDoubtError, Record, UnavailableError
from schemas.policy import Tenant
from schemas.policy_check import check
from schemas.reasons import Reason
from schemas.records import ApiKey, Cancel, End, Refusal, Request
from tests.support.door import POLICY, Clock, Door, door, until
from tests.support.sick import SickProducer

Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, **options: Any) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), **options) as opened:
            await scenario(opened)

    asyncio.run(with_door())


def requests(opened: Door, tier: str = "gold") -> list[Record]:
    return opened.records(opened.topics.requests(tier))


def test_a_request_goes_through_untouched_and_its_result_comes_back() -> None:
    async def scenario(opened: Door) -> None:
        body = b'{"input":  {"messages" : [1.0, "\\u00e9"]} , "endpoint": "chat", "priority": 7}'
        headers = opened.bearer("acme") | {"traceparent": "00-aa-bb-01"}
        accepted = await opened.http.post("/v1/requests", content=body, headers=headers)
        assert accepted.status_code == 202
        request_id = accepted.json()["id"]
        assert accepted.json()["state"] == "waiting"
        assert accepted.headers["location"] == f"/v1/requests/{request_id}"

        (record,) = requests(opened)
        assert record.value == b'{"messages" : [1.0, "\\u00e9"]}'
        request = codec.decode_header(record, Request)
        assert (request.id, request.tenant, request.endpoint) == (request_id, "acme", "chat")
        assert (request.priority, request.deadline_ms) == (7, 0)
        assert codec.passed_through(record.headers) == (("traceparent", b"00-aa-bb-01"),)

        waiting = (await opened.get(request_id)).json()
        assert (waiting["state"], waiting["tier"]) == ("waiting", "gold")
        opened.finish(request_id, b'{"text" :  "hi"}')
        ended = await opened.get(request_id, wait="30")
        assert b'{"text" :  "hi"}' in ended.content
        document = ended.json()
        assert document["state"] == "succeeded"
        assert (document["wait_ms"], document["service_ms"]) == (250, 70)
        assert document["usage"]["output_tokens"] == 5
        assert document["content_type"] == "application/json"

    play(scenario)


def test_options_reach_the_record() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(
            tier="batch", deadline_ms=5_000, max_output_tokens=64, priority=999, input="x" * 400
        )
        assert answer.status_code == 202
        (record,) = requests(opened, "batch")
        request = codec.decode_header(record, Request)
        assert request.deadline_ms == opened.clock.now_ms() + 5_000
        assert (request.output_tokens_max, request.priority) == (64, 999)
        assert request.input_tokens == 100

    play(scenario)


MALFORMED: list[tuple[bytes, str, str]] = [
    (b"", "body", "no JSON object"),
    (b"[1]", "body", "no JSON object"),
    (b'{"endpoint": "chat", "input": tru}', "body", "no JSON object"),
    (b'{"endpoint": "chat", "input": "\xff"}', "body", "no JSON object"),
    (b'{"input": 1}', "endpoint", "is missing"),
    (b'{"endpoint": 5, "input": 1}', "endpoint", "must be a string"),
    (b'{"endpoint": "chat"}', "input", "is missing"),
    (b'{"endpoint": "chat", "input": 1, "prio": 1}', "prio", "no such field; there are endpoint"),
    (b'{"endpoint": "chat", "input": 1, "priority": 1000}', "priority", "from 0 to 999"),
    (b'{"endpoint": "chat", "input": 1, "priority": true}', "priority", "from 0 to 999"),
    (b'{"endpoint": "chat", "input": 1, "priority": null}', "priority", "not null"),
    (b'{"endpoint": "chat", "input": 1, "deadline_ms": -1}', "deadline_ms", "from 1 to"),
    (b'{"endpoint": "chat", "input": 1, "deadline_ms": 1.5}', "deadline_ms", "whole number"),
    (b'{"endpoint": "chat", "input": 1, "tier": []}', "tier", "must be a string"),
    (b'{"endpoint": "chat", "input": 1, "max_output_tokens": 0}', "max_output_tokens", "from 1"),
]


@pytest.mark.parametrize(("body", "field", "message"), MALFORMED)
def test_a_malformed_body_is_told_where_and_what(body: bytes, field: str, message: str) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.post("/v1/requests", content=body, headers=opened.bearer("acme"))
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["type"] == "urn:fairlane:reason:invalid_request"
        assert (problem["reason"], problem["retry"]) == ("invalid_request", "never")
        (fault,) = problem["faults"]
        assert fault["field"] == field
        assert message in fault["message"]
        assert requests(opened) == []
        assert [key async for key in opened.redis.scan_iter("fairlane:{*")] == []

    play(scenario)


def test_all_faults_are_told_at_once() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(endpoint="chatt", priority=-1, tier="platinum", bogus=1)
        assert answer.status_code == 400
        faults = {fault["field"]: fault["message"] for fault in answer.json()["faults"]}
        assert set(faults) == {"endpoint", "priority", "tier", "bogus"}
        assert faults["endpoint"] == (
            "no endpoint 'chatt'; the policy has chat, heavy, free, large"
        )
        assert faults["tier"] == "'platinum' is not among the tenant's tiers: gold, batch"

    play(scenario)


def test_what_the_policy_does_not_allow_has_its_own_status() -> None:
    async def scenario(opened: Door) -> None:
        unknown = await opened.post(endpoint="nope")
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "unknown_endpoint")
        higher = await opened.post("bolt", endpoint="free", tier="gold")
        assert (higher.status_code, higher.json()["reason"]) == (403, "tier_not_allowed")
        gone = await opened.post("gone")
        assert (gone.status_code, gone.json()["reason"]) == (403, "unknown_tenant")
        large = await opened.post(endpoint="free", input="x" * 999)
        assert (large.status_code, large.json()["reason"]) == (413, "body_too_large")
        assert large.json()["faults"][0]["message"] == (
            "has 1001 bytes; the endpoint takes up to 1000"
        )
        assert requests(opened) == []

    play(scenario)


def test_a_body_above_the_limit_is_refused_unparsed_with_or_without_its_length() -> None:
    async def endless() -> Any:
        for _ in range(1_000):
            yield b" " * 1_000

    async def scenario(opened: Door) -> None:
        for content in (b" " * 600_000, endless()):
            answer = await opened.http.post(
                "/v1/requests", content=content, headers=opened.bearer("acme")
            )
            assert answer.status_code == 413
            assert "may have up to 508192 bytes" in answer.json()["detail"]

    play(scenario)


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Basic abc", "Bearer fl_0011223344556677_" + "0" * 64, "Bearer \u00e9"],
)
def test_who_proves_no_key_is_refused_and_leaves_no_trace_in_redis(authorization: str) -> None:
    async def scenario(opened: Door) -> None:
        headers = [(b"Authorization", authorization.encode("latin-1"))] if authorization else []
        for answer in (
            await opened.http.post("/v1/requests", json={}, headers=headers),
            await opened.http.get("/v1/requests/req_" + "a" * 26, headers=headers),
            await opened.http.post("/v1/requests/req_" + "a" * 26 + "/cancel", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert [key async for key in opened.redis.scan_iter("fairlane:{*")] == []

    play(scenario)


def test_a_wrong_secret_of_a_real_key_is_refused() -> None:
    async def scenario(opened: Door) -> None:
        right = opened.keys["acme"]
        opened.keys["acme"] = right[:-1] + ("0" if right[-1] != "0" else "1")
        assert (await opened.post()).status_code == 401

    play(scenario)


def test_a_revoked_key_and_a_new_policy_act_while_running() -> None:
    async def scenario(opened: Door) -> None:
        assert (await opened.post()).status_code == 202
        key_id = opened.keys["acme"].split("_")[1]
        records = [codec.decode_value(r, ApiKey) for r in opened.records("fairlane.keys")]
        record = next(r for r in records if r.id == key_id)
        opened.publish_key(msgspec.structs.replace(record, revoked_ms=5))

        async def is_refused() -> bool:
            return (await opened.post()).status_code == 401

        await until(is_refused)
        tenants = (*POLICY.tenants, Tenant(name="gone", tiers=("gold",)))
        opened.publish_policy(msgspec.structs.replace(POLICY, tenants=tenants, version=2))

        async def is_known() -> bool:
            return (await opened.post("gone")).status_code == 202

        await until(is_known)

    play(scenario)


def test_records_that_are_no_policy_or_key_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(opened: Door) -> None:
        producer = opened.log.producer()
        producer.send(opened.topics.policy, 0, b"{broken", key=b"policy")
        producer.send(opened.topics.keys, 0, b"\xc1", key=b"x")
        faulty = msgspec.structs.replace(POLICY, tiers=())
        producer.send(opened.topics.policy, 0, msgspec.json.encode(faulty), key=b"policy")
        await until(lambda: len(caplog.records) >= 3)
        assert "fairlane.policy[0]@1" in caplog.text
        assert "fairlane.keys[0]@3" in caplog.text
        assert (await opened.post()).status_code == 202

    play(scenario)


def test_without_a_policy_the_answer_names_the_way_out() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post()
        assert (answer.status_code, answer.json()["reason"]) == (503, "unavailable")
        assert "fairlane policy apply FILE" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "1"
        ready = await opened.http.get("/readyz")
        assert (ready.status_code, "policy apply" in ready.text) == (503, True)
        assert (await opened.http.get("/healthz")).status_code == 200
        opened.publish_policy(POLICY)

        async def is_ready() -> bool:
            return (await opened.http.get("/readyz")).status_code == 200

        await until(is_ready)

    play(scenario, policy=None)


def test_the_limit_refuses_with_whole_seconds_and_numbers() -> None:
    async def scenario(opened: Door) -> None:
        answers = [await opened.post(endpoint="heavy") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        refused = answers[-1]
        assert 60 < int(refused.headers["retry-after"]) <= 65
        problem = refused.json()
        assert (problem["limit"], problem["used"], problem["remaining"]) == (10, 8, 2)
        assert problem["retry_after_s"] == int(refused.headers["retry-after"])
        assert problem["limit_name"] == "requests/minute"
        assert (
            problem["detail"] == "8 of 10 requests/minute at 'heavy' are used, the request costs 4"
        )
        never = await opened.post("bolt", endpoint="heavy", tier="batch")
        assert (never.status_code, never.json()["reason"]) == (403, "never_fits")
        assert never.headers["x-should-retry"] == "false"
        zero = await opened.post("bolt")
        assert (zero.status_code, zero.json()["reason"]) == (403, "never_fits")
        assert len(requests(opened)) == 2

    play(scenario)


def test_a_raised_limit_acts_at_once() -> None:
    async def scenario(opened: Door) -> None:
        for expected in (202, 202, 429):
            assert (await opened.post(endpoint="heavy")).status_code == expected
        acme = Tenant(name="acme", tiers=("gold",), requests_per_minute={"heavy": 12})
        opened.publish_policy(msgspec.structs.replace(POLICY, tenants=(acme,), version=2))
        await until(
            lambda: opened.ingress.directory.view and opened.ingress.directory.view.policy.version
        )
        assert (await opened.post(endpoint="heavy")).status_code == 202
        again = await opened.post(endpoint="heavy")
        assert again.json()["limit"] == 12

    play(scenario)


def test_an_idempotency_key_makes_repetitions_one_request() -> None:
    async def scenario(opened: Door) -> None:
        bare = await opened.post(key="order-7", endpoint="heavy")
        quoted = await opened.post(key='"order-7"', endpoint="heavy")
        other = await opened.post("bolt", key="order-7", endpoint="free")
        assert bare.json()["id"] == quoted.json()["id"] != other.json()["id"]
        assert bare.headers["idempotency-key"] == "order-7"
        assert len(requests(opened)) == 1
        opened.finish(bare.json()["id"])
        await opened.get(bare.json()["id"], wait="30")
        after = await opened.post(key="order-7", endpoint="heavy")
        assert (after.status_code, after.json()["state"]) == (202, "succeeded")
        # Charged once: a second request of cost 4 still fits into the limit of 10.
        assert (await opened.post(endpoint="heavy")).status_code == 202

    play(scenario)


@pytest.mark.parametrize("key", ['""', " ", "a b", "x" * 201])
def test_a_malformed_idempotency_key_is_told(key: str) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(key=key)
        assert answer.status_code == 400
        assert "must be 1..200 visible ASCII characters" in answer.json()["detail"]

    play(scenario)


def test_simultaneous_requests_get_different_ids() -> None:
    async def scenario(opened: Door) -> None:
        answers = await asyncio.gather(*(opened.post() for _ in range(50)))
        assert len({answer.json()["id"] for answer in answers}) == 50
        assert {answer.status_code for answer in answers} == {202}
        assert len(requests(opened)) == 50

    play(scenario)


def test_nobody_finds_another_tenants_request() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        for answer in (
            await opened.get(request_id, "bolt"),
            await opened.cancel(request_id, "bolt"),
            await opened.get("req_" + "a" * 26),
            await opened.get("nonsense"),
            await opened.get("nonsense", wait="30"),
        ):
            assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")
        assert opened.records(opened.topics.control) == []

    play(scenario)


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "inf"])
def test_a_malformed_wait_is_told(wait: str) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.get("req_" + "a" * 26, wait=wait)
        assert answer.status_code == 400
        assert answer.json()["detail"] == "wait: must be a number of seconds from 0 to 30"

    play(scenario)


def test_a_wait_that_is_over_answers_with_the_state() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        assert (await opened.get(request_id, wait="0.05")).json()["state"] == "waiting"

    play(scenario)


def test_many_long_polls_are_all_answered() -> None:
    async def scenario(opened: Door) -> None:
        answers = await asyncio.gather(*(opened.post() for _ in range(20)))
        ids = [answer.json()["id"] for answer in answers]
        polls = [asyncio.create_task(opened.get(i, wait="30")) for i in ids for _ in range(2)]
        for request_id in ids:
            opened.finish(request_id, json.dumps(request_id).encode())
        for poll, request_id in zip(polls, [i for i in ids for _ in range(2)], strict=True):
            assert (await poll).json()["output"] == request_id

    play(scenario)


def test_cancel_names_the_place_and_is_repeatable() -> None:
    async def scenario(opened: Door) -> None:
        await opened.post()
        request_id = (await opened.post()).json()["id"]
        for _ in range(2):
            answer = await opened.cancel(request_id)
            assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
        cancels = [codec.decode_value(r, Cancel) for r in opened.records(opened.topics.control)]
        place = requests(opened)[1]
        assert cancels == [Cancel(1, place.topic, place.partition, place.offset)] * 2
        opened.finish(request_id, b"", end=End.CANCELLED, reason="cancelled")
        document = (await opened.get(request_id, wait="30")).json()
        assert (document["state"], document["reason"]) == ("cancelled", "cancelled")
        assert document["retry"] == "no_need"
        assert "output" not in document
        assert (await opened.cancel(request_id)).json()["state"] == "cancelled"
        assert len(opened.records(opened.topics.control)) == 2

    play(scenario)


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"[1, 2]", "", {"output": [1, 2], "content_type": "application/json"}),
        (
            b"\x00\xff",
            "",
            {"output_base64": "AP8=", "content_type": "application/octet-stream"},
        ),
        (b"1", "text/plain", {"output_base64": "MQ==", "content_type": "text/plain"}),
        (b'"' + b"x" * 100_000 + b'"', "", {"output": "x" * 100_000}),
    ],
)
def test_outputs_of_any_kind_and_size_come_back(
    body: bytes, content_type: str, expected: dict[str, Any]
) -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        headers = (("content-type", content_type.encode()),) if content_type else ()
        opened.finish(request_id, body, headers=headers)
        document = (await opened.get(request_id, wait="30")).json()
        assert expected.items() <= document.items()

    play(scenario)


def test_a_large_output_that_the_log_lost_is_told_as_lost() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        opened.finish(request_id, b"x" * 100_000)
        await opened.get(request_id, wait="30")
        end = opened.log.reader().bounds((opened.topics.results, 0)).end
        opened.log.delete_records({(opened.topics.results, 0): end})
        document = (await opened.get(request_id)).json()
        assert document["state"] == "succeeded"
        assert document["output_lost"] == "the log no longer holds the output"

    play(scenario)


def test_the_first_outcome_stays_and_duplicates_say_nothing() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        opened.finish(request_id, b"", end=End.FAILED, reason=Reason.DUPLICATE.value)
        opened.finish(request_id, b'"first"')
        opened.finish(request_id, b'"second"')
        last = (await opened.post()).json()["id"]
        opened.finish(last)
        await opened.get(last, wait="30")
        assert (await opened.get(request_id)).json()["output"] == "first"

    play(scenario)


def test_a_result_before_its_acceptance_is_not_overwritten() -> None:
    async def scenario(opened: Door) -> None:
        first = (await opened.post(key="k")).json()["id"]
        await opened.redis.flushall()
        opened.finish(first)

        async def is_indexed() -> bool:
            return (await opened.get(first)).status_code == 200

        await until(is_indexed)
        again = await opened.post(key="k")
        assert again.json() == {"id": first, "state": "succeeded"}
        assert (await opened.get(first)).json()["state"] == "succeeded"

    play(scenario)


def test_refusals_are_recorded_and_counted_when_they_come_too_fast() -> None:
    async def scenario(opened: Door) -> None:
        opened.clock.value_ms += 1_000
        for _ in range(50):
            await opened.post(endpoint="nope")
        await opened.http.post("/v1/requests", json={})
        opened.clock.value_ms += 1_000
        topic = opened.topics.refusals

        def counts() -> dict[tuple[str, str], int]:
            found: dict[tuple[str, str], int] = {}
            for record in opened.records(topic):
                refusal = codec.decode_value(record, Refusal)
                name = (refusal.tenant, refusal.reason)
                found[name] = found.get(name, 0) + refusal.count
            return found

        expected = {("acme", "unknown_endpoint"): 50, ("", "unauthenticated"): 1}
        await until(lambda: counts() == expected)
        assert len(opened.records(topic)) == 22

    play(scenario)


def test_a_rate_limit_refusal_record_says_all() -> None:
    async def scenario(opened: Door) -> None:
        for _ in range(3):
            await opened.post(endpoint="heavy")
        (record,) = opened.records(opened.topics.refusals)
        refusal = codec.decode_value(record, Refusal)
        assert (refusal.tenant, refusal.endpoint, refusal.reason) == (
            "acme",
            "heavy",
            "rate_limit",
        )
        assert (refusal.cost, refusal.limit, refusal.count) == (4, "10 requests/minute", 1)
        assert refusal.id.startswith("req_")
        assert 60 < refusal.retry_after_s <= 65

    play(scenario)


def test_a_publish_in_doubt_tells_the_id_and_a_late_report_is_not_lost() -> None:
    async def scenario(opened: Door) -> None:
        producer = SickProducer()
        publisher = opened.ingress._publisher
        publisher._producer, publisher._timeout_s = producer, 0.02
        answer = await opened.post(key="mine")
        assert answer.status_code == 503
        problem = answer.json()
        assert (problem["reason"], problem["retry"]) == ("in_doubt", "same_id")
        assert problem["idempotency_key"] == "mine"
        assert (await opened.get(problem["id"])).status_code == 404
        producer.reports[0](4, None)

        async def is_found() -> bool:
            return (await opened.get(problem["id"])).status_code == 200

        await until(is_found)
        unnamed = (await opened.post()).json()
        again = await opened.post(key=unnamed["idempotency_key"])
        assert again.json()["id"] == unnamed["id"]

    play(scenario)


def test_a_log_that_takes_nothing_is_unavailable_and_one_in_doubt_in_doubt() -> None:
    async def scenario(opened: Door) -> None:
        producer = SickProducer()
        opened.ingress._publisher._producer = producer
        producer.error = UnavailableError("the queue is full")
        answer = await opened.post()
        assert (answer.status_code, answer.json()["reason"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        producer.error = None
        pending = asyncio.create_task(opened.post())
        await until(lambda: producer.reports)
        producer.reports[0](None, InDoubtError("broker went away"))
        assert (await pending).json()["reason"] == "in_doubt"

    play(scenario)


def test_draining_ends_long_polls_and_readiness_but_serves() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        poll = asyncio.create_task(opened.get(request_id, wait="30"))
        await until(lambda: opened.ingress.room._waiting)
        opened.ingress.drain()
        assert (await poll).json()["state"] == "waiting"
        ready = await opened.http.get("/readyz")
        assert (ready.status_code, ready.json()["detail"]) == (503, "it is stopping")
        assert (await opened.post()).status_code == 202

    play(scenario)


def test_other_paths_and_methods_are_problems_too() -> None:
    async def scenario(opened: Door) -> None:
        missing = await opened.http.get("/v1/nothing")
        assert (missing.status_code, missing.json()["status"]) == (404, 404)
        wrong = await opened.http.put("/v1/requests")
        assert (wrong.status_code, "POST /v1/requests" in wrong.json()["detail"]) == (405, True)

    play(scenario)


def test_the_index_entry_of_a_policy_without_limit_needs_no_charge() -> None:
    async def scenario(opened: Door) -> None:
        for _ in range(3):
            assert (await opened.post(endpoint="free")).status_code == 202
        names = [key.decode() async for key in opened.redis.scan_iter("fairlane:{*")]
        assert names.count("fairlane:{acme}:requests") == 1
        names.remove("fairlane:{acme}:requests")
        assert len(names) == 3
        assert all(name.startswith("fairlane:{acme}:request:req_") for name in names)

    play(scenario)


def test_the_doors_policy_is_valid() -> None:
    assert check(POLICY) == []
