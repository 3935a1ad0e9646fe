"""HTTP connections of the ingress, with limits on what comes before a request is there.

The server hands a request on when its headers are complete; until then nothing of ours sees it.
So who sends headers without end, or never the last of them, is refused here, before anything is
parsed any further, and as a problem like everything else. And whatever is still sent when an
answer is over has to become a request in time; whoever takes no answer in is given up.
"""

import asyncio
import secrets
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from producers.core.answers import AGAIN_S, PROBLEM_TYPE, http_problem
from producers.core.ids import CALL_BYTES

#: A request's line and headers come within this: as patient as with a body that stops.
HEADERS_S = 10.0
#: An answer that nobody takes in is given up: as long as a caller of bulk has for a piece.
WRITE_S = 30.0
#: And have so many bytes at the most: ours take less than a thousand, cookies and traces more.
HEADER_BYTES_MAX = 64 * 1_024
#: Connections of one process: each long poll has one, and a file is left for everything else.
CONNECTIONS_MAX = 10_000
#: Bytes of a header besides its name and value: `: ` and the end of the line.
_BETWEEN = 4


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """As the server makes it."""
        super().__init__(*given, **named)
        self._is_in_headers = True
        self._has_begun = False
        self._bytes = self._known_bytes = 0
        self._refusal = HTTPStatus.BAD_REQUEST
        self._patience: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many connections already."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        self._unstick()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; what the parser has not finished as a header by now counts as such."""
        self._has_begun = False
        super().data_received(data)
        if self._is_in_headers:
            # The piece in which a request begins may be the end of another one's body.
            self._bytes += 1 if self._has_begun else len(data)
            if self._bytes > HEADER_BYTES_MAX:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        is_between = self.cycle is not None and self.cycle.response_complete
        if is_between and self._patience is None and not self.transport.is_closing():
            self._wait()  # the server's own timer ended with this piece

    def pause_writing(self) -> None:
        """The caller is slow to take an answer in."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._unstick()
        super().resume_writing()

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def on_message_begin(self) -> None:
        """Another request begins."""
        self._is_in_headers = self._has_begun = True
        self._bytes = self._known_bytes = 0
        if self._patience is None:
            self._wait()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the path. Raises ValueError, for the parser, if it is too long."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; raises ValueError, for the parser, if there are too many.

        What comes behind a body is none: it would pass for what a proxy has let through.
        """
        self._count(len(name) + len(value) + _BETWEEN)
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on."""
        self._is_in_headers = False
        self._wait_no_more()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._known_bytes += size
        if self._known_bytes > HEADER_BYTES_MAX:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the headers are too long")

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read; the server calls this."""
        self._refuse(self._refusal, msg)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(HEADERS_S, self._too_slow)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait()  # an answer is on its way: what comes behind it can wait for its end
        elif self._bytes and self._is_in_headers:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, detail: str = "") -> None:
        """Answer without a request, and close."""
        self._wait_no_more()
        if self.transport.is_closing():
            return
        problem = http_problem(status.value, status.phrase, detail or status.description)
        body = msgspec.json.encode(problem)
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"content-type: {PROBLEM_TYPE}",
            f"content-length: {len(body)}",
            f"x-request-id: {secrets.token_hex(CALL_BYTES)}",
            "connection: close",
        ]
        if status is HTTPStatus.SERVICE_UNAVAILABLE or status is HTTPStatus.REQUEST_TIMEOUT:
            head.append(f"retry-after: {AGAIN_S}")
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()
