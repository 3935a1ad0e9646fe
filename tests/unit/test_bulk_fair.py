"""What one bulk call may take from others: the event loop, the lines beside a bad one."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from adapters.memory import MemoryLog
from producers import bulk, ingress, slices
from producers.bulk import BULK_LINES_MAX, WAVE_BYTES, WAVE_LINES
from producers.core import submission
from producers.core.inputs import Inputs, TokenCount, count
from producers.core.lines import read_lines, waves
from producers.core.submission import LINE_FAULTS_MAX
from producers.ingress import Ingress
from producers.intake import Asked, Intake
from schemas.policy import Endpoint
from tests.support.door import POLICY, Clock, Door, door
from tests.support.sick import SickProducer

ROUTE = "/v1/requests:bulk"
LARGE = Endpoint(name="large", pool="large", inputs_max=8)
#: All that can be wrong with a line, and more fields that there aren't than anybody reads.
BAD = {
    "endpoint": "nope", "tier": "platinum", "priority": -1, "deadline_ms": "soon",
} | {f"no such field {n}": n for n in range(30)}  # fmt: skip


def play(scenario: Callable[[Door], Awaitable[None]]) -> None:
    async def with_door() -> None:
        endpoints = tuple(LARGE if e.name == "large" else e for e in POLICY.endpoints)
        log, policy = MemoryLog(Clock()), replace(POLICY, endpoints=endpoints)
        async with door(log, policy=policy) as opened:
            await scenario(opened)

    asyncio.run(with_door())


async def send(opened: Door, lines: list[Any]) -> list[dict[str, Any]]:
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    answer = await opened.http.post(ROUTE, content=content, headers=opened.bearer("acme"))
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


class Probe:
    """Counts the turns that somebody else has of the event loop, at each line that is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns, self.seen = 0, list[int]()
        read = Ingress._read_line

        def reading(ingress: Ingress, *given: Any) -> Any:
            self.seen.append(self.turns)
            return read(ingress, *given)

        monkeypatch.setattr(Ingress, "_read_line", reading)

    async def watch(self, call: Awaitable[Any]) -> Any:
        async def turn() -> None:
            while True:
                await asyncio.sleep(0)
                self.turns += 1

        competing = asyncio.create_task(turn())
        try:
            return await call
        finally:
            competing.cancel()
            with suppress(asyncio.CancelledError):
                await competing


def test_everybody_has_a_turn_after_each_wave_of_lines_that_are_all_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = Probe(monkeypatch)

    async def scenario(opened: Door) -> None:
        verdicts = await probe.watch(send(opened, [BAD] * 640))
        assert {verdict["status"] for verdict in verdicts} == {400}
        assert len(probe.seen) == 640
        for first in range(640 - WAVE_LINES):
            assert probe.seen[first] < probe.seen[first + WAVE_LINES], first

    play(scenario)


