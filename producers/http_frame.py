"""What every answer has, whatever it answers: an x-request-id, a count, and never nothing.

An x-request-id that a caller sends is taken over if it is harmless, else one is made. An error
of ours that no answer was begun for is answered as a problem, and passed on to be logged.

Counted are calls by route and status: routes are the application's own, anything else is
`unknown`, so that nobody can make up names.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

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


class Call:
    """Name of one HTTP call; `is_given` by its caller, else made when it is needed."""

    __slots__ = ("_id", "_random_bytes", "is_given")

    def __init__(self, given: str, random_bytes: RandomBytes) -> None:
        """`given` "": the caller gave none that is taken over."""
        self._id, self._random_bytes, self.is_given = given, random_bytes, bool(given)

    @property
    def id(self) -> str:
        """The name; the same each time."""
        if not self._id:
            self._id = self._random_bytes(ids.CALL_BYTES).hex()
        return self._id


class Tally:
    """Calls that were answered since they were last told to the meter.

    Told four times a second and not one by one: a meter's counter costs more than a call's frame.
    """

    def __init__(self, meter: Meter) -> None:
        """Nothing was answered yet."""
        self._meter = meter
        self._calls: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}

    def count(self, route: str, status: int, seconds: float) -> None:
        """One call was answered."""
        self._calls[route, status] += 1
        self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def tell(self) -> None:
        """Tell the meter."""
        calls, self._calls = self._calls, Counter()
        for (route, status), number in calls.items():
            self._meter.count("ingress_requests", number, route=route, status=str(status))
        for route, seconds in self._seconds.items():
            whole_ms = int(seconds * _MS)
            self._seconds[route] = seconds - whole_ms / _MS
            self._meter.count("ingress_request_ms", whole_ms, route=route)


class Frame:
    """An ASGI application around another."""

    def __init__(
        self, app: App, routes: Mapping[Any, str], tally: Tally, random_bytes: RandomBytes
    ) -> None:
        """`routes` names the endpoints of the application by what serves them."""
        self._app, self._routes, self._tally = app, routes, tally
        self._random_bytes = random_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope[_CALL_KEY] = Call(_given(scope["headers"]), self._random_bytes)
        now = asyncio.get_running_loop().time
        begun_s, status = now(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                if all(name != CALL_HEADER for name, _ in headers):
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
            self._tally.count(route, status, now() - begun_s)


def _given(headers: list[tuple[bytes, bytes]]) -> str:
    """The one x-request-id of a caller, if it is harmless."""
    given = [value for name, value in headers if name == CALL_HEADER]
    text = given[0].decode("latin-1") if len(given) == 1 else ""
    return text if ids.is_call_id(text) else ""


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
