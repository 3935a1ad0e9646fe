"""Inboxes in trouble: slow stores, one tenant's broken topics, pauses, stops in the middle."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from producers.following import Offloaded
from producers.inbox_desk import Desk
from producers.inbox_judging import JUDGE_MS_MAX
from producers.ports import Limits
from producers.publisher import Publisher
from scheduler.inputs import read_request
from schemas.front import Charge, Verdict
from schemas.log import UNREADABLE_HEADER, Headers, LogError, Record, UnavailableError
from tests.support.inboxes import POLICY, Post
from tests.support.oracle_inbox import faults, requests

GOOD = {"endpoint": "chat", "input": "hi"}


class SlowLimits:
    """Limits that take their time for each answer."""

    def __init__(self, post: Post, each_ms: int) -> None:
        self._limits, self._clock, self._each_ms = post.limits, post.clock, each_ms

    async def charge(self, charge: Charge) -> Verdict:
        self._clock.value_ms += self._each_ms
        return await self._limits.charge(charge)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, name)


@pytest.mark.parametrize("each_ms", [5, 50, 700])
def test_a_held_inbox_moves_on_however_slowly_its_records_are_judged(each_ms: int) -> None:
    rich = tuple(replace(e, requests_per_minute=100_000) for e in POLICY.endpoints)
    post = Post(replace(POLICY, endpoints=rich))
    post.limits: Limits = SlowLimits(post, each_ms)  # type: ignore[misc,assignment]
    for number in range(700):
        post.put("bolt", {"endpoint": "chat", "input": number})

    async def life() -> None:
        process = post.process()
        await post.run(process, 2)
        for turn in range(3):
            before, began_ms = len(requests(post)["bolt"]), post.clock.value_ms
            await post.run(process, 1)
            assert len(requests(post)["bolt"]) > before, f"turn {turn}"
            assert post.clock.value_ms - began_ms <= 50 + JUDGE_MS_MAX + each_ms
        assert process._intake._charged == {}
        assert process._predictor._let == {}
        await process.stop()

    asyncio.run(life())
    assert [offset for _, offset, _ in requests(post)["bolt"]] == list(
        range(len(requests(post)["bolt"]))
    )


async def live(post: Post, process: Any, turns: int, step_ms: int = 500) -> int:
    """Turns as whoever calls them for ever; returns how many failed."""
    failed = 0
    for _ in range(turns):
        try:
            await post.run(process, 1, step_ms)
        except LogError:
            failed += 1
    return failed


class Broken:
    """A call of the log that fails for one topic, until it is mended."""

    def __init__(self, real: Any, topic: str) -> None:
        self.real, self.topic, self.is_broken = real, topic, True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        topic = args[0] if isinstance(args[0], str) else args[0][0]
        if self.is_broken and topic == self.topic:
            raise LogError(f"{topic}: not allowed")
        return self.real(*args, **kwargs)


@pytest.mark.parametrize("call", ["topic_id", "partitions", "bounds", "send"])
def test_a_tenant_whose_topic_fails_stops_nobody_and_goes_on_once_it_is_mended(call: str) -> None:
    post = Post(replace(POLICY, topology=replace(POLICY.topology, buckets=1)))
    topic = post.topics.results_of("acme") if call == "send" else post.topics.inbox("acme")
    broken: list[Broken] = []

    async def life() -> None:
        if call in {"topic_id", "partitions"}:
            broken.append(Broken(getattr(post.log, call), topic))
            setattr(post.log, call, broken[0])
        process = post.process()
        process.directory.turn(0)
        process._is_member()
        [desk] = process._desks.values()
        if call in {"bounds", "send"}:
            inner: Any = desk._reader if call == "bounds" else desk._producer
            broken.append(Broken(getattr(inner, call), topic))
            setattr(inner, call, broken[0])
        for tenant in ("acme", "bolt", "calm"):
            post.put(tenant, GOOD)
            post.put(tenant, b"no request")
        failed = await live(post, process, 200)
        assert 0 < failed <= 10, "tried again now and then"
        assert {len(post.answers(tenant)) for tenant in ("bolt", "calm")} == {2}
        broken[0].is_broken = False
        await live(post, process, 400)
        await process.stop()

    asyncio.run(life())
    assert faults(post, ("bolt", "calm")) == []
    assert [offset for _, offset, _ in requests(post)["acme"]] == [0]
    assert [a["inbox"]["offset"] for a in post.answers("acme") if a["kind"] == "refused"] == [1]


def test_requests_of_who_is_left_out_are_not_published_again_when_it_is_back() -> None:
    """Its request is in the log, its position is not, and marks move on for hours meanwhile."""
    post = Post(replace(POLICY, topology=replace(POLICY.topology, buckets=1)))

    async def life() -> None:
        process = post.process()
        await post.run(process, 3)
        [desk] = process._desks.values()
        broken = Broken(desk._producer.send, post.topics.results_of("acme"))
        desk._producer.send = broken  # type: ignore[method-assign]
        post.put("acme", GOOD)
        post.put("acme", b"no request")
        for _ in range(40):
            post.put("calm", GOOD)
            await live(post, process, 20)
        assert len(requests(post)["acme"]) == 1
        broken.is_broken = False
        await live(post, process, 1_300)
        await process.stop()

    asyncio.run(life())
    assert [offset for _, offset, _ in requests(post)["acme"]] == [0]
    assert faults(post, ("calm",)) == []


def test_a_tenant_without_a_topic_costs_its_bucket_no_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = 0
    real = Desk._take_over

    def counting(desk: Desk) -> Any:
        nonlocal taken
        taken += 1
        return real(desk)

    monkeypatch.setattr(Desk, "_take_over", counting)
    post = Post()
    post.log.delete_topic(post.topics.results_of("calm"))

    async def life() -> None:
        process = post.process()
        await post.run(process, 600, step_ms=100)
        assert taken == len(process._desks)
        post.publish(POLICY)
        post.put("calm", GOOD)
        await post.run(process, 200, step_ms=100)
        await process.stop()

    asyncio.run(life())
    assert faults(post, ("calm",)) == []


@pytest.mark.parametrize("paused_ms", [1_500, 60_000, 2 * 3_600_000])
def test_who_was_paused_after_it_was_asked_publishes_nothing_once_another_goes_on(
    paused_ms: int,
) -> None:
    post = Post()

    async def life() -> None:
        paused = post.process()
        post.put("acme", GOOD)
        await post.run(paused, 6)
        other = post.process()
        post.put("acme", GOOD)
        await post.run(other, 6)
        assert len(requests(post)["acme"]) == 2
        post.clock.value_ms += paused_ms
        paused._is_member = lambda: True  # type: ignore[method-assign]  # it was asked before
        with suppress(LogError):
            await paused.turn(0)
        assert len(requests(post)["acme"]) == 2

    asyncio.run(life())


def test_what_stands_behind_a_record_that_is_not_taken_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's queue has no room for a large one, and has room for the next one."""
    post = Post()
    real = Publisher._send
    refused = 0

    def full(publisher: Publisher, topic: str, number: int, value: bytes, *rest: Any) -> Any:
        nonlocal refused
        if b"large" in value and refused < 1:
            refused += 1
            raise UnavailableError("no room")
        return real(publisher, topic, number, value, *rest)

    monkeypatch.setattr(Publisher, "_send", full)
    for text in ("small", "large", "small", "small"):
        post.put("bolt", {"endpoint": "chat", "input": text})

    async def life() -> None:
        process = post.process()
        await live(post, process, 20, 50)
        await process.stop()

    asyncio.run(life())
    assert refused == 1
    assert faults(post, ("bolt",)) == []
    assert {answer["kind"] for answer in post.answers("bolt")} == {"ended"}


