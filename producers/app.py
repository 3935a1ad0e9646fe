"""The HTTP door, on Starlette: see `routes` for the calls.

Only HTTP is here: headers, sizes, status codes. What happens to a request is in `ingress`, to
lines of them in `bulk`; docs/api.md and `producers.core.openapi` tell callers all of it.

Wiring: `build_app(ingress)` is an ASGI application; its lifespan starts and stops the
ingress, so a server must run with lifespan on. On SIGTERM call `ingress.drain()` (readyz
answers 503, long polls and streams of events end), give the balancer a moment, then stop the
server gracefully: uvicorn finishes the calls under way and ends the lifespan, which flushes
the producer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from producers.bulk import BULK_BYTES_MAX, TOO_LARGE, Bulk, has_too_many_lines
from producers.core.answers import AGAIN_S, Problem, unavailable
from producers.core.lines import KEY_FIELD
from producers.core.openapi import document
from producers.hot import LENGTH_DIGITS, TRACE_CHARS_MAX, Shortcut, Submit, too_slow
from producers.http_answers import (
    caller_gone,
    http_error,
    json_answer,
    problem_answer,
    server_error,
)
from producers.http_frame import Frame, Tally, call_of
from producers.http_looks import Looks
from producers.ingress import ROUTE, Ingress
from producers.reading import NoRoomError, Reads, read_body
from schemas.reasons import Reason

BULK_ROUTE = ROUTE + ":bulk"
NDJSON_TYPE = "application/x-ndjson"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: A caller of bulk that takes none of its verdicts for so long is given up, with its place among
#: the calls under way. As long as callers of long polls wait: a busy one comes back by then.
SEND_S = 30.0

Metrics = Callable[[], bytes]


def build_app(ingress: Ingress, metrics: Metrics = lambda: b"") -> Starlette:
    """The ASGI application over an ingress; the lifespan starts and stops it.

    `metrics` gives what the ingress's meter counted, as Prometheus reads it.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ingress.start()
        try:
            yield
        finally:
            await ingress.stop()

    submit, tally = Submit(ingress), Tally(ingress.meter)
    ingress.on_measure(tally.tell)
    served = routes(ingress, metrics, submit)
    names = {route.endpoint: route.path for route in served}
    app = Starlette(
        routes=served,
        middleware=[
            Middleware(Frame, routes=names, tally=tally, random_bytes=ingress.random_bytes),
            Middleware(Shortcut, submit=submit),
        ],
        exception_handlers={
            HTTPException: http_error,
            ClientDisconnect: caller_gone,
            Exception: server_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would name whatever host the caller wrote
    app.state.calls = [f"{method} {path}" for method, path in calls(served) if "/v1/" in path]
    return app


def routes(ingress: Ingress, metrics: Metrics, submit: Submit | None = None) -> list[Route]:
    """Every route there is."""
    door, looks, probes = _Door(ingress), Looks(ingress), _Probes(ingress, metrics)
    return [
        Route(ROUTE, submit or Submit(ingress), methods=["POST"]),
        Route(ROUTE, looks.list, methods=["GET"]),
        Route(BULK_ROUTE, door.bulk, methods=["POST"]),
        Route(ROUTE + "/{id}", looks.status, methods=["GET"]),
        Route(ROUTE + "/{id}/cancel", door.cancel, methods=["POST"]),
        Route(ROUTE + "/{id}/events", looks.events, methods=["GET"]),
        Route("/healthz", probes.healthz, methods=["GET"]),
        Route("/readyz", probes.readyz, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/openapi.json", probes.openapi, methods=["GET"]),
    ]


def calls(served: list[Route]) -> list[tuple[str, str]]:
    """Method and path of each route."""
    return [
        (method, route.path)
        for route in served
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]


class _Door:
    """The calls that change something; each turns HTTP into a call of the ingress and back."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress
        self._bulk, self._reads = Bulk(ingress), Reads()

    async def bulk(self, http: Request) -> Response:
        """POST /v1/requests:bulk."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return problem_answer(caller)
        length = _content_length(http)
        if length > BULK_BYTES_MAX:
            return problem_answer(
                self._bulk.refuse(caller, f"{TOO_LARGE}: this one has {length} bytes")
            )
        if "idempotency-key" in http.headers:
            detail = f"Idempotency-Key: of a bulk call each line has its own {KEY_FIELD!r}"
            return problem_answer(
                self._ingress.refuse(Reason.INVALID_REQUEST, detail, caller.tenant.name)
            )
        try:
            with self._reads.of(caller.tenant.name) as take:
                body, is_cut = await read_body(http.stream(), BULK_BYTES_MAX, take)
        except TimeoutError:
            return problem_answer(too_slow(self._ingress, caller), closes=True)
        except NoRoomError as error:
            return problem_answer(unavailable(str(error)), closes=True)
        if has_too_many_lines(body):
            return problem_answer(self._bulk.refuse(caller))
        # Only now is the call under way: who sends slowly keeps nobody else from it.
        problem = self._bulk.enter(caller)
        if problem:
            return problem_answer(problem)
        verdicts = self._bulk.verdicts(
            caller,
            body,
            is_cut=is_cut,
            trace=_trace(http),
            call=call_of(http.scope).id,
            authorization=http.headers.get("authorization", ""),
        )
        return _Verdicts(verdicts, lambda: self._bulk.leave(caller))

    async def cancel(self, http: Request) -> Response:
        """POST /v1/requests/{id}/cancel."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return problem_answer(caller)
        request_id = http.path_params["id"]
        answer = await self._ingress.cancel(caller, request_id)
        if isinstance(answer, Problem):
            return problem_answer(answer)
        return json_answer(202, {"id": request_id, "state": answer})


class _Probes:
    """What is asked without a key, by machines that watch."""

    def __init__(self, ingress: Ingress, metrics: Metrics) -> None:
        self._ingress, self._metrics = ingress, metrics
        self._document = document()

    async def healthz(self, _: Request) -> Response:
        """The process is alive."""
        return json_answer(200, {"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """The ingress takes requests; else 503 and why it does not."""
        why_not = self._ingress.why_not_ready()
        if why_not:
            answer = {"status": "not ready", "detail": why_not}
            return json_answer(503, answer, {"Retry-After": str(AGAIN_S)})
        return json_answer(200, {"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        """Counters and gauges of this process."""
        self._ingress.measure()
        return Response(self._metrics(), media_type=METRICS_TYPE)

    async def openapi(self, _: Request) -> Response:
        """This API, for programs."""
        return json_answer(200, self._document)


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
    return int(length[:LENGTH_DIGITS]) if length.isdecimal() else 0


def _trace(http: Request) -> bytes | None:
    return http.headers.get("traceparent", "")[:TRACE_CHARS_MAX].encode() or None