@pytest.mark.parametrize("line", [BAD, {"endpoint": "free", "input": 1}], ids=["bad", "good"])
def test_a_slice_that_is_over_ends_between_two_lines(
    monkeypatch: pytest.MonkeyPatch, line: dict[str, Any]
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    probe = Probe(monkeypatch)

    async def scenario(opened: Door) -> None:
        await probe.watch(send(opened, [line] * 100))
        assert len(set(probe.seen)) == 100

    play(scenario)


def test_everybody_has_a_turn_while_lines_are_answered_that_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = Probe(monkeypatch)
    told = list[int]()
    verdict = bulk._verdict

    def telling(*given: Any) -> bytes:
        told.append(probe.turns)
        return verdict(*given)

    monkeypatch.setattr(bulk, "_verdict", telling)

    async def scenario(opened: Door) -> None:
        opened.ingress._publisher._timeout_s = 0.05
        healthy, producer = opened.ingress._publisher._producer, SickProducer()
        opened.ingress._publisher._producer = producer
        lines = [{"endpoint": "free", "input": n} for n in range(10 * WAVE_LINES)]
        verdicts = await probe.watch(send(opened, lines))
        assert {verdict["status"] for verdict in verdicts} == {503}
        assert len(set(told)) == 10
        opened.ingress._publisher._producer = healthy
        for number, report in enumerate(producer.reports):
            report(number, None)

    play(scenario)


def test_of_a_bad_line_a_few_faults_are_told_once() -> None:
    async def scenario(opened: Door) -> None:
        lines = [{f"{n:1000}": "x" * 1_000 for n in range(50)}] * 20
        verdicts = await send(opened, lines)
        for verdict in verdicts:
            assert len(verdict["faults"]) == LINE_FAULTS_MAX
            first, second, _ = verdict["faults"]
            assert f"{first['field']}: {first['message']}" in verdict["detail"]
            assert second["message"] not in verdict["detail"]
            assert "see 'faults'" in verdict["detail"]
            assert len(json.dumps(verdict)) < 2_000
        # A body of as many bad lines as there may be has an answer of a few times its size.
        assert 2_000 * BULK_LINES_MAX < 4 * bulk.BULK_BYTES_MAX

    play(scenario)


def test_a_wave_is_bounded_by_its_bytes_as_by_its_lines() -> None:
    short, long = b'{"input": 1}\n', b'{"input": "' + b"x" * 100_000 + b'"}\n'
    body = short * (WAVE_LINES + 1) + long * 4 + short
    sizes = [
        [line.size for line in wave] for wave in waves(read_lines(body), WAVE_LINES, WAVE_BYTES)
    ]
    assert [len(wave) for wave in sizes] == [WAVE_LINES, 4, 2]
    assert all(sum(wave[:-1]) <= WAVE_BYTES for wave in sizes)


def test_what_is_refused_already_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[int]()

    def counting(data: bytes, endpoint: Endpoint, exact: TokenCount | None = None) -> Inputs:
        counted.append(len(data))
        return count(data, endpoint, exact)

    monkeypatch.setattr(submission, "count", counting)

    async def scenario(opened: Door) -> None:
        refused = await opened.post(endpoint="large", input=[1] * 300_000)
        assert refused.json()["reason"] == "body_too_large"
        assert counted == []
        assert (await opened.post(endpoint="large", input=[1])).status_code == 202
        assert counted == [3]

    play(scenario)


def test_a_text_as_tokens_is_never_cut_into_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list[Any]()
    decode = msgspec.json.decode

    def decoding(data: Any, **kind: Any) -> Any:
        kinds.append(kind["type"])
        return decode(data, **kind)

    monkeypatch.setattr(msgspec.json, "decode", decoding)
    assert count(b"[ " + b"1," * 200_000 + b"2]", LARGE) == Inputs(1, 100_001)
    assert kinds == [list[int]]


# --- a line that fails


def test_nesting_of_any_depth_is_told_and_no_line_beside_it_is_touched() -> None:
    async def scenario(opened: Door) -> None:
        good = b'{"endpoint": "chat", "input": 1}'
        depths = range(880, 1_020)
        deep = [b'{"endpoint": "large", "input": ' + b"[" * n + b"]" * n + b"}" for n in depths]
        content = b"\n".join([good, *deep, good])
        answer = await opened.http.post(ROUTE, content=content, headers=opened.bearer("acme"))
        verdicts = [json.loads(line) for line in answer.text.splitlines()]
        assert [v["line"] for v in verdicts] == list(range(1, len(depths) + 3))
        told = {v.get("detail", "") for v in verdicts if v["status"] == 400}
        assert told == {"input: is nested too deeply", "body: the body is nested too deeply"}
        assert {v["status"] for v in verdicts} == {202, 400}
        assert (verdicts[0]["status"], verdicts[-1]["status"]) == (202, 202)
        records = opened.records(opened.topics.requests("gold"))
        assert len(records) == [v["status"] for v in verdicts].count(202)
        for body in deep:
            single = await opened.http.post(
                "/v1/requests", content=body, headers=opened.bearer("acme")
            )
            assert single.status_code in {202, 400}

    play(scenario)


@pytest.mark.parametrize(
    ("place", "step"), [(ingress, "read"), (Intake, "_charge"), (Intake, "_publish")]
)
def test_an_error_of_ours_is_the_verdict_of_its_line_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: Any, step: str
) -> None:
    healthy = getattr(place, step)

    def reading(fields: dict[str, msgspec.Raw], *given: Any) -> Any:
        if b"poison" in bytes(fields["input"]):
            raise ZeroDivisionError
        return healthy(fields, *given)

    async def taking(intake: Intake, asked: Asked, *given: Any) -> Any:
        if asked.key == "poison":
            raise ZeroDivisionError
        return await healthy(intake, asked, *given)

    failing = reading if step == "read" else taking
    monkeypatch.setattr(place, step, failing)

    async def scenario(opened: Door) -> None:
        lines = [{"endpoint": "free", "input": n, "idempotency_key": f"k-{n}"} for n in range(200)]
        lines[70] |= {"input": "poison", "idempotency_key": "poison"}
        with caplog.at_level(logging.ERROR):
            verdicts = await send(opened, lines)
        assert [v["status"] for v in verdicts] == [202] * 70 + [500] + [202] * 129
        assert verdicts[70]["line"] == 71
        assert "ZeroDivisionError; look the request up" in verdicts[70]["detail"]
        assert [record.getMessage() for record in caplog.records] == [
            "line 71 of a bulk call failed"
        ]
        records = opened.records(opened.topics.requests("gold"))
        assert [int(r.value) for r in records] == [n for n in range(200) if n != 70]
        assert opened.ingress._flights._under_way == {}
        monkeypatch.setattr(place, step, healthy)
        again = await send(opened, lines)
        assert {v["status"] for v in again} == {202}
        assert len(opened.records(opened.topics.requests("gold"))) == 200

    play(scenario)
