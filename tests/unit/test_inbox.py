"""The bus as a door: what tenants may write into their inboxes, and what they read then."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.memory import CommitFault
from producers.core.inbox_answers import ended
from producers.core.inbox_marks import MARKS_MAX, decode, encode
from producers.core.submission import BODY_BYTES_MAX, outline
from producers.inbox_desk import Desk
from producers.inbox_takeover import group
from producers.limiting import WhenDown
from schemas import codec
from schemas.log import UNREADABLE_HEADER, Headers, LogError
from schemas.policy import Endpoint, Inbox, Pool, Topology
from schemas.records import Request
from schemas.topics import Topics, bucket
from simulation.process_log import At, Call, Killed, ProcessLog
from tests.support.inboxes import POLICY, Post, live_until_killed
from tests.support.oracle_inbox import faults, requests

GOOD = {"endpoint": "chat", "input": "hi"}


def answers_to(value: Any, headers: Headers = (), tenant: str = "acme") -> list[dict[str, Any]]:
    """What is answered to a record, between two good ones that are let in all the same."""
    post = Post()
    post.put(tenant, GOOD)
    post.put(tenant, value, headers)
    post.put(tenant, GOOD)
    post.play()
    assert faults(post, ("acme", "bolt", "calm")) == []
    outcomes = post.answers(tenant)
    assert {a["inbox"]["offset"] for a in outcomes if a["kind"] == "ended"} >= {0, 2}
    return [answer for answer in outcomes if answer["inbox"]["offset"] == 1]


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (b"", "invalid_request", "body: the body is no JSON object"),
        (b"{", "invalid_request", "body: the body is no JSON object"),
        (b"[1]", "invalid_request", "body: the body is no JSON object"),
        (b'{"a": "\xff"}', "invalid_request", "body: the body is no JSON object"),
        (b"[" * 100_000, "invalid_request", "body: the body is"),
        (b'{"endpoint":"chat","input":' + b"[" * 100_000 + b"}", "invalid_request", "body: "),
        ({"endpoint": "none", "input": 1}, "unknown_endpoint", "endpoint: no endpoint 'none'"),
        ({"input": 1}, "invalid_request", "endpoint: is missing"),
        ({"endpoint": "chat"}, "invalid_request", "input: is missing"),
        (GOOD | {"tier": "no"}, "tier_not_allowed", "tier: "),
        (GOOD | {"extra": 1}, "invalid_request", "extra: no such field"),
        (GOOD | {"endpoint": "embed", "input": "x" * 3_000}, "body_too_large", "input: has 3002"),
        (b"x" * (BODY_BYTES_MAX + 1), "body_too_large", f"up to {BODY_BYTES_MAX}"),
        (GOOD | {"endpoint": "tight", "priority": -1}, "invalid_request", "priority: "),
    ],
)
def test_what_is_no_request_is_refused_and_nothing_stops(
    value: Any, reason: str, detail: str
) -> None:
    [answer] = answers_to(value)
    assert (answer["kind"], answer["reason"]) == ("refused", reason)
    assert detail in answer["detail"]
    assert answer["retry"] == "never"


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([(f"h{number}", b"") for number in range(33)], "headers"),
        ([("x", b"y" * 100)] * 5_000, "headers"),
        ([(UNREADABLE_HEADER, b"")], "headers"),
        ([("idempotency-key", b"")], "idempotency-key"),
        ([("idempotency-key", b"two words")], "idempotency-key"),
        ([("Idempotency-Key", b"\xff\xfe")], "idempotency-key"),
        ([("idempotency-key", b"k" * 201)], "idempotency-key"),
        ([("idempotency-key", b"a"), ("Idempotency-Key", b"b")], "idempotency-key"),
        ([("x-request-id", b"x" * 129)], "x-request-id"),
        ([("x-request-id", b"\r\n")], "x-request-id"),
    ],
)
def test_headers_that_are_none_are_refused(headers: Headers, field: str) -> None:
    [answer] = answers_to(GOOD, headers)
    assert (answer["kind"], answer["reason"]) == ("refused", "invalid_request")
    assert answer["detail"].startswith(f"{field}: ")


def test_the_answer_names_the_record_and_the_caller_s_own_name() -> None:
    headers = [("x-request-id", b"mine"), ("traceparent", b"00-ab-cd-01"), ("fairlane", b"forged")]
    [answer] = answers_to(GOOD, [*headers, ("fairlane-inbox", b"forged/0/0")])
    assert (answer["kind"], answer["state"], answer["x_request_id"]) == (
        "ended",
        "succeeded",
        "mine",
    )
    assert answer["output"] == {"echo": "hi"}
    assert answer["inbox"] == {"partition": 0, "offset": 1}


def test_headers_of_answers_say_the_same_without_parsing() -> None:
    post = Post()
    post.put("acme", GOOD, [("x-request-id", b"mine"), ("traceparent", b"00-ab-cd-01")])
    post.put("acme", b"no", [("x-request-id", b"other")])
    post.play()
    ended, refused = sorted(
        post.records(post.topics.results_of("acme")),
        key=lambda record: dict(record.headers)["kind"],
    )
    topic_id = post.log.topic_id(post.topics.inbox("acme"))
    assert dict(ended.headers) == {
        "kind": b"ended",
        "fairlane-inbox": f"{topic_id}/0/0".encode(),
        "x-request-id": b"mine",
        "traceparent": b"00-ab-cd-01",
    }
    assert dict(refused.headers)["kind"] == b"refused"
    assert json.loads(ended.value)["id"] == (ended.key or b"").decode()


def test_a_key_makes_two_records_one_request_and_the_second_one_is_told() -> None:
    post = Post()
    for number in (1, 1, 2):
        post.put("acme", GOOD | {"input": number}, [("idempotency-key", b'"k"')])
        post.play()
    assert [offset for _, offset, _ in requests(post)["acme"]] == [0]
    ended, repeated, refused = post.answers("acme")
    assert ended["id"] == repeated["id"] == refused["id"]
    assert (repeated["kind"], repeated["inbox"]["offset"]) == ("repeated", 1)
    assert (refused["kind"], refused["inbox"]["offset"]) == ("refused", 2)
    assert "another request" in refused["detail"]


def test_two_records_of_a_key_at_once_are_one_request() -> None:
    post = Post()
    for _ in range(3):
        post.put("bolt", GOOD, [("idempotency-key", b"k")])
    post.play()
    assert faults(post, ("bolt",)) == []
    assert [answer["kind"] for answer in post.answers("bolt")].count("repeated") == 2


def test_over_the_limit_refuse_answers_at_once_and_lets_others_pass() -> None:
    post = Post()
    for _ in range(7):
        post.put("acme", {"endpoint": "tight", "input": 1})
    post.put("acme", GOOD)
    post.play()
    refused = [answer for answer in post.answers("acme") if answer["kind"] == "refused"]
    assert [answer["inbox"]["offset"] for answer in refused] == [5, 6]
    assert {(answer["reason"], answer["retry"]) for answer in refused} == {("rate_limit", "later")}
    assert all(0 < answer["retry_after_s"] <= 60 for answer in refused)
    assert faults(post, ("acme",)) == []


def test_over_the_limit_hold_waits_in_order_and_holds_nobody_else() -> None:
    post = Post()
    for number in range(7):
        post.put("bolt", {"endpoint": "tight", "input": number})
    post.put("bolt", GOOD)
    post.put("calm", GOOD)
    post.play()
    assert [offset for _, offset, _ in requests(post)["bolt"]] == [0, 1, 2, 3, 4]
    assert len(requests(post)["calm"]) == 1
    assert all(answer["kind"] == "ended" for answer in post.answers("bolt"))
    post.play(turns=30, step_ms=5_000)
    assert faults(post, ("bolt", "calm")) == []
    assert {answer["kind"] for answer in post.answers("bolt")} == {"ended"}
    assert len(post.answers("bolt")) == 8


def test_a_held_inbox_asks_for_no_room_behind_its_first_record() -> None:
    post = Post()
    for number in range(50):
        post.put("bolt", {"endpoint": "tight", "input": number})
    post.play(turns=20)
    assert post.limits.asked["bolt"] <= 5 + 2, "its share is not charged record by record"


def test_what_can_never_fit_is_refused_and_not_held() -> None:
    nobody = {"tight": 0}
    tenants = tuple(replace(tenant, requests_per_minute=nobody) for tenant in POLICY.tenants)
    policy = replace(POLICY, tenants=tenants)
    post = Post(policy)
    post.put("bolt", {"endpoint": "tight", "input": 1})
    post.put("bolt", GOOD)
    post.play()
    refused, ended = post.answers("bolt")
    assert (refused["reason"], ended["kind"]) == ("never_fits", "ended")


def test_a_deadline_counts_from_the_inbox() -> None:
    post = Post()
    post.put("acme", GOOD | {"deadline_ms": 60_000})
    post.put("acme", GOOD | {"deadline_ms": 1_000})
    appended_ms = post.clock.value_ms
    post.clock.value_ms += 5_000
    post.play()
    [record] = post.records(*requests(post)["acme"][0][0])
    assert codec.decode_header(record, Request).deadline_ms == appended_ms + 60_000
    refused = next(answer for answer in post.answers("acme") if answer["kind"] == "refused")
    assert (refused["reason"], refused["inbox"]["offset"]) == ("deadline", 1)


def test_a_flood_of_one_tenant_delays_no_other() -> None:
    """A few cycles after it was written a neighbour's record is in, however much waits."""
    post = Post()
    for number in range(5_000):
        post.put("acme", {"endpoint": "chat", "input": number})

    async def life() -> None:
        process = post.process()
        await post.run(process, 6)
        assert requests(post)["acme"]
        post.put("calm", GOOD)
        await post.run(process, 4)
        assert len(requests(post)["calm"]) == 1
        assert len(requests(post)["acme"]) < 4_000, "the flood is not over"
        await process.stop()

    asyncio.run(life())
    post.play(turns=40)
    assert faults(post, ("acme", "calm")) == []


