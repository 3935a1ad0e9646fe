"""`fairlane submit` against the real door in process, and against servers that misbehave."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from adapters.memory import MemoryLog
from fairlane.errors import FairlaneError
from fairlane.patience import Pacer
from fairlane.submit import (
    EXIT_DONE,
    EXIT_SOME_FAILED,
    EXIT_UNFINISHED,
    MISSES_MAX,
    TRIES_MAX,
    command,
    submit_file,
)
from fairlane.submit_files import LINE_BYTES_MAX, read_digest, read_lines
from producers.app import build_app
from schemas import codec
from schemas.records import Request
from tests.support.door import Clock, Door, door

URL = "http://door"
Handler = Callable[[httpx.Request], httpx.Response]


class Run:
    """One run of the command and what it said."""

    def __init__(self, path: Path, transport: httpx.AsyncBaseTransport, key: str = "k") -> None:
        self.path, self.transport, self.key = path, transport, key
        self.slept: list[float] = []
        self.said = io.StringIO()

    async def __call__(self, **options: Any) -> int:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            await asyncio.sleep(0)

        return await submit_file(
            self.path,
            URL,
            self.key,
            transport=self.transport,
            pacer=Pacer(sleep, Random(7)),
            console=Console(file=self.said, width=200),
            **options,
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def write(path: Path, count: int, endpoint: str = "free") -> None:
    lines = (json.dumps({"endpoint": endpoint, "input": n}) for n in range(count))
    path.write_text("".join(line + "\n" for line in lines))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@asynccontextmanager
async def working_door() -> AsyncIterator[Door]:
    """A door behind which every request of `gold` is answered with its own input."""
    async with door(MemoryLog(Clock())) as opened:
        done = set[str]()

        async def work() -> None:
            while True:
                for record in opened.records(opened.topics.requests("gold")):
                    request = codec.decode_header(record, Request)
                    if request.id not in done:
                        done.add(request.id)
                        opened.finish(request.id, record.value)
                await asyncio.sleep(0.005)

        worker = asyncio.create_task(work())
        try:
            yield opened
        finally:
            worker.cancel()


def transport_of(opened: Door) -> httpx.ASGITransport:
    return httpx.ASGITransport(build_app(opened.ingress))


def published(opened: Door) -> list[int]:
    records = opened.records(opened.topics.requests("gold"))
    return sorted(int(record.value) for record in records)


def test_every_line_is_published_once_and_a_second_run_sends_nothing(path: Path) -> None:
    write(path, 50)

    async def scenario() -> None:
        async with working_door() as opened:
            run = Run(path, transport_of(opened), opened.keys["acme"])
            assert await run() == EXIT_DONE
            assert published(opened) == list(range(50))
            assert await run() == EXIT_DONE
            assert published(opened) == list(range(50))

    asyncio.run(scenario())


def test_results_are_written_once_for_every_line(path: Path, tmp_path: Path) -> None:
    write(path, 50)
    out = tmp_path / "results.jsonl"

    async def scenario() -> None:
        async with working_door() as opened:
            run = Run(path, transport_of(opened), opened.keys["acme"])
            assert await run(out=out, concurrency=8) == EXIT_DONE
            assert await run(out=out) == EXIT_DONE

    asyncio.run(scenario())
    found = {row["line"]: row["output"] for row in rows(out)}
    assert found == {n + 1: n for n in range(50)}
    assert len(rows(out)) == 50


def test_results_may_be_fetched_by_a_later_run(path: Path, tmp_path: Path) -> None:
    write(path, 10)
    out = tmp_path / "results.jsonl"

    async def scenario() -> None:
        async with working_door() as opened:
            run = Run(path, transport_of(opened), opened.keys["acme"])
            assert await run() == EXIT_DONE
            assert await run(out=out) == EXIT_DONE
            assert published(opened) == list(range(10))

    asyncio.run(scenario())
    assert {row["line"] for row in rows(out)} == set(range(1, 11))


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_call_and_run_again_nothing_is_lost_or_doubled(
    path: Path, tmp_path: Path, seed: int
) -> None:
    write(path, 12)
    out = tmp_path / "results.jsonl"
    random = Random(seed)

    class Mortal(httpx.AsyncBaseTransport):
        """Kills the process after so many calls, before or after the call had its effect."""

        def __init__(self, inner: httpx.AsyncBaseTransport, calls: int) -> None:
            self.inner, self.calls = inner, calls

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.calls -= 1
            is_last = self.calls == 0
            if is_last and random.random() < 0.5:
                raise KilledError
            answer = await self.inner.handle_async_request(request)
            if is_last:
                raise KilledError
            return answer

    class KilledError(Exception):
        """As a kill: nothing of the program's own handles it."""

    def tear() -> None:
        """What a kill may leave of a write: the beginning of a line."""
        tails = {path.with_name("data.journal"): [b"1", b"12 req_"], out: [b"{", b'{"line":']}
        for file, beginnings in tails.items():
            if file.exists() and random.random() < 0.5:
                with file.open("ab") as torn:
                    torn.write(random.choice(beginnings))

    async def scenario() -> None:
        async with working_door() as opened:
            key, kills = opened.keys["acme"], 0
            while True:
                mortal = Mortal(transport_of(opened), random.randint(1, 12))
                try:
                    code = await Run(path, mortal, key)(out=out, concurrency=3)
                except KilledError:
                    kills += 1
                    tear()
                    continue
                break
            assert code == EXIT_DONE
            assert kills > 0
            ids = {
                codec.decode_header(r, Request).id
                for r in opened.records(opened.topics.requests("gold"))
            }
            assert len(ids) == 12
            assert set(published(opened)) == set(range(12))

    asyncio.run(scenario())
    assert sorted(row["line"] for row in rows(out)) == list(range(1, 13))
    assert {row["output"] for row in rows(out)} == set(range(12))


