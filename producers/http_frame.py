"""What every answer has, whatever it answers: an x-request-id, a count, and never nothing.

An x-request-id that a caller sends is taken over if it is harmless, else one is made. An error
of ours that no answer was begun for is answered as a problem, and passed on to be logged.

Counted are calls by route and status: routes are the application's own, anything else is
`unknown`, so that nobody can make up names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec

from producers.core import ids
from producers.core.answers import PROBLEM_TYPE, own_error
from producers.ports import Meter, RandomBytes

CALL_HEADER = b"x-request-id"
_CALL_KEY = "fairlane.call"
UNKNOWN = "unknown"
_MS = 1_000

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Call(NamedTuple):
    """Name of one HTTP call; `is_given` by its caller."""

    id: str
    is_given: bool


class Frame:
    """An ASGI application around another."""

    def __init__(
        self, app: App, routes: Mapping[Any, str], meter: Meter, random_bytes: RandomBytes
    ) -> None:
        """`routes` names the endpoints of the application by what serves them."""
        self._app, self._routes, self._meter = app, routes, meter
        self._random_bytes = random_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope[_CALL_KEY] = self._call(scope["headers"])
        now = asyncio.get_running_loop().time
        begun_s, status = now(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                if not any(name == CALL_HEADER for name, _ in headers):
                    message["headers"] = [*headers, (CALL_HEADER, call.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except Exception as error:
            if not status:
                await _answer(framed, error)
            raise
        finally:
            route = self._routes.get(scope.get("endpoint"), UNKNOWN)
            self._meter.count("ingress_requests", route=route, status=str(status))
            self._meter.count("ingress_request_ms", int((now() - begun_s) * _MS), route=route)

    def _call(self, headers: list[tuple[bytes, bytes]]) -> Call:
        given = [value for name, value in headers if name == CALL_HEADER]
        text = given[0].decode("latin-1") if len(given) == 1 else ""
        if ids.is_call_id(text):
            return Call(text, is_given=True)
        return Call(self._random_bytes(ids.CALL_BYTES).hex(), is_given=False)


def call_of(scope: Mapping[str, Any]) -> Call:
    """The name of the call that is served."""
    call: Call = scope[_CALL_KEY]
    return call


async def _answer(send: Send, error: Exception) -> None:
    body = msgspec.json.encode(own_error(error))
    headers = [
        (b"content-type", PROBLEM_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
