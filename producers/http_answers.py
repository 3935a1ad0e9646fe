"""Answers of the door as HTTP: status, headers, body."""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from producers.core.answers import JSON_TYPE, PROBLEM_TYPE, Problem, http_problem, own_error
from producers.core.limit_headers import headers as limit_headers
from schemas.reasons import TABLE, Reason, Retry

_NOT_ALLOWED = 405


def json_answer(status: int, document: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON document, or one that is encoded already."""
    content = document if isinstance(document, bytes) else msgspec.json.encode(document)
    return Response(content, status, headers, JSON_TYPE)


def problem_answer(problem: Problem, *, closes: bool = False) -> Response:
    """A problem as an answer; `closes`: what is left of the body is not waited for."""
    headers = {"Connection": "close"} if closes else {}
    if problem.retry_after_s:
        headers["Retry-After"] = str(max(1, problem.retry_after_s))
    if problem.reason is Reason.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if TABLE[problem.reason].retry is Retry.NEVER:
        headers["X-Should-Retry"] = "false"
    headers |= limit_headers(problem.limits)
    return Response(problem.document(), problem.status, headers, PROBLEM_TYPE)


async def http_error(http: Request, error: Exception) -> Response:
    """No such path or method: a problem as well, but none of a request's."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}; the calls are {', '.join(http.app.state.calls)}"
    document = http_problem(error.status_code, error.detail, detail)
    headers = {"Allow": _allowed(http)} if error.status_code == _NOT_ALLOWED else error.headers
    return Response(msgspec.json.encode(document), error.status_code, headers, PROBLEM_TYPE)


def _allowed(http: Request) -> str:
    """Methods of all routes of a path, not of the first one alone."""
    methods: set[str] = set()
    for route in http.app.routes:
        if isinstance(route, Route) and route.matches(http.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


async def caller_gone(_: Request, __: Exception) -> Response:
    """The caller went away while it sent: nobody reads this, and nothing is wrong here."""
    return Response(status_code=400)


async def server_error(_: Request, error: Exception) -> Response:
    """A fault of ours, which the server logs: what a caller may do about it."""
    return Response(msgspec.json.encode(own_error(error)), 500, None, PROBLEM_TYPE)
