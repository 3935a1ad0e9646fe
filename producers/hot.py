"""POST /v1/requests without a framework around it: the one call that comes thousands of times.

An application of its own for this route, on bare ASGI. `Shortcut` hands it the calls that are
meant for it before anything looks for a route; all others go the usual way. Starlette takes as
long for a call as authentication, reading, charging and publishing together.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from producers.core import ids
from producers.core.answers import AGAIN_S, JSON_TYPE, Problem
from producers.core.limit_headers import headers as limit_headers
from producers.core.submission import BODY_BYTES_MAX
from producers.http_answers import problem_answer
from producers.http_frame import CALL_HEADER, Call, call_of
from producers.ingress import ROUTE, Caller, Ingress
from producers.intake import Accepted
from producers.reading import BODY_S, CHUNK_S, read_body
from schemas.reasons import Reason

#: Longest traceparent that is passed on; the format's version 00 has 55 characters.
TRACE_CHARS_MAX = 128
#: Digits of a Content-Length that are read: what has more of them is too large by far.
LENGTH_DIGITS = 18

_TOO_LARGE = f"the body may have up to {BODY_BYTES_MAX} bytes"
_JSON = (b"content-type", JSON_TYPE.encode())

_WANTED = frozenset((b"authorization", b"content-length", b"idempotency-key", b"traceparent"))

#: Names and values of an answer's headers.
Fields = list[tuple[bytes, bytes]]


class _Heard(NamedTuple):
    """What a call's headers say; of a header that comes twice the first one counts."""

    authorization: str = ""
    length: int = 0
    key: str | None = None
    trace: bytes | None = None


class Submit:
    """The ASGI application of POST /v1/requests."""

    def __init__(self, ingress: Ingress) -> None:
        """Hand in where requests go."""
        self._ingress = ingress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; one whose caller is gone has no answer."""
        call = call_of(scope)
        try:
            answer = await self._answer(_heard(scope["headers"]), receive, call)
        except ClientDisconnect:
            return
        if isinstance(answer, Accepted):
            await _send_accepted(send, answer, call)
        else:
            closes = answer.reason is Reason.TOO_SLOW
            await problem_answer(answer, closes=closes)(scope, receive, send)

    async def _answer(self, heard: _Heard, receive: Receive, call: Call) -> Accepted | Problem:
        ingress = self._ingress
        if heard.length > BODY_BYTES_MAX:
            detail = f"{_TOO_LARGE}, this one has {heard.length}"
            return ingress.refuse(Reason.BODY_TOO_LARGE, detail)
        caller = ingress.authenticate(heard.authorization)
        if isinstance(caller, Problem):
            return caller
        message = _at_once(receive)
        if message is not None and not message.get("more_body") and "body" in message:
            body, is_cut = message["body"], len(message["body"]) > BODY_BYTES_MAX
        else:
            try:
                body, is_cut = await read_body(_chunks(message, receive), BODY_BYTES_MAX)
            except TimeoutError:
                return too_slow(ingress, caller)
        if is_cut:
            return ingress.refuse(Reason.BODY_TOO_LARGE, _TOO_LARGE, caller.tenant.name)
        key = ids.idempotency_key(heard.key) if heard.key is not None else None
        if key is None and heard.key is not None:
            detail = f"Idempotency-Key: must be 1..{ids.KEY_CHARS_MAX} visible ASCII characters"
            return ingress.refuse(Reason.INVALID_REQUEST, detail, caller.tenant.name)
        named = call.id if call.is_given else ""
        return await ingress.submit(caller, body, key, heard.trace, named)


class Shortcut:
    """Hands POST /v1/requests straight to its application, everything else to the next one."""

    def __init__(self, app: ASGIApp, submit: ASGIApp) -> None:
        """Hand in both."""
        self._app, self._submit = app, submit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Choose, and call."""
        is_submit = scope["type"] == "http" and scope["path"] == ROUTE
        if is_submit and scope["method"] == "POST":
            scope["endpoint"] = self._submit  # as the router says, for whoever counts calls
            await self._submit(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _heard(headers: Fields) -> _Heard:
    said: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _WANTED and name not in said:
            said[name] = value
    length, key = said.get(b"content-length", b""), said.get(b"idempotency-key")
    return _Heard(
        said.get(b"authorization", b"").decode("latin-1"),
        int(length[:LENGTH_DIGITS]) if length.isdigit() else 0,
        key.decode("latin-1") if key is not None else None,
        said.get(b"traceparent", b"")[:TRACE_CHARS_MAX] or None,
    )


def _at_once(receive: Receive) -> Message | None:
    """The first message if it is there already, as it is for bodies that fit into a packet.

    Then nobody has to watch how long it takes. Otherwise it is asked for again.
    """
    asking = receive()
    try:
        asking.send(None)  # type: ignore[attr-defined]  # a coroutine, of every server
    except StopIteration as answer:
        message: Message = answer.value
        return message
    asking.close()  # type: ignore[attr-defined]
    return None


async def _chunks(message: Message | None, receive: Receive) -> AsyncIterator[bytes]:
    """The body's pieces, the first one perhaps there already; raises ClientDisconnect."""
    while True:
        message = message or await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
        message = None


def too_slow(ingress: Ingress, caller: Caller) -> Problem:
    """A body that did not come in time; its connection is to be closed."""
    detail = (
        f"no byte of the body for {CHUNK_S:g} s, or not all of it within {BODY_S:g} s; "
        "the connection is closed"
    )
    problem = ingress.refuse(Reason.TOO_SLOW, detail, caller.tenant.name)
    return problem._replace(retry_after_s=AGAIN_S)


async def _send_accepted(send: Send, answer: Accepted, call: Call) -> None:
    """202. Without an x-request-id of the caller's, the request's id is it: one name less."""
    request_id = answer.id.encode()
    body = b'{"id":"%b","state":"%b"}' % (request_id, answer.state.encode())
    headers = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (b"location", b"%b/%b" % (ROUTE.encode(), request_id)),
        (b"idempotency-key", answer.key.encode()),
    ]
    if not call.is_given:
        headers.append((CALL_HEADER, request_id))
    for name, value in limit_headers(answer.limits).items():
        headers.append((name.lower().encode(), value.encode()))
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": body})
