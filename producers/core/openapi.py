"""This API as an OpenAPI 3.1 document: what may be sent, and every answer there is.

Shapes are in `openapi_shapes`; here are the calls. Statuses come with the reasons of the one
table that have them (`schemas.reasons`). Tests hold every answer of the door to it.
"""

from typing import Any

from producers.core import ids, openapi_shapes
from producers.core.answers import JSON_TYPE, PROBLEM_TYPE
from producers.core.listing import FILTER_CHARS_MAX, LIMIT_DEFAULT, LIMIT_MAX, STATES
from producers.core.sse import TYPE as EVENTS_TYPE
from schemas.front import MS_MAX
from schemas.reasons import TABLE

Document = dict[str, Any]

NDJSON_TYPE = "application/x-ndjson"
#: Statuses that a call of any tenant may have, besides its own.
_ANY = (401, 403, 500, 503)
_NO_CONTENT = 204
_COME_BACK = {408, 409, 429, 503}


def document(version: str = "1") -> Document:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlane",
            "version": version,
            "description": "Share pools of GPUs fairly between tenants. Every refusal names "
            "its reason and what to do about it.",
        },
        "security": [{"key": []}],
        "paths": {
            ids.ROUTE: {"post": _submit(), "get": _list()},
            f"{ids.ROUTE}:bulk": {"post": _bulk()},
            f"{ids.ROUTE}/{{id}}": {"get": _status()},
            f"{ids.ROUTE}/{{id}}/cancel": {"post": _cancel()},
            f"{ids.ROUTE}/{{id}}/events": {"get": _events()},
            "/healthz": {"get": _probe("healthz", "The process is alive", 200)},
            "/readyz": {"get": _probe("readyz", "It takes requests", 200, 503)},
            "/metrics": {"get": _open_call("metrics", "Counters, for Prometheus", "text/plain")},
            "/openapi.json": {"get": _open_call("openapi", "This document", JSON_TYPE)},
        },
        "components": {
            "schemas": openapi_shapes.schemas(),
            "headers": openapi_shapes.headers(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `fairlane keys create`; it belongs to one tenant.",
                }
            },
        },
    }


# --- calls


def _submit() -> Document:
    content = {JSON_TYPE: {"schema": _ref("Submission")}}
    taken = _answer("It is in the log.", JSON_TYPE, "Accepted")
    names = ("Location", "Idempotency-Key", *openapi_shapes.LIMIT_HEADERS)
    taken["headers"] |= {name: _header(name) for name in names}
    taken["links"] = {name: _link(name) for name in ("status", "events", "cancel")}
    return {
        "operationId": "submit",
        "summary": "Submit a request",
        "parameters": [_call_header(), _key_header(), _trace_header()],
        "requestBody": {"required": True, "content": content},
        "responses": {"202": taken} | _problems(400, 404, 408, 409, 413, 422, 429, *_ANY),
    }


def _bulk() -> Document:
    lines = {"type": "string", "description": "A Submission a line, with `idempotency_key`."}
    verdicts = _answer("A verdict for each line.", NDJSON_TYPE, "Verdicts")
    return {
        "operationId": "submit_bulk",
        "summary": "Submit many requests",
        "parameters": [_call_header(), _trace_header()],
        "requestBody": {"required": False, "content": {NDJSON_TYPE: {"schema": lines}}},
        "responses": {"200": verdicts} | _problems(400, 408, 413, *_ANY),
    }


def _list() -> Document:
    text = {"type": "string", "minLength": 1, "maxLength": FILTER_CHARS_MAX}
    time = {"type": "integer", "minimum": 0, "maximum": MS_MAX}
    limit = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
    parameters = [
        _query("limit", limit, "Requests of a page, at the most."),
        _query("cursor", {"type": "string"}, "`next_cursor` of the page before."),
        _query("state", {"enum": list(STATES)}, "Only those in this state."),
        _query("endpoint", text, "Only those of this endpoint."),
        _query("tier", text, "Only those of this tier."),
        _query("since_ms", time, "Accepted then or later."),
        _query("until_ms", time, "Accepted then or earlier."),
        _query("x_request_id", openapi_shapes.CALL_ID, "Of the call with this x-request-id."),
        _query("idempotency_key", openapi_shapes.KEY, "The one of this Idempotency-Key."),
        _call_header(),
    ]
    return {
        "operationId": "list",
        "summary": "List requests, newest first",
        "parameters": parameters,
        "responses": {"200": _answer("A page.", JSON_TYPE, "Page")} | _problems(400, *_ANY),
    }


