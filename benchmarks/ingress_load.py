"""The callers of the ingress benchmark: one process, connections kept alive, no pipelining.

Two ways of calling. At a pace each call has a time at which it is due, whatever became of the
others, and its latency counts from then: an ingress that falls behind can't hide it. As fast as
it goes, each connection calls again as soon as it is answered (`wrk` does the same for less of
the machine, and is used where it is installed).
"""

import argparse
import asyncio
import json
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.ingress_calls import calls

#: How long calls that are due may go unanswered after the last one.
LATE_S = 10.0


class Caller(asyncio.Protocol):
    """One connection: a call at a time."""

    def __init__(self, load: "Load", call: bytes) -> None:
        self._load, self._call = load, call
        self._answer = bytearray()
        self._due_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def send(self, due_s: float) -> None:
        """Make the call that was due at a time of the monotonic clock."""
        assert self._transport is not None
        self._due_s = due_s
        self._transport.write(self._call)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._answer.lower().find(b"content-length:", 0, head)
        length = int(self._answer[at + 15 : self._answer.find(b"\r", at)])
        if len(self._answer) < head + 4 + length:
            return
        status = int(self._answer[9:12])
        self._answer.clear()
        self._load.answered(self, status, self._due_s)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._load.is_over:
            raise RuntimeError(f"the ingress closed a connection: {error!r}")


class Load:
    """All callers; what they were answered, and after how long."""

    def __init__(self, rate: int, seconds: float) -> None:
        self._rate, self._seconds = rate, seconds
        self._free: deque[Caller] = deque()
        self._due: deque[float] = deque()
        self._all_free = asyncio.Event()
        self._connections = 0
        self._stop_s = 0.0
        self.is_over = False
        self.statuses: Counter[int] = Counter()
        self.latencies_s: list[float] = []

    def answered(self, caller: Caller, status: int, due_s: float) -> None:
        now_s = time.perf_counter()
        self.statuses[status] += 1
        self.latencies_s.append(now_s - due_s)
        if self._due:
            caller.send(self._due.popleft())
        elif not self._rate and now_s < self._stop_s:
            caller.send(now_s)
        else:
            self._free.append(caller)
            if now_s >= self._stop_s:
                self._look()

    def _look(self) -> None:
        if len(self._free) == self._connections:
            self._all_free.set()

    async def run(self, port: int, connections: int, to_send: list[bytes]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        self._connections = connections
        callers = [Caller(self, to_send[n % len(to_send)]) for n in range(connections)]
        for caller in callers:
            await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", port)  # type: ignore[misc]
        started_s = time.perf_counter()
        self._stop_s = started_s + self._seconds
        self._free.extend(callers)
        if self._rate:
            await self._pace(started_s)
            self._stop_s = 0.0
            self._look()
        else:
            while self._free:
                self._free.popleft().send(time.perf_counter())
        async with asyncio.timeout(self._seconds + LATE_S):
            await self._all_free.wait()
        self.is_over = True
        return self._told(time.perf_counter() - started_s)

    async def _pace(self, started_s: float) -> None:
        """Make every call that is due, the last one when the time is over."""
        made, count = 0, int(self._rate * self._seconds)
        while made < count:
            due = min(count, int((time.perf_counter() - started_s) * self._rate) + 1)
            for number in range(made, due):
                due_s = started_s + number / self._rate
                if self._free:
                    self._free.popleft().send(due_s)
                else:
                    self._due.append(due_s)
            made = due
            await asyncio.sleep(max(0.0, started_s + made / self._rate - time.perf_counter()))

    def _told(self, seconds: float) -> dict[str, Any]:
        ordered = sorted(self.latencies_s)
        count = len(ordered)
        return {
            "requests_per_s": round(count / seconds, 1),
            "answers": {str(status): n for status, n in self.statuses.items()},
            "p50_ms": round(ordered[count // 2] * 1000, 2),
            "p99_ms": round(ordered[count * 99 // 100] * 1000, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--keys", type=Path, required=True, help="API keys, one a line")
    parser.add_argument("--rate", type=int, default=0, help="calls a second; 0: as fast as it goes")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    given = parser.parse_args()
    to_send = calls(given.keys.read_text().split())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = Load(given.rate, given.seconds)
        print(json.dumps(runner.run(load.run(given.port, given.connections, to_send))))


if __name__ == "__main__":
    main()
