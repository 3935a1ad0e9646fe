"""The calls that look: one request, a list of them, the events of one."""

import math

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from producers.core.answers import Problem, of_faults, status_document, summary
from producers.core.listing import Page, cursor, read_query
from producers.core.sse import TYPE
from producers.core.submission import Faults
from producers.events import Events
from producers.http_answers import json_answer, problem_answer
from producers.http_events import EventAnswer
from producers.ingress import WAIT_S_MAX, Ingress
from schemas.reasons import Reason


class Looks:
    """Each turns HTTP into a call of the ingress and its answer into HTTP."""

    def __init__(self, ingress: Ingress) -> None:
        """Nobody looks yet."""
        self._ingress, self._events = ingress, Events(ingress)

    async def status(self, http: Request) -> Response:
        """GET /v1/requests/{id}."""
        authorization = http.headers.get("authorization", "")
        caller = self._ingress.authenticate(authorization)
        if isinstance(caller, Problem):
            return problem_answer(caller)
        wait_s = _wait_s(http.query_params.get("wait", "0"))
        if wait_s is None:
            detail = f"wait: must be a number of seconds from 0 to {WAIT_S_MAX:g}"
            return problem_answer(Problem(Reason.INVALID_REQUEST, detail))
        request_id = http.path_params["id"]
        answer = await self._ingress.status(caller, request_id, wait_s)
        if wait_s:  # the key may have been revoked meanwhile
            still = self._ingress.authenticate(authorization)
            answer = still if isinstance(still, Problem) else answer
        if isinstance(answer, Problem):
            return problem_answer(answer)
        return json_answer(200, status_document(request_id, answer.entry, answer.body))

    async def list(self, http: Request) -> Response:
        """GET /v1/requests."""
        caller = self._ingress.authenticate(http.headers.get("authorization", ""))
        if isinstance(caller, Problem):
            return problem_answer(caller)
        query = read_query(http.query_params.multi_items())
        if isinstance(query, Faults):
            return problem_answer(of_faults(query.faults, query.reason))
        page = await self._ingress.page(caller, query)
        if isinstance(page, Problem):
            return problem_answer(page)
        return json_answer(200, _document(page))

    async def events(self, http: Request) -> ASGIApp:
        """GET /v1/requests/{id}/events."""
        authorization = http.headers.get("authorization", "")
        caller = self._ingress.authenticate(authorization)
        if isinstance(caller, Problem):
            return problem_answer(caller)
        last = http.headers.get("last-event-id", "")
        opened = await self._events.open(caller, authorization, http.path_params["id"], last)
        if opened is None:
            return Response(status_code=204)
        if isinstance(opened, Problem):
            return problem_answer(opened)
        if http.method == "HEAD":  # what a GET would have, at once and without its events
            await opened.aclose()
            return Response(media_type=TYPE)
        return EventAnswer(opened)


def _document(page: Page) -> dict[str, object]:
    return {
        "data": [summary(request_id, entry) for request_id, entry in page.entries],
        "next_cursor": cursor(page.after) if page.after else None,
    }


def _wait_s(text: str) -> float | None:
    try:
        wait_s = float(text)
    except ValueError:
        return None
    return wait_s if math.isfinite(wait_s) and wait_s >= 0 else None