def test_results_of_any_door_come_and_those_of_others_do_not() -> None:
    post = Post()
    post.play()
    for tenant in ("acme", "none"):
        header = codec.header(Request(v=1, id=f"req_{tenant}", tenant=tenant, endpoint="chat"))
        place = post.topics.request_partition("chat", tenant, POLICY)
        post.log.producer().send(post.topics.requests("gold"), place, b'"x"', headers=header)
    post.serve()
    post.play()
    [answer] = post.answers("acme")
    assert (answer["id"], answer["output"]) == ("req_acme", {"echo": "x"})
    assert "inbox" not in answer
    assert post.topics.results_of("none") not in post.log.topics()


def test_an_output_too_large_for_a_record_is_left_out_and_said() -> None:
    post = Post()
    post.play()
    header = codec.header(Request(v=1, id="req_large", tenant="acme", endpoint="chat"))
    value = b'"%s"' % (b"x" * 998_000)
    post.log.producer().send(post.topics.requests("gold"), 0, value, headers=header)
    post.serve()
    post.put("acme", GOOD)
    post.play()
    large, small = post.answers("acme")
    assert "GET /v1/requests/req_large" in large["output_omitted"]
    assert "output" not in large
    assert small["output"] == {"echo": "hi"}


def test_records_that_the_log_dropped_are_told() -> None:
    post = Post()
    post.put("acme", GOOD)
    post.play()
    for _ in range(4):
        post.put("acme", GOOD)
    post.log.delete_records({(post.topics.inbox("acme"), 0): 3})
    post.play()
    lost = next(answer for answer in post.answers("acme") if answer["kind"] == "lost")
    assert (lost["partition"], lost["first"], lost["stop"]) == (0, 1, 3)
    assert faults_but_lost(post) == [0, 3, 4]