BROKEN = [
    (b"{not json", "no JSON object"),
    (b"[1]", "no JSON object"),
    (b'{"input": "\xff"}', "no JSON object"),
    (b'{"id": 5, "endpoint": "free", "input": 1}', '"id" must be a string'),
    (b'{"id": "a b", "endpoint": "free", "input": 1}', '"id" must be a string'),
    (b'"' + b"x" * LINE_BYTES_MAX + b'"', f"longer than {LINE_BYTES_MAX} bytes"),
    (b'{"endpoint": "nope", "input": 1}', "endpoint: no endpoint 'nope'"),
    (b'{"endpoint": "free"}', "input: is missing"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_line_is_told_with_its_number_and_the_rest_goes_on(
    path: Path, text: bytes, message: str
) -> None:
    good = b'{"endpoint": "free", "input": %d}\n'
    path.write_bytes(good % 1 + b"\n" + text + b"\n" + good % 2)

    async def scenario() -> None:
        async with working_door() as opened:
            run = Run(path, transport_of(opened), opened.keys["acme"])
            assert await run() == EXIT_SOME_FAILED
            assert "1 of 3 lines failed" in run.said.getvalue()
            assert published(opened) == [1, 2]
            assert await run() == EXIT_SOME_FAILED

    asyncio.run(scenario())
    (failed,) = rows(path.with_name("data.failed.jsonl"))
    assert failed["line"] == 3
    assert failed["error"].startswith("line 3: ")
    assert message in failed["error"]


def test_an_id_is_the_idempotency_key_and_no_field_of_the_body(path: Path) -> None:
    path.write_text('{"id": "order-7", "endpoint": "chat", "input": {"a":  1}}')
    (line,) = read_lines(path, read_digest(path).hex)
    assert line.key == "order-7"
    assert line.body == b'{"endpoint":"chat","input":{"a":  1}}'


def test_lines_are_counted_without_blank_ones_and_with_an_unended_last(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n\n  \n{"b":2}')
    assert read_digest(path).lines == 2
    assert [line.number for line in read_lines(path, "d")] == [1, 4]
    path.write_bytes(b"")
    assert read_digest(path).lines == 0


def serving(path: Path, handler: Handler) -> Run:
    return Run(path, httpx.MockTransport(handler))


def accepted(number: int) -> httpx.Response:
    return httpx.Response(202, json={"id": f"req_{number}", "state": "waiting"})


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_by_all_with_jitter_on_top(path: Path, status: int) -> None:
    write(path, 5)
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.headers["idempotency-key"])
        if len(calls) == 1:
            return httpx.Response(status, headers={"Retry-After": "40"}, json={})
        return accepted(len(calls))

    run = serving(path, handler)
    assert asyncio.run(run(concurrency=1)) == EXIT_DONE
    assert calls[0] == calls[1]
    assert len(calls) == 6
    assert 39 < run.slept[0] <= 45
    assert run.slept[0] != 40


def test_a_limit_is_waited_out_however_often_it_refuses(path: Path) -> None:
    write(path, 1)
    calls: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) <= 3 * TRIES_MAX:
            return httpx.Response(429, headers={"Retry-After": "1"}, json={})
        return accepted(1)

    assert asyncio.run(serving(path, handler)()) == EXIT_DONE


def test_a_service_that_does_not_answer_ends_the_run_which_can_go_on(path: Path) -> None:
    write(path, 3)
    is_up = [False]

    def handler(request: httpx.Request) -> httpx.Response:
        if not is_up[0]:
            raise httpx.ConnectError("connection refused", request=request)
        return accepted(1)

    run = serving(path, handler)
    assert asyncio.run(run(concurrency=1)) == EXIT_UNFINISHED
    assert f"given up after {TRIES_MAX} tries: connection refused" in run.said.getvalue()
    assert "3 lines are left: run the same command again" in run.said.getvalue()
    is_up[0] = True
    assert asyncio.run(run()) == EXIT_DONE


def test_a_refused_key_stops_the_run_at_once(path: Path) -> None:
    write(path, 100)
    calls: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(401, json={"detail": "no key, or not a valid one"})

    run = serving(path, handler)
    assert asyncio.run(run(concurrency=1)) == EXIT_UNFINISHED
    assert "the key is refused: no key, or not a valid one" in run.said.getvalue()
    assert len(calls) == 1


def test_a_request_that_ended_badly_is_written_and_makes_the_exit_code(
    path: Path, tmp_path: Path
) -> None:
    write(path, 2)
    out = tmp_path / "results.jsonl"

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return accepted(json.loads(request.content)["input"])
        state = "succeeded" if request.url.path.endswith("req_0") else "expired"
        return httpx.Response(200, json={"id": "x", "state": state})

    assert asyncio.run(serving(path, handler)(out=out)) == EXIT_SOME_FAILED
    assert {row["line"]: row["state"] for row in rows(out)} == {1: "succeeded", 2: "expired"}


def test_a_result_that_is_not_found_stops_the_run_which_can_go_on(
    path: Path, tmp_path: Path
) -> None:
    write(path, 1)
    is_indexed = [False]

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return accepted(1)
        if is_indexed[0]:
            return httpx.Response(200, json={"state": "succeeded"})
        return httpx.Response(404, json={"detail": "no request of this id"})

    run, out = serving(path, handler), tmp_path / "o.jsonl"
    assert asyncio.run(run(out=out)) == EXIT_UNFINISHED
    assert f"line 1: req_1 is not found in {MISSES_MAX} tries" in run.said.getvalue()
    assert run.slept == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert rows(path.with_name("data.failed.jsonl")) == []
    is_indexed[0] = True
    assert asyncio.run(run(out=out)) == EXIT_DONE
    assert rows(out) == [{"line": 1, "state": "succeeded"}]


def test_a_changed_file_another_service_and_a_second_run_at_once_are_refused(
    path: Path, tmp_path: Path
) -> None:
    write(path, 3)
    ok = serving(path, lambda _: accepted(1))
    assert asyncio.run(ok()) == EXIT_DONE
    write(path, 4)
    with pytest.raises(FairlaneError, match=r"has changed since its journal was begun.*remove"):
        asyncio.run(ok())
    write(path, 3)
    transport = httpx.MockTransport(lambda _: accepted(1))
    with pytest.raises(FairlaneError, match="belongs to a submission to http://door"):
        asyncio.run(submit_file(path, "http://elsewhere", "k", transport=transport))

    other = tmp_path / "other.jsonl"
    write(other, 3)

    async def both() -> None:
        inner: list[Exception] = []

        async def handler(_: httpx.Request) -> httpx.Response:
            try:
                await Run(other, transport)()
            except FairlaneError as error:
                inner.append(error)
            return accepted(1)

        await Run(other, httpx.MockTransport(handler))(concurrency=1)
        assert "another run is at work on it" in str(inner[0])

    asyncio.run(both())


def test_a_missing_file_and_foreign_files_are_named(path: Path, tmp_path: Path) -> None:
    run = serving(path, lambda _: accepted(1))
    with pytest.raises(FairlaneError, match=r"data\.jsonl: No such file"):
        asyncio.run(run())
    write(path, 1)
    out = tmp_path / "notes.txt"
    out.write_text("my notes\n")
    with pytest.raises(FairlaneError, match=r"notes\.txt: holds lines of something else"):
        asyncio.run(run(out=out))
    assert out.read_text() == "my notes\n"
    path.with_name("data.journal").write_text("hello\n")
    with pytest.raises(FairlaneError, match="no journal of a submission"):
        asyncio.run(run())
    with pytest.raises(FairlaneError, match="--concurrency must be 1"):
        asyncio.run(run(concurrency=0))


def test_the_command_names_the_missing_key(path: Path) -> None:
    app = Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(path)], env={"FAIRLANE_KEY": ""})
    assert isinstance(result.exception, FairlaneError)
    assert "give --key or set FAIRLANE_KEY" in str(result.exception)


def test_results_keep_the_services_json_as_it_is(path: Path, tmp_path: Path) -> None:
    write(path, 1)
    out = tmp_path / "results.jsonl"

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return accepted(1)
        return httpx.Response(200, content=b'{"state":"succeeded","output":[1.50,  2]}')

    assert asyncio.run(serving(path, handler)(out=out)) == EXIT_DONE
    assert out.read_bytes() == b'{"line":1,"state":"succeeded","output":[1.50,  2]}\n'
    assert msgspec.json.decode(out.read_bytes())["line"] == 1
