"""docs/client.md: its examples run as they stand, against the real door on the in-memory log."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
import uvicorn

from adapters.memory import MemoryLog
from fairlane.stack import free_ports
from producers.app import build_app
from schemas import codec
from schemas.policy import Endpoint
from schemas.records import Request
from tests.support.door import POLICY, Clock, Door, door, until

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
UNLIMITED = msgspec.structs.replace(
    POLICY, endpoints=(Endpoint(name="chat", pool="chat"),), tenants=POLICY.tenants[:1]
)
EXPECTED = [
    r"\{'text': 'hello'\} 5 250",
    r"(\d+ \{'text': 'row \d+'\}\n){100}",
    "500 succeeded",
    "succeeded",
    r"400 invalid_request .*field='priority'",
]


async def work(opened: Door) -> None:
    """Answer each request with its own input."""
    done = set[str]()
    while True:
        for record in opened.records(opened.topics.requests("gold")):
            request = codec.decode_header(record, Request)
            if request.id not in done:
                done.add(request.id)
                opened.finish(request.id, record.value)
        await asyncio.sleep(0.02)


def test_every_example_is_expected() -> None:
    assert len(BLOCKS) == len(EXPECTED)


@pytest.mark.parametrize(("block", "expected"), list(zip(BLOCKS, EXPECTED, strict=True)))
def test_an_example_does_what_it_says(
    block: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with door(MemoryLog(Clock()), policy=UNLIMITED) as opened:
            config = uvicorn.Config(
                build_app(opened.ingress), port=port, lifespan="off", log_level="error"
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            await until(lambda: server.started)
            worker = asyncio.create_task(work(opened))
            monkeypatch.setenv("FAIRLANE_KEY", opened.keys["acme"])
            text = block.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
            assert text != block
            await asyncio.to_thread(exec, compile(text, str(PAGE), "exec"), {})
            worker.cancel()
            server.should_exit = True
            await serving

    asyncio.run(scenario())
    assert re.search(expected, capsys.readouterr().out)