def faults_but_lost(post: Post) -> list[int]:
    return sorted(a["inbox"]["offset"] for a in post.answers("acme") if a["kind"] == "ended")


def test_an_inbox_that_was_made_again_is_read_from_its_start() -> None:
    post = Post()
    post.put("acme", GOOD)
    post.put("acme", GOOD)
    post.play()
    first = {request_id for _, _, request_id in requests(post)["acme"]}
    post.log.delete_topic(post.topics.inbox("acme"))
    post.publish(POLICY)
    post.put("acme", GOOD)
    post.play()
    assert len({request_id for _, _, request_id in requests(post)["acme"]} - first) == 1


def test_an_inbox_without_its_topics_holds_up_nobody() -> None:
    post = Post()
    post.log.delete_topic(post.topics.results_of("acme"))
    post.log.delete_topic(post.topics.inbox("bolt"))
    post.put("acme", GOOD)
    post.put("calm", GOOD)
    post.play()
    assert [answer["kind"] for answer in post.answers("calm")] == ["ended"]

    async def life() -> None:
        process = post.process()
        await post.run(process, 3)
        post.publish(POLICY)
        await post.run(process, 10, step_ms=5_000)
        await process.stop()

    asyncio.run(life())
    assert [answer["kind"] for answer in post.answers("acme")] == ["ended"]


