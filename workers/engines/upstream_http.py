"""One call of a server, and what became of it, as a value: whose fault it was, what it used.

What belongs here: one try. What does not: how often, and when, it is tried again.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx

from schemas.log import RECORD_BYTES_MAX
from schemas.records import Usage
from workers.engine import EngineRequest
from workers.engines.upstream_answers import (
    AnswerError,
    answer_of,
    error_text,
    estimated,
    retry_after_s,
    tokens_in,
    usage_of,
)
from workers.engines.upstream_stream import Assembly, EventError, Events, TooLargeError
from workers.engines.upstream_transport import (
    CALL_ERRORS,
    CONNECT_ERRORS,
    StoppedError,
    TooLongError,
    Watch,
    WatchedTransport,
)
from workers.engines.upstream_wire import Call

#: An answer above this can't be stored: no record of the log holds it.
ANSWER_BYTES_MAX = RECORD_BYTES_MAX
#: One answer for several requests may be larger, but a slot's memory has an end.
MERGED_BYTES_MAX = 32 * RECORD_BYTES_MAX
#: A stream wraps each token into some 250 bytes: so much framing around the largest answer.
STREAM_BYTES_MAX = 128 * RECORD_BYTES_MAX
#: What is read of a refusal; its message is cut anyway.
REFUSAL_BYTES_MAX = 16_384
#: After `[DONE]` only the end of the answer is missing; without it the connection is given up.
DONE_S = 0.2

#: Statuses of 4xx that speak of the moment, not of the request: tried again.
PASSING = frozenset({408, 425})
TOO_MANY = 429
_OK, _REDIRECT, _CLIENT_FAULT, _SERVER_FAULT = 200, 300, 400, 500

#: The caller's headers that travel on.
_TRAVELS = frozenset({"traceparent", "tracestate"})


class Answered(NamedTuple):
    """A whole answer; `first_s` is when its first piece came, from the call on (0: unknown)."""

    output: bytes
    usage: Usage
    first_s: float = 0.0


class Refused(NamedTuple):
    """The server won't have this request; trying again is of no use."""

    detail: str


class Busy(NamedTuple):
    """The server has too much to do (429); `after_s` is what it asks for, None if nothing."""

    after_s: float | None


class Broken(NamedTuple):
    """The try failed, another may not; `usage` is what came, `after_s` as in Busy."""

    detail: str
    usage: Usage = Usage()
    after_s: float | None = None


class Hopeless(NamedTuple):
    """The try failed, and so would every other."""

    detail: str
    usage: Usage = Usage()


class Stopped(NamedTuple):
    """Nobody wants the answer any more; `usage` is what came until then."""

    usage: Usage


Try = Answered | Refused | Busy | Broken | Hopeless | Stopped


class Patience(NamedTuple):
    """Seconds: to connect, between two pieces of an answer, and for a whole call."""

    connect_s: float
    between_s: float
    whole_s: float


