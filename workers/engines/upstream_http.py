"""One call of a server, and what became of it, as a value: whose fault it was, what it used.

Details are read by tenants: none names the server's address or shows its key. What only the
operator of the worker may know goes to the log.

What belongs here: one try. What does not: how often, and when, it is tried again.
"""

import logging
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
    is_error,
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
#: Statuses that speak of the worker's key, or of what it may do.
UNKNOWN, FORBIDDEN = 401, 403
NOT_FOUND = 404
#: What servers answer to an input that they choke on, as llama.cpp does to one too long.
CHOKED = 500
_OK, _REDIRECT, _CLIENT_FAULT, _SERVER_FAULT = 200, 300, 400, 500

#: The caller's headers that travel on.
_TRAVELS = frozenset({"traceparent", "tracestate"})

log = logging.getLogger(__name__)


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


class Barred(NamedTuple):
    """The server is not the one that was meant, or lets this worker in no more.

    That is its operator's to mend. `detail` is for the log. `may_be_input`: some servers say
    the same of a request that they won't have, which shows when they answer others.
    """

    detail: str
    may_be_input: bool = False


class Broken(NamedTuple):
    """The try failed, another may not; `usage` is what came, `after_s` as in Busy.

    `is_input` says that the server is well and the input may be what it fails on.
    """

    detail: str
    usage: Usage = Usage()
    after_s: float | None = None
    is_input: bool = False


class Hopeless(NamedTuple):
    """The try failed, and so would every other: what was asked for is too much."""

    detail: str
    usage: Usage = Usage()


class Stopped(NamedTuple):
    """Nobody wants the answer any more; `usage` is what came until then."""

    usage: Usage


Try = Answered | Refused | Busy | Barred | Broken | Hopeless | Stopped


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
        place = self._base.partition("://")[2].partition("/")[0]
        hidden = {self._base: "[server]", place: "[server]", key: "[key]"}
        self._hidden = {text: name for text, name in hidden.items() if text}
        self._is_there = True
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
        """Call once; whatever goes wrong is a value, and no detail shows address or key."""
        said = self._call(call, request, cancelled)
        if isinstance(said, Refused | Barred | Broken | Hopeless):
            return said._replace(detail=self._without_secrets(said.detail))
        return said

    @property
    def address(self) -> str:
        """Where it is; for the log alone."""
        return self._base

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
            return _failed_within(error, arriving.usage())
        except AnswerError as error:
            return Broken(str(error), arriving.usage(), is_input=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, *CALL_ERRORS) as error:
            return self._unreached(error, arriving.usage())
        except Exception as error:
            log.exception("upstream: an answer of %s can't be taken", self._base)
            detail = f"the answer can't be taken: {type(error).__name__}"
            return Broken(detail, arriving.usage(), is_input=True)
        finally:
            self._transport.watch(None)

    def _unreached(self, error: Exception, usage: Usage) -> Broken:
        """A connection that failed; its text may hold the address, and goes to the log."""
        where = "connecting to" if isinstance(error, CONNECT_ERRORS) else "calling"
        if self._is_there:  # once, until it answers again
            self._is_there = False
            text = self._without_secrets(str(error))
            name = type(error).__name__
            log.warning("upstream: %s %s: %s: %s", where, self._base, name, text)
        return Broken(f"{where} the server: {type(error).__name__}", usage)

    def _without_secrets(self, text: str) -> str:
        for hidden, shown in self._hidden.items():
            text = text.replace(hidden, shown)
        return text

    def _exchange(
        self,
        call: Call,
        request: EngineRequest,
        arriving: "_Arriving",
        cancelled: Callable[[], bool],
    ) -> Try:
        response = self._transport.handle_request(self._request(call, request))
        self._is_there = True
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
            data = b"".join(_read(response, REFUSAL_BYTES_MAX))
            text = error_text(data)
        except TooLargeError:
            data, text = b"", f"a message of more than {REFUSAL_BYTES_MAX} bytes"
        if status == TOO_MANY:
            return Busy(after_s)
        if status in {UNKNOWN, FORBIDDEN} or (status == NOT_FOUND and not is_error(data)):
            return _barred(status, text)
        if _is_refusal(status):
            return Refused(f"{status}: {text}")
        if status < _CLIENT_FAULT:
            return Barred(f"{status}, to {response.headers.get('location', 'nowhere')}")
        return Broken(f"{status}: {text}", after_s=after_s, is_input=status == CHOKED)

    def _read_stream(
        self, response: httpx.Response, arriving: "_Arriving", cancelled: Callable[[], bool]
    ) -> Try:
        events = Events(ANSWER_BYTES_MAX)
        assembly = arriving.assembly = Assembly(
            arriving.call.route, ANSWER_BYTES_MAX, arriving.call.choices
        )
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


def _failed_within(error: EventError, usage: Usage) -> Try:
    """What a server means that says in its stream that it failed."""
    if error.code in {UNKNOWN, FORBIDDEN}:
        return _barred(error.code, str(error))
    if _is_refusal(error.code):
        return Refused(f"{error.code}: {error}")
    detail = f"the server failed in its stream: {error}"
    return Broken(detail, usage, is_input=error.code == CHOKED)


def _barred(status: int, text: str) -> Barred:
    return Barred(f"{status}: {text}", may_be_input=status != UNKNOWN)


def _is_refusal(status: int) -> bool:
    """Tell the statuses that speak of the request itself."""
    return _CLIENT_FAULT <= status < _SERVER_FAULT and status != TOO_MANY and status not in PASSING
