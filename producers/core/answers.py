"""What callers read: problems (RFC 9457) and the state of a request, as JSON.

Every problem is a row of `schemas.reasons.TABLE`; every state a member of `End`, or
`waiting`. An output that is JSON is put in as it came, anything else as base64 text.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from producers.core.submission import LINE_FAULTS_MAX, Fault
from schemas.front import Admission, Charge, Entry, LimitState, Terminal, Verdict
from schemas.reasons import TABLE, Reason
from schemas.records import End

WAITING = "waiting"
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
#: What was down is asked again after so long.
AGAIN_S = 1
#: `type` of a problem: a name for programs, no page to be fetched.
TYPE_PREFIX = "urn:fairlane:reason:"


class Problem(NamedTuple):
    """An error answer, before it has a form."""

    reason: Reason
    detail: str
    retry_after_s: int = 0
    faults: Sequence[Fault] = ()
    extra: tuple[tuple[str, Any], ...] = ()
    limits: tuple[LimitState, ...] = ()

    @property
    def status(self) -> int:
        """The reason's HTTP status."""
        return TABLE[self.reason].status

    def document(self) -> bytes:
        """The JSON of the answer."""
        return msgspec.json.encode(self.content())

    def content(self) -> dict[str, Any]:
        """What the document says."""
        advice = TABLE[self.reason]
        document: dict[str, Any] = {
            "type": TYPE_PREFIX + self.reason.value,
            "title": advice.text,
            "status": advice.status,
            "detail": self.detail,
            "reason": self.reason.value,
            "retry": advice.retry.value,
        }
        if self.faults:
            document["faults"] = [
                {"field": f.field, "message": f.message, "reason": f.reason.value}
                for f in self.faults
            ]
        if self.retry_after_s:
            document["retry_after_s"] = self.retry_after_s
        return document | dict(self.extra)


def of_faults(faults: Sequence[Fault], reason: Reason) -> Problem:
    """The answer to a request with faults: all of them, in the detail as well."""
    return Problem(reason, "; ".join(map(_fault, faults)), faults=faults)


def of_line_faults(faults: Sequence[Fault], reason: Reason) -> Problem:
    """The same for a line of many: the detail has the first, which for most is all."""
    detail = _fault(faults[0])
    if len(faults) > 1:
        detail += f" (and more: see 'faults', which has up to {LINE_FAULTS_MAX})"
    return Problem(reason, detail, faults=faults)


def _fault(fault: Fault) -> str:
    return f"{fault.field}: {fault.message}"


def own_error(error: Exception) -> dict[str, Any]:
    """A fault of ours, as a problem document: what a caller may do about it."""
    detail = (
        f"the ingress failed with {type(error).__name__}; look the request up, or send it again "
        "with the same Idempotency-Key"
    )
    return http_problem(500, "Internal Server Error", detail)


def http_problem(status: int, title: str, detail: str) -> dict[str, Any]:
    """A problem document about a call, not about what was asked for."""
    return {"type": TYPE_PREFIX + "http", "title": title, "status": status, "detail": detail}