def test_what_runs_in_a_thread_is_waited_for_even_if_its_caller_is_cancelled() -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def blocking() -> None:
        begun.set()
        go.wait(10)
        done.set()

    async def life() -> None:
        offload = Offloaded(asyncio.to_thread)
        caller = asyncio.create_task(offload(blocking))
        await asyncio.to_thread(begun.wait, 10)
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
        assert not done.is_set()
        ended = asyncio.create_task(offload.ended())
        go.set()
        await ended
        assert done.is_set()

    asyncio.run(life())


def test_a_stop_frees_nothing_under_a_thread_that_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producers.following.TURN_S_MAX", 0.01)
    post = Post()
    begun, go = threading.Event(), threading.Event()
    steps: list[str] = []
    real = Desk.close

    def blocking(_: Desk) -> None:
        begun.set()
        go.wait(10)
        steps.append("taken over")

    def closing(desk: Desk) -> None:
        steps.append("closed")
        real(desk)

    monkeypatch.setattr(Desk, "_take_over", blocking)
    monkeypatch.setattr(Desk, "close", closing)

    async def life() -> None:
        process = post.process(offload=asyncio.to_thread)
        process.start()
        await asyncio.to_thread(begun.wait, 10)
        stopped = asyncio.create_task(process.stop())
        await asyncio.wait([stopped], timeout=0.2)
        go.set()
        await stopped

    asyncio.run(life())
    assert steps[0] == "taken over"
    assert "closed" in steps


@pytest.mark.parametrize("headers", [((UNREADABLE_HEADER, b""),)])
def test_a_request_whose_headers_are_no_text_is_one_unreadable_request(headers: Headers) -> None:
    record = Record("requests.gold", 0, 7, 1, None, b"body", tuple(headers))
    arrival, body = read_request(record)
    assert (arrival.offset, arrival.meta, arrival.reason) == (7, None, "unreadable")
    assert body.value == b"body"