def test_an_inbox_that_is_given_later_is_taken_in_and_one_that_is_taken_away_rests() -> None:
    post = Post(
        replace(
            POLICY,
            tenants=tuple(
                replace(t, inbox=Inbox.OFF) if t.name == "bolt" else t for t in POLICY.tenants
            ),
        )
    )
    assert post.topics.inbox("bolt") not in post.log.topics()

    async def life() -> None:
        process = post.process()
        await post.run(process, 3)
        post.publish(POLICY)
        post.put("bolt", GOOD)
        await post.run(process, 20)
        assert len(requests(post)["bolt"]) == 1
        off = tuple(replace(tenant, inbox=Inbox.OFF) for tenant in POLICY.tenants)
        post.publish(replace(POLICY, tenants=off))
        await post.run(process, 3)
        post.put("bolt", GOOD)
        await post.run(process, 20)
        assert len(requests(post)["bolt"]) == 1
        post.publish(POLICY)
        await post.run(process, 20)
        await process.stop()

    asyncio.run(life())
    assert faults(post, ("bolt",)) == []
    assert len(post.answers("bolt")) == 2


def test_more_request_partitions_than_a_commit_can_mark_are_taken_in_turns() -> None:
    names = [f"model-{number}" for number in range(2 * MARKS_MAX)]
    policy = replace(
        POLICY,
        topology=Topology(shards=128, spread=2, buckets=1),
        pools=tuple(Pool(name=name) for name in names),
        endpoints=tuple(Endpoint(name=name, pool=name) for name in names),
    )
    post = Post(policy)
    for number in range(6 * MARKS_MAX):
        tier = ("gold", "batch")[number // 7 % 2]
        post.put("acme", {"endpoint": names[number % len(names)], "input": 1, "tier": tier})
    live_until_killed(post, ProcessLog(post.log, killer(Call.COMMIT, 6)), 40, "inbox-1")
    post.play()
    assert faults(post, ("acme",)) == []
    assert len({place for place, _, _ in requests(post)["acme"]}) > MARKS_MAX


def killer(call: Call, at: int) -> At:
    """Kills a process at a step of its log, and at each one after it."""
    left = at

    def step(now: Call) -> None:
        nonlocal left
        left -= now is call
        if left <= 0:
            raise Killed

    return step


def test_marks_of_another_release_are_not_guessed_at() -> None:
    topics = Topics("post")
    marks = {("post.requests.gold", 3): 17, ("post.requests.batch", 0): 0}
    assert decode(encode(marks, topics), topics) == marks
    for text in ("", "2 gold:0=1", "1 gold", "1 gold:0=x"):
        with pytest.raises(LogError, match="does not read"):
            decode(text, topics)


def test_what_is_done_is_committed_for_anybody_to_see() -> None:
    post = Post()
    for _ in range(5):
        post.put("calm", GOOD)
    post.play()
    part = (post.topics.inbox("calm"), 0)
    found = post.log.reader().committed(group(post.topics), [part])[part]
    assert found is not None
    assert (found.offset, found.metadata) == (5, post.log.topic_id(part[0]))


def test_a_request_that_came_by_inbox_is_found_by_its_id() -> None:
    post = Post()
    post.put("acme", GOOD)
    post.play()
    [(place, _, request_id)] = requests(post)["acme"]
    [(name, acceptance)] = post.index.accepted.items()
    assert (name.tenant, name.id) == ("acme", request_id)
    assert (acceptance.topic, acceptance.partition) == place


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
def test_while_limits_can_not_be_asked_for_records_wait_and_none_is_refused(tenant: str) -> None:
    post = Post()
    post.limits.down.add("tight")
    for endpoint in ("chat", "tight", "chat", "tight"):
        key = [("idempotency-key", f"{endpoint}-{len(requests(post))}".encode())]
        post.put(tenant, {"endpoint": endpoint, "input": 1}, key if endpoint == "chat" else ())

    async def life() -> None:
        process = post.process(when_down=WhenDown.CLOSED)
        await post.run(process, 30)
        assert [offset for _, offset, _ in requests(post)[tenant]] == [0]
        post.limits.down.clear()
        await post.run(process, 60)
        await process.stop()
        assert process._intake._charged == {}, "what was admitted and not published is given up"

    asyncio.run(life())
    assert faults(post, (tenant,)) == []
    assert "refused" not in {answer["kind"] for answer in post.answers(tenant)}


@pytest.mark.parametrize("fault", list(CommitFault))
def test_the_same_process_goes_on_after_a_commit_in_doubt(fault: CommitFault) -> None:
    post = Post()
    failed: list[str] = []

    def once(transactional_id: str) -> CommitFault | None:
        if failed or "inbox" not in transactional_id or not requests(post)["acme"]:
            return None
        failed.append(transactional_id)
        return fault

    post.log.faults = once
    post.put("acme", GOOD)
    post.put("acme", {})

    async def life() -> None:
        process = post.process()
        for _ in range(20):
            with suppress(LogError):
                await post.run(process, 1)
        assert failed
        assert faults(post, ("acme",)) == []
        assert len(post.answers("acme")) == 2
        await process.stop()

    asyncio.run(life())


def test_our_own_failure_in_one_bucket_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Desk.turn

    async def failing(desk: Desk, view: Any, timeout_s: float, crowd: int) -> int:
        if desk._number == bucket("calm", 2):
            raise ZeroDivisionError
        return await real(desk, view, timeout_s, crowd)

    monkeypatch.setattr(Desk, "turn", failing)
    post = Post()
    others = [t for t in ("acme", "bolt") if bucket(t, 2) != bucket("calm", 2)]
    for tenant in (*others, "calm"):
        post.put(tenant, GOOD)

    async def life() -> None:
        process = post.process()
        for _ in range(20):
            with suppress(ZeroDivisionError):
                await post.run(process, 1)
        await process.stop()

    asyncio.run(life())
    assert [len(requests(post)[tenant]) for tenant in others] == [1] * len(others) != []
    assert requests(post)["calm"] == []


def test_a_result_that_can_not_be_told_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ended

    def failing(ending: Any, body: bytes, *rest: Any) -> Any:
        if b"poison" in body:
            raise ZeroDivisionError
        return real(ending, body, *rest)

    monkeypatch.setattr("producers.inbox_copying.ended", failing)
    post = Post()
    post.put("acme", GOOD | {"input": "poison"})
    post.put("acme", GOOD)
    post.play()
    assert [answer["inbox"]["offset"] for answer in post.answers("acme")] == [1]


def test_our_own_failure_at_one_record_is_answered_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = outline

    def failing(body: bytes) -> Any:
        if b"poison" in body:
            raise ZeroDivisionError("ours")
        return real(body)

    monkeypatch.setattr("producers.inbox_reading.outline", failing)
    [answer] = answers_to(GOOD | {"input": "poison"})
    assert (answer["kind"], answer["status"]) == ("refused", 500)
    assert "ZeroDivisionError" in answer["detail"]


def test_an_inbox_and_an_ingress_of_one_instance_are_two_to_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one they would count as one ingress, and take over each other's claims."""
    post, announced = Post(), list[str]()

    async def announce(name: str) -> int:
        announced.append(name)
        return 1

    async def life() -> None:
        process = post.process(instance="node-1")
        await process._keeper.turn()
        assert announced == [process._intake._owner] == ["inbox.node-1"]
        await process.stop()

    monkeypatch.setattr(post.limits, "announce", announce)
    asyncio.run(life())
