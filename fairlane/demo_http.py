"""Sends a scene's requests over HTTP, each at its own time, from a thread of its own.

Each tenant has connections of its own, as it would have: a burst of one doesn't stand in
the way of another before it has even been sent. A call without an answer is sent again
with the same Idempotency-Key, so that it counts once.
"""

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import httpx
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
        self._url = f"{url}/v1/requests"
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
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=CALL_S_MAX) as client:
            connections = [
                self._connection(client, todo)
                for todo in by_tenant.values()
                for _ in range(min(CONNECTIONS, len(todo)))
            ]
            await asyncio.gather(*connections)

    async def _connection(self, client: httpx.AsyncClient, todo: deque[Arrival]) -> None:
        """One connection of a tenant: takes its next request, waits for its time, sends it."""
        while todo and not self._stop.is_set():
            arrival = todo.popleft()
            while (left_s := arrival.at_ms / 1000 - (time.monotonic() - self._began)) > 0:
                if self._stop.is_set():
                    return
                await asyncio.sleep(min(left_s, _PAUSE_S))
            await self._send(client, arrival)

    async def _send(self, client: httpx.AsyncClient, arrival: Arrival) -> None:
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
                answer = await client.post(self._url, content=body, headers=headers)
            except httpx.HTTPError as error:
                detail = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code == _ACCEPTED:
                    self.ids.add(msgspec.json.decode(answer.content)["id"])
                    at_ms = int((time.monotonic() - self._began) * 1000)
                    self.events.append(Sent(at_ms, arrival.tenant))
                    return
                detail = answer.text
                if answer.status_code < _SERVER_FAULT:
                    break
            await asyncio.sleep(_PAUSE_S)
        self.events.append(Refused(arrival.tenant, detail))
