"""HTTP without a network: a client's request goes straight into an application of this process.

httpx has such a transport; it looks for optional libraries at each request, which costs more
than the request. This one knows asyncio alone, and answers that are whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx

_VERSION = {"version": "3.0"}
_Message = MutableMapping[str, Any]
#: An ASGI application: scope, receive, send.
App = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]


class InProcess(httpx.AsyncBaseTransport):
    """Calls an ASGI application; for the event loop that the application runs in."""

    def __init__(self, app: App) -> None:
        """Its lifespan is the caller's care."""
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Call it and gather its answer; what it raises after an answer is its own."""
        call = _Call(await request.aread())
        scope: _Message = {
            "type": "http",
            "asgi": _VERSION,
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": ("127.0.0.1", 0),
            "root_path": "",
        }
        try:
            await self._app(scope, call.receive, call.send)
        except Exception:
            if not call.is_ended:
                raise
        return httpx.Response(call.status, headers=call.headers, content=b"".join(call.parts))


class _Call:
    """One request as the application sees it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._ended = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []

    @property
    def is_ended(self) -> bool:
        """Whether the whole answer came."""
        return self._ended.is_set()

    async def receive(self) -> _Message:
        """The body, then nothing until the answer is there."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: _Message) -> None:
        """A piece of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
            return
        self.parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            self._ended.set()
