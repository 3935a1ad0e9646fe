"""The events of one request: how it stands now, and its end, with signs of life in between.

What is sent is an event at once: `waiting`, then the terminal one, named after the state in
which it ended, after which the stream is over. Somebody who comes back gets the present state
again, and nobody the end of a request that they have already. A stream that ends before the
request does (this ingress stops, the output can't be read now, the key was revoked) is to be
opened again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec

from producers.core import sse
from producers.core.answers import Problem, state, status_document, summary, unavailable
from producers.ingress import Caller, Ingress
from schemas.front import Entry, RequestName

#: Between two signs of life: below the idle time-outs that proxies commonly have (30 to 60 s).
HEARTBEAT_S = 15.0

Stream = AsyncGenerator[bytes, None]


class Events:
    """Streams of events of one ingress."""

    def __init__(self, ingress: Ingress) -> None:
        """Nothing is followed."""
        self._ingress = ingress

    async def open(
        self, caller: Caller, authorization: str, request_id: str, last_event_id: str
    ) -> Stream | Problem | None:
        """The events of a request; None for who has its end already."""
        name = RequestName(caller.tenant.name, request_id)
        entry = await self._ingress.find(name)
        if isinstance(entry, Problem):
            return entry
        if entry.terminal:
            if last_event_id == sse.last_id(request_id):
                return None
        elif self._ingress.room.is_closed(name.tenant):
            return unavailable("too many wait here already, or the ingress stops; come back")
        return self._stream(name, entry, authorization)

    async def _stream(self, name: RequestName, entry: Entry, authorization: str) -> Stream:
        if not entry.terminal:
            yield sse.event(state(entry), msgspec.json.encode(summary(name.id, entry)))
            waiting = asyncio.ensure_future(self._ingress.room.wait(name, None))
            try:
                while not (await asyncio.wait((waiting,), timeout=HEARTBEAT_S))[0]:
                    if self._is_revoked(authorization):
                        return
                    yield sse.COMMENT
            finally:
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    await waiting
            ended = waiting.result()
            if ended is None or self._is_revoked(authorization):
                return
            entry = ended
        status = await self._ingress.with_body(entry)
        if not isinstance(status, Problem):
            document = status_document(name.id, entry, status.body)
            yield sse.event(state(entry), document, sse.last_id(name.id))

    def _is_revoked(self, authorization: str) -> bool:
        return isinstance(self._ingress.authenticate(authorization), Problem)
