"""The engine `upstream` before a local server, under time that stands unless it is waited for."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.openai_server import OpenAiServer
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.upstream import Pace, UpstreamEngine, UpstreamSettings

#: A server on this machine answers sooner, however busy the machine is.
PATIENCE_S = 30.0


class WaitedTime:
    """A clock that only the engine's pauses move; remembers them."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.began_ms = now_ms
        self.waited_s = 0.0
        self.on_wait: Callable[[], object] = lambda: None

    def now_ms(self) -> int:
        return self.began_ms + round(self.waited_s * 1000)

    def monotonic(self) -> float:
        return self.waited_s

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds
        self.on_wait()


class Upstream:
    """A server, an engine before it, and what a slot's thread would call."""

    def __init__(self, server: OpenAiServer, engine: UpstreamEngine, clock: WaitedTime) -> None:
        self.server, self.engine, self.clock = server, engine, clock
        self._number = 0

    def request(self, body: object, deadline_ms: int = 0) -> EngineRequest:
        self._number += 1
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
        name = f"id-{self._number}"
        return EngineRequest(
            self._number, name, "acme", "chat", data, 0, deadline_ms, 0, (*headers, ("x", b"no"))
        )

    def run(
        self,
        body: object,
        deadline_ms: int = 0,
        cancelled: Callable[[int], bool] = lambda _: False,
    ) -> EngineOutcome:
        (outcome,) = self.engine.run(EngineBatch(1, (self.request(body, deadline_ms),)), cancelled)
        return outcome

    def run_all(self, *bodies: object) -> list[EngineOutcome]:
        requests = tuple(self.request(body) for body in bodies)
        return list(self.engine.run(EngineBatch(1, requests), lambda _: False))

    @property
    def acts(self) -> list[str]:
        return [seen.act for seen in self.server.seen]


@contextmanager
def upstream(*, key: str = "", **settings: Any) -> Iterator[Upstream]:
    """A server and an engine before it; pauses cost no time."""
    clock = WaitedTime()
    with OpenAiServer() as server:
        patience = {"between_s": PATIENCE_S, "whole_s": PATIENCE_S}
        given = {"url": server.url, "model": "m", **patience, **settings}
        pace = Pace(clock.monotonic, clock.wait, lambda: 0.0)
        engine = UpstreamEngine(UpstreamSettings(**given), clock, key, pace)
        yield Upstream(server, engine, clock)
        engine.close()


def chat(text: str, **members: Any) -> dict[str, Any]:
    """Body of a chat."""
    return {"messages": [{"role": "user", "content": text}], **members}


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.005)
