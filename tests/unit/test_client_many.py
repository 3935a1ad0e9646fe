"""Many at once: order, bounds, what is sent again, and what a broken-off loop leaves behind."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import httpx
import pytest

from fairlane import (
    Accepted,
    AsyncClient,
    FairlaneError,
    Outcome,
    RefusedError,
    Submission,
    UnreachableError,
)
from fairlane.client_flow import CHUNK_BYTES_MAX, CHUNK_LINES_MAX
from tests.support import virtual_time
from tests.support.fake_service import NDJSON, Call, Direct, FakeService, Taken


def client(service: FakeService, **options: Any) -> AsyncClient:
    return AsyncClient("http://door", "k", transport=Direct(service), **options)


def submissions(count: int, endpoint: str = "embed") -> Iterator[Submission]:
    return (Submission(endpoint, n, tag=n) for n in range(count))


def now() -> float:
    return asyncio.get_running_loop().time()


def limit(retry_after_s: float = 5, status: int = 429) -> dict[str, Any]:
    return {
        "status": status,
        "reason": "rate_limit",
        "detail": "used up",
        "retry": "later",
        "retry_after_s": retry_after_s,
    }


def bulks(service: FakeService) -> list[Call]:
    return [call for call in service.calls if call.path.endswith(":bulk")]


# --- submit_many


@pytest.mark.parametrize("is_async", [False, True])
def test_answers_come_in_the_order_of_the_submissions_whatever_is_refused(is_async: bool) -> None:
    refusals = Counter[int]()
    random = Random(5)

    def judge(fields: dict[str, Any]) -> dict[str, Any] | None:
        n = fields["input"]
        if n % 50 == 7:
            return {"status": 400, "reason": "invalid_request", "detail": "bad", "retry": "never"}
        if random.random() < 0.2:
            refusals[n] += 1
            return limit()
        return None

    async def slowly() -> AsyncIterator[Submission]:
        for submission in submissions(1_000):
            yield submission
            await asyncio.sleep(0)

    async def scenario() -> None:
        service = FakeService()
        service.judge = judge
        source = slowly() if is_async else submissions(1_000)
        async with client(service) as opened:
            pairs = [pair async for pair in opened.submit_many(source, outstanding=300)]
        assert [submission.tag for submission, _ in pairs] == list(range(1_000))
        for submission, verdict in pairs:
            if submission.input % 50 == 7:
                assert isinstance(verdict, RefusedError)
                assert verdict.reason == "invalid_request"
            else:
                assert isinstance(verdict, Accepted)
                assert service.taken[verdict.idempotency_key].id == verdict.id
        assert len(service.taken) == 980
        lines = Counter(line["input"] for call in bulks(service) for line in call.lines)
        assert lines == {n: 1 + refusals[n] for n in range(1_000)}

    virtual_time.run(scenario())


def test_chunks_are_bounded_by_lines_and_bytes() -> None:
    async def scenario() -> None:
        service = FakeService()
        async with client(service) as opened:
            async for _ in opened.submit_many(submissions(1_000)):
                pass
            assert {len(call.lines) for call in bulks(service)} <= set(
                range(1, CHUNK_LINES_MAX + 1)
            )
            assert len(bulks(service)) <= 2 * 1_000 / CHUNK_LINES_MAX
            service.calls.clear()
            large = "x" * (CHUNK_BYTES_MAX // 3)
            async for _ in opened.submit_many([Submission("embed", large)] * 10):
                pass
            assert max(len(call.body) for call in bulks(service)) <= CHUNK_BYTES_MAX
            assert len(bulks(service)) == 5
            service.calls.clear()
            larger = "x" * (2 * CHUNK_BYTES_MAX)
            async for _ in opened.submit_many([Submission("embed", larger)] * 3):
                pass
            assert len(bulks(service)) == 3

    virtual_time.run(scenario())


def test_it_pulls_no_more_than_it_may_hold() -> None:
    pulled = 0

    def source() -> Iterator[Submission]:
        nonlocal pulled
        for submission in submissions(1_000):
            pulled += 1
            yield submission

    async def scenario() -> None:
        async with client(FakeService()) as opened:
            taken = 0
            async for _ in opened.submit_many(source(), outstanding=50):
                taken += 1
                await asyncio.sleep(1)
                assert pulled <= taken + 50
            assert taken == 1_000

    virtual_time.run(scenario())


def test_a_limit_pauses_its_endpoint_as_long_as_told_and_no_other() -> None:
    ends: dict[str, float] = {}

    async def scenario() -> None:
        service = FakeService()
        service.judge = lambda fields: (
            limit(60) if fields["endpoint"] == "slow" and now() < 1_060 else None
        )
        mixed = [s for pair in zip(submissions(20, "slow"), submissions(20)) for s in pair]  # noqa: B905
        async with client(service) as opened:
            async for submission, outcome in opened.run_many(mixed, outstanding=40):
                assert isinstance(outcome, Outcome)
                ends[submission.endpoint] = now()
        assert ends["embed"] < 1_010
        assert 1_060 <= ends["slow"] < 1_070
        assert len([call for call in bulks(service) if b"slow" in call.body]) <= 4

    virtual_time.run(scenario())


def test_a_line_that_stays_refused_is_told_when_patience_is_over() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.judge = lambda fields: limit(1, 503) if fields["input"] == 3 else None
        async with client(service, patience_s=30) as opened:
            pairs = [pair async for pair in opened.submit_many(submissions(5))]
        (refused,) = [found for _, found in pairs if isinstance(found, RefusedError)]
        assert refused.status == 503
        assert pairs[3][1] is refused
        assert 20 < now() - 1_000 <= 32

    virtual_time.run(scenario())


def test_lines_without_a_verdict_are_sent_again() -> None:
    async def scenario() -> None:
        service = FakeService()
        is_first = [True]

        def cut(call: Call) -> Any:
            if not is_first[0]:
                return None
            is_first[0] = False
            key = call.lines[0]["idempotency_key"]
            first = {"line": 1, "status": 202, "id": "req_x", "idempotency_key": key}
            return 200, json.dumps(first).encode() + b'\n{"line": 2, "sta', NDJSON

        service.answer_first = cut
        async with client(service) as opened:
            pairs = [pair async for pair in opened.submit_many(submissions(5))]
        assert len(service.taken) == 4
        assert all(isinstance(found, Accepted) for _, found in pairs)

    virtual_time.run(scenario())


# --- run_many


def test_two_thousand_are_never_more_than_outstanding_and_a_poll_each() -> None:
    random = Random(3)
    pulled = 0

    def source() -> Iterator[Submission]:
        nonlocal pulled
        for submission in submissions(2_000):
            pulled += 1
            yield submission

    async def work(taken: Taken) -> None:
        await asyncio.sleep(1 - now() % 1 + random.randrange(3))  # a batch ends at once
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        found, ended = Counter[int](), 0
        async with client(service) as opened:
            async for submission, outcome in opened.run_many(source(), outstanding=50):
                assert isinstance(outcome, Outcome)
                assert outcome.output == submission.input
                found[submission.input] += 1
                ended += 1
                assert pulled - ended <= 50
        assert found == dict.fromkeys(range(2_000), 1)
        assert service.unfinished_max <= 50
        assert service.unfinished_max > 45
        assert len(service.gets) == 2_000

    virtual_time.run(scenario())


def test_outcomes_come_in_the_order_of_the_ends() -> None:
    async def work(taken: Taken) -> None:
        await asyncio.sleep(100 - taken.fields["input"])
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        async with client(service) as opened:
            tags = [s.tag async for s, _ in opened.run_many(submissions(100), outstanding=100)]
        assert tags == list(range(99, -1, -1))

    virtual_time.run(scenario())


def test_slow_ones_on_all_connections_hold_up_neither_ends_nor_submissions() -> None:
    """More wait than there are connections to poll by: they take turns."""

    async def work(taken: Taken) -> None:
        await asyncio.sleep(3_600 if taken.fields["input"] < 50 else 1)
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        quick = 0
        async with client(service, connections=8) as opened:
            async for submission, _ in opened.run_many(submissions(250), outstanding=100):
                quick += submission.input >= 50
                if quick == 200:
                    break
            assert now() - 1_000 < 600
            began = now()
            await opened.submit("embed", 1)
            assert now() - began < 1

    virtual_time.run(scenario())


class LeftError(Exception):
    pass


def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def leave(opened: AsyncClient, how: str) -> None:
    """Take one outcome and leave the loop."""
    stream = opened.run_many(submissions(1_000), outstanding=50)
    async for _ in stream:
        match how:
            case "break":
                break
            case "error":
                raise LeftError
            case "aclose of the stream":
                await stream.aclose()
            case "aclose of the client":
                await opened.aclose()
                break
            case _:
                cancel_itself()
                await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("how", "raises"),
    [
        ("break", None),
        ("error", LeftError),
        ("aclose of the stream", None),
        ("aclose of the client", None),
        ("cancel", asyncio.CancelledError),
    ],
)
def test_a_loop_that_is_left_leaves_no_task_behind_and_raises_nothing(
    how: str, raises: type[BaseException] | None
) -> None:
    async def work(taken: Taken) -> None:
        await asyncio.sleep(1 if taken.fields["input"] < 20 else 1e6)
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: told.append(fault))
        async with client(service) as opened:
            (raised,) = await asyncio.gather(leave(opened, how), return_exceptions=True)
            assert type(raised) is (raises or type(None))
            del raised
            await asyncio.sleep(0.1)
            left = asyncio.all_tasks() - service.tasks - {asyncio.current_task()}
            assert left == set()
        assert told == []

    virtual_time.run(scenario())


def test_a_source_that_fails_tells_its_own_error() -> None:
    def source() -> Iterator[Submission]:
        yield from submissions(10)
        raise ZeroDivisionError

    async def scenario() -> None:
        async with client(FakeService()) as opened:
            with pytest.raises(ZeroDivisionError):
                async for _ in opened.run_many(source()):
                    pass
            with pytest.raises(ZeroDivisionError):
                async for _ in opened.submit_many(source()):
                    pass
            with pytest.raises(FairlaneError, match="outstanding: must be at least 1"):
                async for _ in opened.submit_many([], outstanding=0):
                    pass
            assert [pair async for pair in opened.run_many([])] == []

    virtual_time.run(scenario())


def test_a_wrong_key_and_a_service_that_is_gone_end_the_run() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    async def scenario() -> None:
        service = FakeService()
        service.answer_first = lambda _: (401, {"reason": "unauthenticated", "detail": "no"}, {})
        async with client(service) as opened:
            with pytest.raises(RefusedError, match="unauthenticated"):
                async for _ in opened.run_many(submissions(10)):
                    pass
        transport = httpx.MockTransport(gone)
        async with AsyncClient("http://door", "k", transport=transport) as opened:
            with pytest.raises(UnreachableError, match="connection refused"):
                async for _ in opened.run_many(submissions(10)):
                    pass

    virtual_time.run(scenario())


def test_a_service_that_restarts_at_any_time_ends_every_request_once() -> None:
    """Down for seconds every now and then; what it took before it keeps."""
    random = Random(11)

    class Restarting(Direct):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.fail_while_down(request)
            answer = await super().handle_async_request(request)
            self.fail_while_down(request)
            if random.random() < 0.02:
                raise httpx.RemoteProtocolError("server disconnected", request=request)
            return answer

        def fail_while_down(self, request: httpx.Request) -> None:
            if now() % 20 < 4:
                raise httpx.ConnectError("connection refused", request=request)

    async def work(taken: Taken) -> None:
        await asyncio.sleep(random.uniform(0, 2))
        service.end(taken)

    service = FakeService(work)

    async def scenario() -> None:
        transport = Restarting(service)
        async with AsyncClient("http://door", "k", transport=transport) as opened:
            stream = opened.run_many(submissions(2_000), outstanding=50)
            found = Counter(
                [(s.input, o.output) async for s, o in stream if isinstance(o, Outcome)]
            )
        assert found == {(n, n): 1 for n in range(2_000)}
        assert sorted(taken.fields["input"] for taken in service.taken.values()) == list(
            range(2_000)
        )
        assert now() > 1_040

    virtual_time.run(scenario())


def test_one_submission_more_than_once_with_its_key_is_one_request() -> None:
    async def scenario() -> None:
        service = FakeService()
        same = Submission("embed", 1, idempotency_key="same")
        async with client(service) as opened:
            first = await opened.submit(same)
            ids = {o.id async for _, o in opened.run_many([same, same, same])}
        assert ids == {first.id}
        assert list(service.taken) == ["same"]
        assert json.loads(service.calls[0].body) == {"endpoint": "embed", "input": 1}

    virtual_time.run(scenario())