def whole_seconds(wait_ms: int) -> int:
    """A wait as Retry-After: whole seconds, rounded up, at least 1."""
    return max(1, -(-wait_ms // 1_000))


def not_found() -> Problem:
    """No such request for this tenant."""
    return Problem(Reason.NOT_FOUND, "no request of this id; entries are kept for a day")


def gone() -> Problem:
    """There was one, and it is kept no longer."""
    return Problem(Reason.GONE, "the request ended, and entries are kept for a day")


def over_limit(charge: Charge, verdict: Verdict) -> Problem:
    """A limit has no room: now, or ever. Which one, whose, and how it stands."""
    state, unit = verdict.decisive, verdict.refused_by.partition("/")[0]
    extra: tuple[tuple[str, Any], ...] = (
        ("limit_name", state.name),
        ("limit", state.limit),
        ("used", state.used),
        ("remaining", state.remaining),
    )
    owner = "" if verdict.refused_of == charge.tenant else f" for all of {verdict.refused_of!r}"
    what = f"{state.limit} {state.name} at {charge.endpoint!r}{owner}"
    cost = charge.tokens if unit == "tokens" else charge.requests
    if verdict.admission is Admission.NEVER:
        detail = f"the request costs {cost} {unit}, the limit is {what}"
        return Problem(Reason.NEVER_FITS, detail, extra=extra, limits=verdict.states)
    return Problem(
        Reason.RATE_LIMIT,
        f"{state.used} of {what} are used, the request costs {cost}",
        retry_after_s=whole_seconds(verdict.retry_ms),
        extra=extra,
        limits=verdict.states,
    )


def another_request() -> Problem:
    """The idempotency key was used for something else."""
    detail = "Idempotency-Key: this key belongs to another request; send a new key"
    return Problem(Reason.KEY_REUSED, detail)


def unfinished() -> Problem:
    """A copy of the request is being taken in elsewhere."""
    detail = "Idempotency-Key: the first call with this key is not finished yet"
    return Problem(Reason.UNFINISHED, detail, retry_after_s=AGAIN_S)


def unavailable(detail: str) -> Problem:
    """A part of the service is down, or says that it has too much to do."""
    return Problem(Reason.UNAVAILABLE, detail, retry_after_s=AGAIN_S)


def in_doubt(request_id: str, key: str, detail: str) -> Problem:
    """The log did not confirm; the answer carries all that a repetition needs."""
    extra = (("id", request_id), ("idempotency_key", key))
    return Problem(Reason.IN_DOUBT, detail, retry_after_s=AGAIN_S, extra=extra)


def state(entry: Entry) -> str:
    """The state that an index entry stands for."""
    return entry.terminal.end.value if entry.terminal else WAITING


def status_document(request_id: str, entry: Entry, body: bytes | None) -> bytes:
    """The JSON of GET: state, and for an ended request how it ended and its output."""
    document = summary(request_id, entry)
    if entry.terminal and body is None:
        document["output_lost"] = "the log no longer holds the output"
    elif entry.terminal and body:
        document |= _output(body, entry.terminal.content_type)
    return msgspec.json.encode(document)


def summary(request_id: str, entry: Entry) -> dict[str, Any]:
    """What is known of a request, but for its output."""
    document: dict[str, Any] = {"id": request_id, "state": state(entry)}
    if entry.acceptance:
        acceptance = entry.acceptance
        document["endpoint"] = acceptance.endpoint
        document["tier"] = acceptance.tier
        document["accepted_ms"] = acceptance.accepted_ms
        if acceptance.call:
            document["x_request_id"] = acceptance.call
    if entry.terminal:
        document |= _ended(entry.terminal)
    return document


def _ended(terminal: Terminal) -> dict[str, Any]:
    usage = terminal.usage
    waited_until_ms = terminal.picked_ms or terminal.ended_ms
    document: dict[str, Any] = {
        "endpoint": terminal.endpoint,
        "attempts": terminal.attempt,
        "ended_ms": terminal.ended_ms,
        "wait_ms": max(0, waited_until_ms - terminal.arrived_ms) if terminal.arrived_ms else 0,
        "service_ms": usage.service_ms,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        },
    }
    if terminal.end is not End.SUCCEEDED:
        document["reason"] = terminal.reason
        document["detail"] = terminal.detail
        document["retry"] = _retry(terminal.reason)
    return document


def _retry(reason: str) -> str:
    return TABLE[Reason(reason)].retry.value if reason in Reason.__members__.values() else "never"


def _output(body: bytes, content_type: str) -> dict[str, Any]:
    if content_type in {"", JSON_TYPE}:
        try:
            body.decode()
            raw = msgspec.json.decode(body, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return {"output": raw, "content_type": JSON_TYPE}
    encoded = b64encode(body).decode()
    return {
        "output_base64": encoded,
        "content_type": content_type or "application/octet-stream",
    }