def _status() -> Document:
    seconds = {"type": "number", "minimum": 0, "default": 0}
    return {
        "operationId": "status",
        "summary": "Look a request up",
        "parameters": [
            _id(),
            _query("wait", seconds, "Seconds to wait for its end; more than 30 is 30."),
            _call_header(),
        ],
        "responses": {"200": _answer("How it stands.", JSON_TYPE, "Status")}
        | _problems(400, 404, 410, *_ANY),
    }


def _cancel() -> Document:
    return {
        "operationId": "cancel",
        "summary": "Ask for a request's end",
        "parameters": [_id(), _call_header()],
        "responses": {"202": _answer("Asked for.", JSON_TYPE, "Accepted")}
        | _problems(404, 410, *_ANY),
    }


def _events() -> Document:
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    stream = _answer("Its events, until it has ended.", EVENTS_TYPE, "Events")
    had = {"description": "Its end was seen already.", "headers": _own_headers()}
    return {
        "operationId": "events",
        "summary": "Follow a request",
        "parameters": [_id(), last, _call_header()],
        "responses": {"200": stream, str(_NO_CONTENT): had} | _problems(404, 410, *_ANY),
    }


def _probe(name: str, summary: str, *statuses: int) -> Document:
    responses = {str(status): _answer(summary, JSON_TYPE, "Probe") for status in statuses}
    for status in _COME_BACK.intersection(statuses):
        responses[str(status)]["headers"]["Retry-After"] = _header("Retry-After")
    return {"operationId": name, "summary": summary, "security": [], "responses": responses}


def _open_call(name: str, summary: str, media_type: str) -> Document:
    schema = {"type": "object" if media_type == JSON_TYPE else "string"}
    answer = {
        "description": summary,
        "headers": _own_headers(),
        "content": {media_type: {"schema": schema}},
    }
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {"200": answer},
    }


# --- parts of calls


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _header(name: str) -> Document:
    return {"$ref": f"#/components/headers/{name}"}


def _own_headers() -> Document:
    return {"x-request-id": _header("x-request-id")}


def _answer(description: str, media_type: str, shape: str) -> Document:
    return {
        "description": description,
        "headers": _own_headers(),
        "content": {media_type: {"schema": _ref(shape)}},
    }


def _problems(*statuses: int) -> Document:
    """Answers of these statuses, each with the reasons that it may have."""
    found: Document = {}
    for status in sorted(set(statuses)):
        reasons = [reason for reason, advice in TABLE.items() if advice.status == status]
        told = "; ".join(f"`{reason.value}`: {TABLE[reason].text}" for reason in reasons)
        answer = _answer(told or "A problem.", PROBLEM_TYPE, "Problem")
        if status in _COME_BACK:
            answer["headers"]["Retry-After"] = _header("Retry-After")
        found[str(status)] = answer
    return found


def _link(operation: str) -> Document:
    return {"operationId": operation, "parameters": {"id": "$response.body#/id"}}


def _id() -> Document:
    return {"name": "id", "in": "path", "required": True, "schema": _ref("Id")}


def _query(name: str, schema: Document, description: str) -> Document:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _call_header() -> Document:
    description = "A name of the call, in its answer and in the index; else one is made."
    return {
        "name": "x-request-id",
        "in": "header",
        "schema": {"type": "string"},
        "description": description,
    }


def _key_header() -> Document:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": openapi_shapes.KEY,
        "description": "The same key with the same body is the same request.",
    }


def _trace_header() -> Document:
    return {
        "name": "traceparent",
        "in": "header",
        "schema": {"type": "string"},
        "description": "Goes along to the worker.",
    }
