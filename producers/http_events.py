"""A stream of events as an answer: it ends with its caller, and leaves nothing behind."""

import asyncio

from producers.core import sse
from producers.events import Stream
from producers.http_frame import Message, Receive, Send

#: Who takes nothing for so long is given up; its connection is closed.
SEND_S = 30.0

_HEADERS = (
    (b"content-type", sse.TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies pass events on as they come
)


class EventAnswer:
    """An ASGI application that sends one stream."""

    def __init__(self, events: Stream) -> None:
        """The stream is closed in the end, whatever happens."""
        self._events = events

    async def __call__(self, _: Message, receive: Receive, send: Send) -> None:
        """Send events until they, or their caller, are gone."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._events.aclose()
        error = None if sending.cancelled() else sending.exception()
        if error and not isinstance(error, TimeoutError | OSError):
            raise error

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
        await send(start)
        async for event in self._events:
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
