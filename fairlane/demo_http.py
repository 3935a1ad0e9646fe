"""Sends a scene's requests over HTTP, each at its own time, from a thread of its own.

Each tenant has connections of its own, as it would have: a burst of one doesn't stand in
the way of another before it has even been sent. A call without an answer is sent again
with the same Idempotency-Key, so that it counts once.

HTTP is spoken by hand, one call after the other on a kept connection: on a small machine a
client library takes more of the processor than all services of the deployment together,
and the burst would wait in the demo instead of in Fairlane.
"""

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from simulation.world import Arrival

#: Connections of one tenant: enough for a thousand requests a second from this machine.
CONNECTIONS = 8
#: Calls of one request before it counts as refused.
CALLS_MAX = 5
CALL_S_MAX = 30.0
_PAUSE_S = 0.5
_ACCEPTED = 202
#: From here on the server could not; the caller's own mistakes are below.
_SERVER_FAULT = 500


class Sent(NamedTuple):
    """An accepted request: when the answer came, since the beginning."""

    at_ms: int
    tenant: str


class Refused(NamedTuple):
    """A request that was not let in, and what the answer said."""

    tenant: str
    detail: str


class Sender:
    """Sends in the background; `events` is what happened, taken by the one who draws."""

    def __init__(self, url: str, keys: dict[str, str], arrivals: Sequence[Arrival]) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self._keys = keys
        self._arrivals = arrivals
        self._name = secrets.token_hex(8)
        self._numbers = count()
        self.events: deque[Sent | Refused] = deque()
        self.ids: set[str] = set()
        self._stop = threading.Event()
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="demo-sender", daemon=True)

    def start(self) -> None:
        """Begin; the arrivals' times count from now."""
        self._began = time.monotonic()
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether every request was answered."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return when every request was answered."""
        self._thread.join()

    def stop(self) -> None:
        """Send nothing more; returns when the thread has ended."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(CALL_S_MAX)

    def _run(self) -> None:
        asyncio.run(self._send_all())

    async def _send_all(self) -> None:
        by_tenant: dict[str, deque[Arrival]] = {}
        for arrival in self._arrivals:
            by_tenant.setdefault(arrival.tenant, deque()).append(arrival)
        senders = [
            self._send_one_by_one(todo)
            for todo in by_tenant.values()
            for _ in range(min(CONNECTIONS, len(todo)))
        ]
        await asyncio.gather(*senders)

    async def _send_one_by_one(self, todo: deque[Arrival]) -> None:
        """Take a tenant's next request, wait for its time, send it; until none is left."""
        connection = Connection(*self._address)
        while todo and not self._stop.is_set():
            arrival = todo.popleft()
            while (left_s := arrival.at_ms / 1000 - (time.monotonic() - self._began)) > 0:
                if self._stop.is_set():
                    break
                await asyncio.sleep(min(left_s, _PAUSE_S))
            else:
                await self._send(connection, arrival)
        connection.close()

    async def _send(self, connection: "Connection", arrival: Arrival) -> None:
        fields: dict[str, object] = {
            "endpoint": arrival.endpoint,
            "tier": arrival.tier,
            "input": msgspec.Raw(arrival.body),
        }
        if arrival.output_tokens_max:
            fields["max_output_tokens"] = arrival.output_tokens_max
        body = msgspec.json.encode(fields)
        headers = {
            "Authorization": f"Bearer {self._keys[arrival.tenant]}",
            "Idempotency-Key": f"{self._name}-{next(self._numbers)}",
        }
        detail = ""
        for _ in range(CALLS_MAX):
            try:
                status, answer = await connection.post("/v1/requests", headers, body)
            except (OSError, EOFError, ValueError, IndexError) as error:
                connection.close()
                detail = f"{type(error).__name__}: {error}"
            else:
                if status == _ACCEPTED:
                    self.ids.add(msgspec.json.decode(answer)["id"])
                    at_ms = int((time.monotonic() - self._began) * 1000)
                    self.events.append(Sent(at_ms, arrival.tenant))
                    return
                detail = answer.decode(errors="replace")
                if status < _SERVER_FAULT:
                    break
            await asyncio.sleep(_PAUSE_S)
        self.events.append(Refused(arrival.tenant, detail))


class Connection:
    """A kept HTTP/1.1 connection to a server that says the length of its answers."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; connects first where it must.

        Raises OSError, EOFError, ValueError or IndexError when there is no answer, or none
        that can be read; then `close` before the next call.
        """
        async with asyncio.timeout(CALL_S_MAX):
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address)
            reader, writer = self._streams
            fields = {"Host": self._address[0], **headers, "Content-Length": str(len(body))}
            lines = [f"POST {path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items()), "", ""]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = head.split("\r\ncontent-length:", 1)[1].split("\r\n", 1)[0]
            return int(head.split(" ", 2)[1]), await reader.readexactly(int(length))

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