class Server:
    """A server's address and the pooled connections to it; used by all slots' threads.

    The transport is called without a client above it: redirects, a cookie jar that all tenants
    would share, and proxies of the environment are not wanted here.

    `key` is sent as a bearer token; `now_s` is the time of day, for dates in Retry-After.
    """

    def __init__(self, url: str, key: str, patience: Patience, now_s: Callable[[], float]) -> None:
        """Connect to nothing yet."""
        self._base = url.rstrip("/")
        self._key = key
        self._patience = patience
        self._now_s = now_s
        self._transport = WatchedTransport(is_tls=url.startswith("https:"))
        self._urls: dict[str, httpx.URL] = {}
        self._headers = [
            ("accept", "application/json, text/event-stream"),
            ("accept-encoding", "identity"),
            ("content-type", "application/json"),
            ("user-agent", "fairlane"),
        ]
        if key:
            self._headers.append(("authorization", f"Bearer {key}"))
        self._extensions = {
            "timeout": {
                "connect": patience.connect_s,
                "read": patience.between_s,
                "write": patience.between_s,
                "pool": None,
            }
        }

    def call(self, call: Call, request: EngineRequest, cancelled: Callable[[], bool]) -> Try:
        """Call once; whatever goes wrong is a value, and no detail shows the key."""
        said = self._call(call, request, cancelled)
        if self._key and isinstance(said, Refused | Broken | Hopeless):
            return said._replace(detail=said.detail.replace(self._key, "[key]"))
        return said

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    def _call(self, call: Call, request: EngineRequest, cancelled: Callable[[], bool]) -> Try:
        arriving = _Arriving(call, time.monotonic())
        self._transport.watch(Watch(cancelled, arriving.began_s + self._patience.whole_s))
        try:
            return self._exchange(call, request, arriving, cancelled)
        except StoppedError:
            return Stopped(arriving.usage())
        except TooLongError:
            detail = f"the call took longer than {self._patience.whole_s:g} s"
            return Broken(detail, arriving.usage())
        except TooLargeError as error:
            return Hopeless(f"the server sent {error}; ask for less output", arriving.usage())
        except EventError as error:
            if _is_refusal(error.code):
                return Refused(f"{error.code}: {error}")
            return Broken(f"the server failed in its stream: {error}", arriving.usage())
        except AnswerError as error:
            return Broken(str(error), arriving.usage())
        except (httpx.HTTPError, httpx.InvalidURL, OSError, *CALL_ERRORS) as error:
            where = "connecting" if isinstance(error, CONNECT_ERRORS) else "calling"
            name = type(error).__name__
            return Broken(f"{where} {self._base}: {name}: {error}", arriving.usage())
        finally:
            self._transport.watch(None)

    def _exchange(
        self,
        call: Call,
        request: EngineRequest,
        arriving: "_Arriving",
        cancelled: Callable[[], bool],
    ) -> Try:
        response = self._transport.handle_request(self._request(call, request))
        try:
            if response.status_code != _OK:
                return self._unanswered(response)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                return self._read_stream(response, arriving, cancelled)
            bytes_max = min(call.requests * ANSWER_BYTES_MAX, MERGED_BYTES_MAX)
            output = b"".join(_read(response, bytes_max, arriving))
            arriving.size = 0  # what is whole and still no answer is no model's work
            usage = usage_of(answer_of(output, call.route))
            return Answered(output, usage or estimated(call.body, output, call.route))
        finally:
            response.close()

    def _request(self, call: Call, request: EngineRequest) -> httpx.Request:
        url = self._urls.get(call.route)
        if url is None:
            url = self._urls[call.route] = httpx.URL(f"{self._base}{call.route}")
        travels = [(name, value) for name, value in request.headers if name in _TRAVELS]
        headers = [*self._headers]
        for name, value in (("x-request-id", request.id.encode()), *travels):
            text = value.decode("latin-1")
            if text.isascii() and text.isprintable() and text == text.strip():
                headers.append((name, text))
        return httpx.Request(
            "POST", url, headers=headers, content=call.body, extensions=self._extensions
        )

    def _unanswered(self, response: httpx.Response) -> Try:
        """What a status other than 200 means."""
        status = response.status_code
        said = response.headers.get("retry-after")
        after_s = None if said is None else retry_after_s(said, self._now_s())
        try:
            text = error_text(b"".join(_read(response, REFUSAL_BYTES_MAX)))
        except TooLargeError:
            text = f"a message of more than {REFUSAL_BYTES_MAX} bytes"
        if status == TOO_MANY:
            return Busy(after_s)
        if _is_refusal(status):
            return Refused(f"{status}: {text}")
        if status < _CLIENT_FAULT:
            place = response.headers.get("location", "nowhere")
            return Hopeless(f"the server answered {status} (to {place}); give the right URL")
        return Broken(f"{status}: {text}", after_s=after_s)

    def _read_stream(
        self, response: httpx.Response, arriving: "_Arriving", cancelled: Callable[[], bool]
    ) -> Try:
        events = Events(ANSWER_BYTES_MAX)
        assembly = arriving.assembly = Assembly(arriving.call.route, ANSWER_BYTES_MAX)
        size = 0
        try:
            for data in response.iter_raw():
                size += len(data)
                if size > STREAM_BYTES_MAX:
                    raise TooLargeError(f"a stream of more than {STREAM_BYTES_MAX} bytes")
                for event in events.feed(data):
                    if assembly.take(event) and not arriving.first_s:
                        arriving.first_s = time.monotonic() - arriving.began_s
                if assembly.is_done:
                    self._transport.watch(Watch(cancelled, time.monotonic() + DONE_S))
        except (*CALL_ERRORS, TooLongError):
            if not assembly.is_complete:
                raise
        if not assembly.is_complete:
            after = f"{assembly.pieces} pieces"
            return Broken(f"the stream ended after {after}, before its end", arriving.usage())
        return Answered(assembly.answer(), arriving.usage(), arriving.first_s)


class _Arriving:
    """What has come of an answer so far."""

    def __init__(self, call: Call, began_s: float) -> None:
        self.call = call
        self.began_s = began_s
        self.first_s = 0.0
        self.size = 0
        self.assembly: Assembly | None = None

    def usage(self) -> Usage:
        """The server's own figures, or what can be counted; nothing where nothing came."""
        said = usage_of(self.assembly.head) if self.assembly else None
        if said is not None:
            return said
        pieces = self.assembly.pieces if self.assembly else tokens_in(self.size)
        read = tokens_in(len(self.call.body)) if pieces else 0
        return Usage(input_tokens=read, output_tokens=pieces)


def _read(
    response: httpx.Response, bytes_max: int, arriving: _Arriving | None = None
) -> Iterator[bytes]:
    """Read an answer to its end; `arriving` counts along. Raises TooLargeError."""
    size = 0
    for part in response.iter_raw():
        size += len(part)
        if arriving is not None:
            arriving.size = size
        if size > bytes_max:
            raise TooLargeError(f"an answer of more than {bytes_max} bytes")
        yield part


def _is_refusal(status: int) -> bool:
    """Tell the statuses that speak of the request itself."""
    return _CLIENT_FAULT <= status < _SERVER_FAULT and status != TOO_MANY and status not in PASSING
