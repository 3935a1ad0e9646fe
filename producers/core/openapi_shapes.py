"""Shapes of the OpenAPI document: what is sent and answered, field by field.

Closed: a field that is not here is not answered, and not taken.
"""

from typing import Any

from producers.core import ids
from producers.core.answers import JSON_TYPE
from producers.core.listing import STATES
from producers.core.submission import AFFINITY_CHARS_MAX, DEADLINE_MS_MAX
from schemas.reasons import Reason, Retry
from schemas.records import PRIORITY_DEFAULT, PRIORITY_MAX, End

Shape = dict[str, Any]

LIMIT_HEADERS = (
    "RateLimit",
    "RateLimit-Policy",
    *(
        f"x-ratelimit-{what}-{unit}"
        for unit in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ),
)
KEY: Shape = {
    "type": "string",
    "minLength": 1,
    "maxLength": ids.KEY_CHARS_MAX,
    "pattern": "^[!-~]+$",
}
CALL_ID: Shape = {
    "type": "string",
    "minLength": 1,
    "maxLength": ids.CALL_CHARS_MAX,
    "pattern": "^[A-Za-z0-9._:/-]+$",
}
_TEXT: Shape = {"type": "string"}
_COUNT: Shape = {"type": "integer", "minimum": 0}
_RETRY: Shape = {"enum": [retry.value for retry in Retry]}
_REASON: Shape = {"enum": [reason.value for reason in Reason]}
_STATUS_MIN, _STATUS_MAX = 400, 599


def schemas() -> Shape:
    """All shapes by name."""
    summary = _summary()
    return {
        "Id": {"type": "string", "pattern": "^req_[a-z2-7]{26}$"},
        "Submission": _submission(),
        "Accepted": _object({"id": _TEXT, "state": {"enum": list(STATES)}}, "id", "state"),
        "Verdicts": {"type": "string", "description": "A Verdict a line."},
        "Verdict": {"oneOf": [_taken(), _refused()]},
        "Summary": _object(summary, "id", "state"),
        "Status": _object(summary | _output(), "id", "state"),
        "Page": _object(
            {
                "data": {"type": "array", "items": {"$ref": "#/components/schemas/Summary"}},
                "next_cursor": {
                    "type": ["string", "null"],
                    "description": "Where the next page begins; null: there is none.",
                },
            },
            "data",
            "next_cursor",
        ),
        "Events": {"type": "string", "description": "Of each event the data is a Status."},
        "Problem": _problem(),
        "Probe": _object({"status": _TEXT, "detail": _TEXT}, "status"),
    }


def headers() -> Shape:
    """All headers of answers by name."""
    whole = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds, at least 1."}
    left = {"schema": _TEXT, "description": "See draft-ietf-httpapi-ratelimit-headers."}
    number = {"schema": _COUNT, "description": "Of the limit within a minute."}
    found = {
        "x-request-id": {"schema": CALL_ID, "description": "Name of the call.", "required": True},
        "Location": {"schema": _TEXT, "description": "Where the request is looked up."},
        "Idempotency-Key": {"schema": KEY, "description": "The key, made if none was sent."},
        "Retry-After": whole,
    }
    for name in LIMIT_HEADERS:
        is_text = not name.startswith("x-") or "-reset-" in name
        found[name] = left if is_text else number
    return found


def _object(fields: Shape, *required: str) -> Shape:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _submission() -> Shape:
    fields: Shape = {
        "endpoint": _TEXT | {"description": "The model, by its name in the policy."},
        "input": {"description": "Any JSON value; the model gets it as it is."},
        "priority": {
            "type": "integer",
            "minimum": 0,
            "maximum": PRIORITY_MAX,
            "default": PRIORITY_DEFAULT,
            "description": "0 is the most urgent, among the tenant's own.",
        },
        "deadline_ms": {
            "type": "integer",
            "minimum": 1,
            "maximum": DEADLINE_MS_MAX,
            "description": "From now; it ends as expired if it can't be done by then.",
        },
        "tier": _TEXT | {"description": "One of the tenant's; default: the first."},
        "max_output_tokens": {"type": "integer", "minimum": 1},
        "affinity_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": AFFINITY_CHARS_MAX,
            "description": "What belongs together, for engines that keep prefixes.",
        },
    }
    return _object(fields, "endpoint", "input")


def _summary() -> Shape:
    tokens = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    return {
        "id": {"$ref": "#/components/schemas/Id"},
        "state": {"enum": list(STATES)},
        "endpoint": _TEXT,
        "tier": _TEXT,
        "accepted_ms": _COUNT,
        "x_request_id": CALL_ID,
        "attempts": _COUNT,
        "ended_ms": _COUNT,
        "wait_ms": _COUNT,
        "service_ms": _COUNT,
        "usage": _object(dict.fromkeys(tokens, _COUNT), *tokens),
        "reason": _TEXT | {"description": f"Unless it {End.SUCCEEDED.value}."},
        "detail": _TEXT,
        "retry": _RETRY,
    }


def _output() -> Shape:
    return {
        "output": {"description": f"The model's answer, if it is {JSON_TYPE}."},
        "output_base64": {"type": "string", "contentEncoding": "base64"},
        "content_type": _TEXT,
        "output_lost": _TEXT,
    }


def _problem_fields() -> Shape:
    fault = _object({"field": _TEXT, "message": _TEXT, "reason": _REASON}, "field", "message")
    return {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer", "minimum": _STATUS_MIN, "maximum": _STATUS_MAX},
        "detail": _TEXT,
        "reason": _REASON,
        "retry": _RETRY,
        "faults": {"type": "array", "items": fault, "minItems": 1},
        "retry_after_s": {"type": "integer", "minimum": 1},
        "limit_name": {"type": "string"},
        "limit": _COUNT,
        "used": _COUNT,
        "remaining": _COUNT,
        "id": {"$ref": "#/components/schemas/Id"},
        "idempotency_key": KEY,
    }


def _problem() -> Shape:
    return _object(_problem_fields(), "type", "title", "status", "detail")


def _taken() -> Shape:
    fields = {
        "line": {"type": "integer", "minimum": 1},
        "status": {"const": 202},
        "id": {"$ref": "#/components/schemas/Id"},
        "state": {"enum": list(STATES)},
        "idempotency_key": KEY,
    }
    return _object(fields, *fields)


def _refused() -> Shape:
    fields = {"line": {"type": "integer", "minimum": 1}} | _problem_fields()
    return _object(fields, "line", "type", "title", "status", "detail")
