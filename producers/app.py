"""The HTTP door: three calls and two probes, on Starlette.

    POST /v1/requests               -> 202 {"id", "state"}, Location
    GET  /v1/requests/{id}?wait=30  -> 200 {"id", "state", ...}
    POST /v1/requests/{id}/cancel   -> 202 {"id", "state"}
    GET  /healthz, /readyz

Only HTTP is here: headers, sizes, status codes. What happens to a request is in `ingress`.

Wiring: `build_app(ingress)` is an ASGI application; its lifespan starts and stops the
ingress, so a server must run with lifespan on. On SIGTERM call `ingress.drain()` (readyz
answers 503, long polls end), give the balancer a moment, then stop the server gracefully:
uvicorn finishes the calls under way and ends the lifespan, which flushes the producer.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from producers.core import ids
from producers.core.answers import (
    JSON_TYPE,
    PROBLEM_TYPE,
    TYPE_PREFIX,
    Problem,
    status_document,
)
from producers.core.submission import BODY_BYTES_MAX
from producers.ingress import ROUTE, WAIT_S_MAX, Accepted, Ingress
from schemas.reasons import TABLE, Reason, Retry

#: Longest traceparent that is passed on; the format's version 00 has 55 characters.
TRACE_CHARS_MAX = 128


def build_app(ingress: Ingress) -> Starlette:
    """The ASGI application over an ingress; the lifespan starts and stops it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ingress.start()
        try:
            yield
        finally:
            await ingress.stop()

    door = _Door(ingress)
    return Starlette(
        routes=[
            Route(ROUTE, door.submit, methods=["POST"]),
            Route(ROUTE + "/{id}", door.status, methods=["GET"]),
            Route(ROUTE + "/{id}/cancel", door.cancel, methods=["POST"]),
            Route("/healthz", door.healthz, methods=["GET"]),
            Route("/readyz", door.readyz, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _own_error},
        lifespan=lifespan,
    )


class _Door:
    """The calls; each turns HTTP into a call of the ingress and its answer into HTTP."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    async def submit(self, http: Request) -> Response:
        """POST /v1/requests."""
        too_large = f"the body may have up to {BODY_BYTES_MAX} bytes"
        length = http.headers.get("content-length", "")
        if length.isdecimal() and int(length) > BODY_BYTES_MAX:
            detail = f"{too_large}, this one has {length}"
            return _problem(self._ingress.refuse(Reason.BODY_TOO_LARGE, detail))
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return _problem(caller)
        body = await _body(http)
        if body is None:
            return _problem(
                self._ingress.refuse(Reason.BODY_TOO_LARGE, too_large, caller.tenant.name)
            )
        field = http.headers.get("idempotency-key")
        key = ids.idempotency_key(field) if field is not None else None
        if field is not None and key is None:
            detail = f"Idempotency-Key: must be 1..{ids.KEY_CHARS_MAX} visible ASCII characters"
            return _problem(
                self._ingress.refuse(Reason.INVALID_REQUEST, detail, caller.tenant.name)
            )
        trace = http.headers.get("traceparent", "")[:TRACE_CHARS_MAX].encode()
        answer = await self._ingress.submit(caller, body, key, trace or None)
        return _problem(answer) if isinstance(answer, Problem) else _accepted(answer)

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


async def _body(http: Request) -> bytes | None:
    """The body, read no further than the limit; None when it is longer."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in http.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _wait_s(text: str) -> float | None:
    try:
        wait_s = float(text)
    except ValueError:
        return None
    return wait_s if math.isfinite(wait_s) and wait_s >= 0 else None


def _json(status: int, document: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(document, status, headers, JSON_TYPE)


def _accepted(answer: Accepted) -> Response:
    document = msgspec.json.encode({"id": answer.id, "state": answer.state})
    headers = {"Location": f"{ROUTE}/{answer.id}", "Idempotency-Key": answer.key}
    return _json(202, document, headers)


def _problem(problem: Problem) -> Response:
    headers: dict[str, str] = {}
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
    calls = f"POST {ROUTE}, GET {ROUTE}/{{id}}, POST {ROUTE}/{{id}}/cancel"
    detail = f"{error.detail}; the calls are {calls}"
    document = _http_document(error.status_code, error.detail, detail)
    return Response(document, error.status_code, error.headers, PROBLEM_TYPE)


async def _own_error(_: Request, error: Exception) -> Response:
    """A fault of ours, which the server logs: what a caller may do about it."""
    detail = (
        f"the ingress failed with {type(error).__name__}; look the request up, or send it again "
        "with the same Idempotency-Key"
    )
    return Response(_http_document(500, "Internal Server Error", detail), 500, None, PROBLEM_TYPE)


def _http_document(status: int, title: str, detail: str) -> bytes:
    return msgspec.json.encode(
        {"type": TYPE_PREFIX + "http", "title": title, "status": status, "detail": detail}
    )
