"""`fairlane submit` as a process of its own, killed without warning and started again."""

import asyncio
import json
import signal
import sys
from functools import partial
from pathlib import Path

import uvicorn

from adapters.memory import MemoryLog
from fairlane.stack import free_ports
from producers.app import build_app
from schemas import codec
from schemas.records import Request
from tests.support.door import Clock, Door, door, until

LINES = 150


async def served(opened: Door, port: int) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    """The door on a real port; its lifespan is the test's."""
    config = uvicorn.Config(
        build_app(opened.ingress), host="127.0.0.1", port=port, lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    return server, task


async def work(opened: Door, done: dict[str, bytes]) -> None:
    """Answer each request with its own input."""
    while True:
        for record in opened.records(opened.topics.requests("gold")):
            request = codec.decode_header(record, Request)
            if request.id not in done:
                done[request.id] = record.value
                opened.finish(request.id, record.value)
        await asyncio.sleep(0.02)


async def submit(path: Path, out: Path, url: str, key: str) -> asyncio.subprocess.Process:
    arguments = [str(path), "--url", url, "--key", key, "--out", str(out), "--concurrency", "4"]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlane", "submit", *arguments, stderr=asyncio.subprocess.DEVNULL
    )


def test_a_killed_submission_goes_on_and_doubles_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "data.jsonl", tmp_path / "results.jsonl"
    lines = [json.dumps({"endpoint": "free", "input": n}) for n in range(LINES)]
    lines[7] = "{broken"
    path.write_text("\n".join(lines))

    def has_written(lines: int) -> bool:
        return out.exists() and out.read_bytes().count(b"\n") >= lines

    async def scenario() -> None:
        (port,) = free_ports(1)
        async with door(MemoryLog(Clock())) as opened:
            server, serving = await served(opened, port)
            done: dict[str, bytes] = {}
            worker = asyncio.create_task(work(opened, done))
            url, key = f"http://127.0.0.1:{port}", opened.keys["acme"]
            for enough in (20, 60):
                process = await submit(path, out, url, key)
                await until(partial(has_written, enough))
                process.send_signal(signal.SIGKILL)
                assert await process.wait() == -signal.SIGKILL
            process = await submit(path, out, url, key)
            assert await process.wait() == 1  # one line is broken
            assert len(done) == LINES - 1
            worker.cancel()
            server.should_exit = True
            await serving

    asyncio.run(scenario())
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    expected = {n + 1: n for n in range(LINES) if n != 7}
    assert {row["line"]: row["output"] for row in rows} == expected
    assert len(rows) == LINES - 1
    (failed,) = map(json.loads, (tmp_path / "data.failed.jsonl").read_text().splitlines())
    assert failed["line"] == 8
