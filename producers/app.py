"""The HTTP door: four calls and two probes, on Starlette.

    POST /v1/requests               -> 202 {"id", "state"}, Location
    POST /v1/requests:bulk          -> 200, a verdict for each line
    GET  /v1/requests/{id}?wait=30  -> 200 {"id", "state", ...}
    POST /v1/requests/{id}/cancel   -> 202 {"id", "state"}
    GET  /healthz, /readyz

Only HTTP is here: headers, sizes, status codes. What happens to a request is in `ingress`, to
lines of them in `bulk`; docs/api.md tells callers all of it.

Wiring: `build_app(ingress)` is an ASGI application; its lifespan starts and stops the
ingress, so a server must run with lifespan on. On SIGTERM call `ingress.drain()` (readyz
answers 503, long polls end), give the balancer a moment, then stop the server gracefully:
uvicorn finishes the calls under way and ends the lifespan, which flushes the producer.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from producers.bulk import BULK_BYTES_MAX, TOO_LARGE, Bulk, has_too_many_lines
from producers.core.answers import (
    AGAIN_S,
    JSON_TYPE,
    PROBLEM_TYPE,
    Problem,
    http_problem,
    own_error,
    status_document,
    unavailable,
)
from producers.core.lines import KEY_FIELD
from producers.hot import TRACE_CHARS_MAX, Shortcut, Submit
from producers.ingress import ROUTE, WAIT_S_MAX, Caller, Ingress
from producers.reading import BODY_S, CHUNK_S, NoRoomError, Reads, read_body
from schemas.reasons import TABLE, Reason, Retry

BULK_ROUTE = ROUTE + ":bulk"
NDJSON_TYPE = "application/x-ndjson"
#: A caller of bulk that takes none of its verdicts for so long is given up, with its place among
#: the calls under way. As long as callers of long polls wait: a busy one comes back by then.
SEND_S = 30.0


def build_app(ingress: Ingress) -> Starlette:
    """The ASGI application over an ingress; the lifespan starts and stops it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ingress.start()
        try:
            yield
        finally:
            await ingress.stop()

    door, submit = _Door(ingress), Submit(ingress)
    return Starlette(
        routes=[
            Route(ROUTE, submit, methods=["POST"]),
            Route(BULK_ROUTE, door.bulk, methods=["POST"]),
            Route(ROUTE + "/{id}", door.status, methods=["GET"]),
            Route(ROUTE + "/{id}/cancel", door.cancel, methods=["POST"]),
            Route("/healthz", door.healthz, methods=["GET"]),
            Route("/readyz", door.readyz, methods=["GET"]),
        ],
        middleware=[Middleware(Shortcut, submit=submit)],
        exception_handlers={
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _own_error,
        },
        lifespan=lifespan,
    )


