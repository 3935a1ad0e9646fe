"""What many submissions meet: limits, foreign answers, and what can't be sent at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from fairlane import (
    Accepted,
    AsyncClient,
    ClientError,
    Outcome,
    ProtocolError,
    RefusedError,
    Submission,
    UnreachableError,
)
from tests.support import virtual_time
from tests.support.fake_service import NDJSON, Answer, Call, Direct, FakeService

BULK_BYTES_MAX = 8_000_000
Verdicts = list[dict[str, Any]]


def client(service: FakeService, **options: Any) -> AsyncClient:
    return AsyncClient("http://door", "k", transport=Direct(service), **options)


def submissions(count: int) -> Iterator[Submission]:
    return (Submission("embed", n) for n in range(count))


def now() -> float:
    return asyncio.get_running_loop().time()


def refusal(status: int, retry_after_s: float) -> dict[str, Any]:
    return {"status": status, "detail": "no", "retry": "later", "retry_after_s": retry_after_s}


class Window:
    """A limit of so many each so many seconds, which tells in whole seconds when it is over."""

    def __init__(self, limit: int, seconds: int) -> None:
        self.limit, self.seconds = limit, seconds
        self.number, self.used = -1, 0

    def judge(self, _: dict[str, Any]) -> dict[str, Any] | None:
        number, into = divmod(now(), self.seconds)
        if number != self.number:
            self.number, self.used = int(number), 0
        if self.used == self.limit:
            return refusal(429, -(-(self.seconds - into) // 1))
        self.used += 1
        return None


# --- limits


@pytest.mark.parametrize("seconds", [60, 1])
def test_a_limit_is_waited_out_however_often_it_comes_and_misses_few_windows(seconds: int) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.judge = Window(60, seconds).judge
        async with client(service) as opened:
            found = [verdict async for _, verdict in opened.submit_many(submissions(2_000))]
        assert len(found) == 2_000
        assert all(isinstance(verdict, Accepted) for verdict in found)
        windows = 2_000 / 60
        assert now() - 1_000 < 1.15 * (windows + 1) * seconds

    virtual_time.run(scenario())


def test_a_limit_of_calls_as_such_is_waited_out_too() -> None:
    async def scenario() -> None:
        service = FakeService()
        limited: Answer = (429, {"detail": "calls"}, {"Retry-After": "100"})
        service.answer_first = lambda _: limited if now() < 2_000 else None
        async with client(service) as opened:
            found = [verdict async for _, verdict in opened.run_many(submissions(3))]
        assert all(isinstance(verdict, Outcome) for verdict in found)
        assert 2_000 <= now() < 2_300

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("status", "retry_after_s"), [(429, 0), (429, -1), (503, 0), (503, 1), (503, -1e9)]
)
def test_all_else_that_may_pass_is_tried_at_a_pace_until_patience_is_over(
    status: int, retry_after_s: float
) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.judge = lambda _: refusal(status, retry_after_s)
        async with client(service, patience_s=100) as opened:
            found = [verdict async for _, verdict in opened.submit_many(submissions(3))]
        assert [type(verdict) for verdict in found] == [RefusedError] * 3
        assert 50 < now() - 1_000 <= 102
        assert len(service.calls) <= 101

    virtual_time.run(scenario())


def test_nobody_is_kept_away_for_more_than_an_hour() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.judge = lambda _: refusal(429, 1e9) if now() < 2_000 else None
        async with client(service) as opened:
            found = [verdict async for _, verdict in opened.submit_many(submissions(3))]
        assert all(isinstance(verdict, Accepted) for verdict in found)
        assert now() - 1_000 < 4_000

    virtual_time.run(scenario())


# --- answers of somebody else


def forged(change: Callable[[Verdicts], object], **headers: str) -> Callable[[Call], Answer]:
    """A bulk call's answer, changed."""

    def answer(call: Call) -> Answer:
        verdicts: Verdicts = [
            {
                "line": number,
                "status": 202,
                "id": f"req_{line['input']}",
                "idempotency_key": line["idempotency_key"],
            }
            for number, line in enumerate(call.lines, 1)
        ]
        change(verdicts)
        return 200, "\n".join(map(json.dumps, verdicts)).encode(), NDJSON | headers

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        forged(lambda verdicts: verdicts.reverse()),
        forged(lambda verdicts: verdicts.insert(0, verdicts[0])),
        forged(lambda verdicts: verdicts[1].update(line=9)),
        forged(lambda verdicts: verdicts[1].update(line=0)),
        forged(lambda verdicts: verdicts[1].update(idempotency_key="of somebody else")),
        forged(lambda verdicts: verdicts[1].pop("idempotency_key")),
        forged(lambda verdicts: verdicts[1].update(id="")),
        forged(lambda verdicts: verdicts[1].pop("status")),
        forged(lambda verdicts: verdicts[1].update(id=5)),
        forged(lambda _: None, **{"Content-Type": "text/html"}),
        lambda _: (200, b"<html>log in</html>", {}),
        lambda _: (200, b"<html>log in</html>", {"Content-Type": "text/html; charset=utf-8"}),
    ],
)
def test_an_answer_that_is_not_of_these_lines_is_nobodys_verdict(
    answer: Callable[[Call], Answer],
) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = answer
        async with client(service) as opened:
            with pytest.raises(ProtocolError, match="http://door/v1/requests:bulk does not answer"):
                async for _ in opened.submit_many(submissions(3)):
                    pass
        assert len(service.calls) == 1

    virtual_time.run(scenario())