class _Door:
    """The calls; each turns HTTP into a call of the ingress and its answer into HTTP."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress
        self._bulk, self._reads = Bulk(ingress), Reads()

    async def bulk(self, http: Request) -> Response:
        """POST /v1/requests:bulk."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return _problem(caller)
        length = _content_length(http)
        if length > BULK_BYTES_MAX:
            return _problem(self._bulk.refuse(caller, f"{TOO_LARGE}: this one has {length} bytes"))
        if "idempotency-key" in http.headers:
            detail = f"Idempotency-Key: of a bulk call each line has its own {KEY_FIELD!r}"
            return _problem(
                self._ingress.refuse(Reason.INVALID_REQUEST, detail, caller.tenant.name)
            )
        try:
            with self._reads.of(caller.tenant.name) as take:
                body, is_cut = await read_body(http.stream(), BULK_BYTES_MAX, take)
        except TimeoutError:
            return self._too_slow(caller)
        except NoRoomError as error:
            return _problem(unavailable(str(error)), closes=True)
        if has_too_many_lines(body):
            return _problem(self._bulk.refuse(caller))
        # Only now is the call under way: who sends slowly keeps nobody else from it.
        problem = self._bulk.enter(caller)
        if problem:
            return _problem(problem)
        verdicts = self._bulk.verdicts(caller, body, is_cut=is_cut, trace=_trace(http))
        return _Verdicts(verdicts, lambda: self._bulk.leave(caller))

    def _too_slow(self, caller: Caller) -> Response:
        detail = (
            f"no byte of the body for {CHUNK_S:g} s, or not all of it within {BODY_S:g} s; "
            "the connection is closed"
        )
        problem = self._ingress.refuse(Reason.TOO_SLOW, detail, caller.tenant.name)
        return _problem(problem._replace(retry_after_s=AGAIN_S), closes=True)

    async def status(self, http: Request) -> Response:
        """GET /v1/requests/{id}."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return _problem(caller)
        wait_s = _wait_s(http.query_params.get("wait", "0"))
        if wait_s is None:
            detail = f"wait: must be a number of seconds from 0 to {WAIT_S_MAX:g}"
            return _problem(Problem(Reason.INVALID_REQUEST, detail))
        request_id = http.path_params["id"]
        answer = await self._ingress.status(caller, request_id, wait_s)
        if isinstance(answer, Problem):
            return _problem(answer)
        return _json(200, status_document(request_id, answer.entry, answer.body))

    async def cancel(self, http: Request) -> Response:
        """POST /v1/requests/{id}/cancel."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return _problem(caller)
        request_id = http.path_params["id"]
        answer = await self._ingress.cancel(caller, request_id)
        if isinstance(answer, Problem):
            return _problem(answer)
        return _json(202, msgspec.json.encode({"id": request_id, "state": answer}))

    async def healthz(self, _: Request) -> Response:
        """The process is alive."""
        return _json(200, b'{"status":"ok"}')

    async def readyz(self, _: Request) -> Response:
        """The ingress takes requests; else 503 and why it does not."""
        why_not = self._ingress.why_not_ready()
        if why_not:
            return _json(503, msgspec.json.encode({"status": "not ready", "detail": why_not}))
        return _json(200, b'{"status":"ready"}')


class _Verdicts(StreamingResponse):
    """Verdicts as they come; whatever happens, the call is left in the end.

    Who takes none of them for too long has its connection closed by the server, as has
    everybody whose answer ends before its end.
    """

    def __init__(self, verdicts: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(verdicts, media_type=NDJSON_TYPE)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)

        try:
            with suppress(ClientDisconnect, TimeoutError):  # what was taken in stays so
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._leave()


def _content_length(http: Request) -> int:
    length = http.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _trace(http: Request) -> bytes | None:
    return http.headers.get("traceparent", "")[:TRACE_CHARS_MAX].encode() or None


def _wait_s(text: str) -> float | None:
    try:
        wait_s = float(text)
    except ValueError:
        return None
    return wait_s if math.isfinite(wait_s) and wait_s >= 0 else None


def _json(status: int, document: bytes) -> Response:
    return Response(document, status, None, JSON_TYPE)


def _problem(problem: Problem, *, closes: bool = False) -> Response:
    """A problem as an answer; `closes`: what is left of the body is not waited for."""
    headers = {"Connection": "close"} if closes else {}
    if problem.retry_after_s:
        headers["Retry-After"] = str(problem.retry_after_s)
    if problem.reason is Reason.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if TABLE[problem.reason].retry is Retry.NEVER:
        headers["X-Should-Retry"] = "false"
    return Response(problem.document(), problem.status, headers, PROBLEM_TYPE)


async def _http_error(_: Request, error: Exception) -> Response:
    """No such path or method: a problem as well, but none of a request's."""
    assert isinstance(error, HTTPException)
    calls = f"POST {ROUTE}, POST {BULK_ROUTE}, GET {ROUTE}/{{id}}, POST {ROUTE}/{{id}}/cancel"
    detail = f"{error.detail}; the calls are {calls}"
    document = http_problem(error.status_code, error.detail, detail)
    return Response(msgspec.json.encode(document), error.status_code, error.headers, PROBLEM_TYPE)


async def _gone(_: Request, __: Exception) -> Response:
    """The caller went away while it sent: nobody reads this, and nothing is wrong here."""
    return Response(status_code=400)


async def _own_error(_: Request, error: Exception) -> Response:
    """A fault of ours, which the server logs: what a caller may do about it."""
    return Response(msgspec.json.encode(own_error(error)), 500, None, PROBLEM_TYPE)