def test_a_key_may_have_quotes_which_the_service_takes_off() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = forged(lambda verdicts: verdicts[0].update(idempotency_key="mine"))
        own = Submission("embed", 1, idempotency_key='"mine"')
        async with client(service) as opened:
            found = [verdict async for _, verdict in opened.submit_many([own])]
        assert found == [Accepted("req_1", "waiting", '"mine"')]

    virtual_time.run(scenario())


def test_a_line_that_never_has_a_verdict_ends_the_run_when_patience_is_over() -> None:
    async def scenario() -> None:
        service = FakeService()
        service.answer_first = forged(lambda verdicts: verdicts.clear())
        async with client(service, patience_s=100) as opened:
            with pytest.raises(UnreachableError, match="no verdict of this submission") as caught:
                async for _ in opened.submit_many([Submission("embed", 1, idempotency_key="mine")]):
                    pass
        assert caught.value.idempotency_key == "mine"
        assert 30 < now() - 1_000 <= 102

    virtual_time.run(scenario())


# --- what can't be sent


def test_line_breaks_of_an_encoded_input_end_no_line() -> None:
    texts = [b'{\n  "a": "x\\ny"\n}', b'"b"', b"[\r\n1,\r2]", b'"c"']

    async def scenario() -> None:
        service = FakeService()
        raw = [Submission("embed", msgspec.Raw(text)) for text in texts]
        async with client(service) as opened:
            pairs = [pair async for pair in opened.run_many(raw)]
            await opened.submit(raw[0])
        assert len(pairs) == 4
        for submission, outcome in pairs:
            assert isinstance(outcome, Outcome)
            assert outcome.output == msgspec.json.decode(submission.input)

    virtual_time.run(scenario())


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("many", [AsyncClient.submit_many, AsyncClient.run_many])
@pytest.mark.parametrize("bad", [object(), "\ud800", {(1, 2): 3}, cyclic(), "x" * BULK_BYTES_MAX])
def test_a_submission_that_can_t_be_sent_is_refused_and_no_other(many: Any, bad: Any) -> None:
    def too_large(call: Call) -> Answer | None:
        problem = {"reason": "body_too_large", "detail": "too large", "retry": "never"}
        return (413, problem, {}) if len(call.body) > BULK_BYTES_MAX else None

    async def source() -> AsyncIterator[Submission]:
        for n in range(9):
            yield Submission("embed", bad if n == 4 else n, idempotency_key=f"key-{n}")

    async def scenario() -> None:
        service = FakeService()
        service.answer_first = too_large
        async with client(service) as opened:
            pairs = [pair async for pair in many(opened, source())]
            with pytest.raises(RefusedError):
                await opened.submit("embed", bad)
        refused = [found for _, found in pairs if isinstance(found, ClientError)]
        assert [error.idempotency_key for error in refused] == ["key-4"]
        assert isinstance(refused[0], RefusedError)
        assert refused[0].reason in {"invalid_request", "body_too_large"}
        assert len(pairs) == 9
        assert len(service.taken) == 8

    virtual_time.run(scenario())


def test_many_lines_refused_at_once_are_still_everybodys_concern() -> None:
    async def scenario() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(400, json={"detail": "no"}))
        async with AsyncClient("http://door", "k", transport=transport) as opened:
            with pytest.raises(RefusedError, match="no"):
                async for _ in opened.submit_many(submissions(5)):
                    pass

    virtual_time.run(scenario())
