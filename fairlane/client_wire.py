"""Between the client's values and the bytes of HTTP."""

from base64 import b64decode
from collections.abc import Sequence

import httpx
import msgspec

from fairlane.client_values import (
    JSON_TYPE,
    Accepted,
    Fault,
    Outcome,
    ProtocolError,
    RefusedError,
    Submission,
    Usage,
)
from schemas.reasons import Reason, Retry
from schemas.records import End

WAITING = "waiting"
NDJSON_TYPE = "application/x-ndjson"
#: Of an answer that is nothing of ours this much is quoted.
QUOTE_CHARS_MAX = 200

_FIELDS = ("priority", "deadline_ms", "tier", "max_output_tokens")


class _Verdict(msgspec.Struct):
    """What is read of an answer to a submission: of both kinds at once."""

    line: int = 0
    status: int = 0
    id: str = ""
    state: str = ""
    idempotency_key: str = ""
    detail: str = ""
    reason: str = ""
    retry: str = ""
    retry_after_s: float = 0.0
    faults: tuple[Fault, ...] = ()


class _Status(msgspec.Struct):
    """What is read of GET /v1/requests/{id}."""

    id: str
    state: str
    endpoint: str = ""
    output: msgspec.Raw = msgspec.Raw()
    output_base64: str = ""
    content_type: str = JSON_TYPE
    output_lost: str = ""
    reason: str = ""
    detail: str = ""
    retry: str = ""
    usage: Usage = Usage()
    wait_ms: int = 0
    service_ms: int = 0
    attempts: int = 0
    ended_ms: int = 0


_verdict = msgspec.json.Decoder(_Verdict)
_status = msgspec.json.Decoder(_Status)
_encoder = msgspec.json.Encoder()


def body(submission: Submission, idempotency_key: str = "") -> bytes:
    """The body of a POST, one line; as a line of a bulk call it has its key inside.

    Raises RefusedError as the service would: the submission can't be written as JSON.
    """
    fields = {"endpoint": submission.endpoint, "input": submission.input}
    for name in _FIELDS:
        value = getattr(submission, name)
        if value is not None:
            fields[name] = value
    if idempotency_key:
        fields["idempotency_key"] = idempotency_key
    try:
        encoded = _encoder.encode(fields)
    except Exception as error:  # the input is of any type, and so is what it raises
        raise RefusedError(
            f"the submission is not JSON: {error}; nothing was sent",
            status=httpx.codes.BAD_REQUEST,
            reason=Reason.INVALID_REQUEST.value,
            retry=Retry.NEVER.value,
            idempotency_key=idempotency_key or submission.idempotency_key or "",
        ) from error
    # An encoded input may have line breaks between its values, never inside of a string.
    return encoded.replace(b"\n", b" ").replace(b"\r", b" ")


def read_accepted(answer: httpx.Response, key: str) -> Accepted:
    """The answer to a POST. Raises RefusedError."""
    verdict = _read(answer)
    if answer.status_code == httpx.codes.ACCEPTED and verdict.id:
        return Accepted(verdict.id, verdict.state or WAITING, key)
    raise _refused(verdict, answer.status_code, key)


def refusal(answer: httpx.Response, key: str = "", request_id: str = "") -> RefusedError:
    """An answer that is no, as an error."""
    verdict = _read(answer)
    verdict.id = verdict.id or request_id
    return _refused(verdict, answer.status_code, key)


def read_verdicts(
    answer: httpx.Response, keys: Sequence[str]
) -> list[Accepted | RefusedError | None]:
    """The verdicts of a bulk call in the order of the lines; None: the line has none.

    Raises ProtocolError rather than give a line the verdict of another.
    """
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != NDJSON_TYPE:
        raise _not_ours(answer, f"{content_type or 'an answer without a type'}: {_quote(answer)}")
    found: list[Accepted | RefusedError | None] = [None] * len(keys)
    before = 0
    texts = answer.content.splitlines()
    for number, text in enumerate(texts, 1):
        try:
            verdict = _verdict.decode(text)
        except ValueError as error:
            if number == len(texts):  # it was cut off
                break
            raise _not_ours(answer, f"{text[:QUOTE_CHARS_MAX]!r}: {error}") from error
        if not before < verdict.line <= len(keys):
            raise _not_ours(answer, f"line {verdict.line} after {before} of {len(keys)}")
        before = verdict.line
        found[before - 1] = _verdict_of(answer, verdict, keys[before - 1])
    return found


def _verdict_of(answer: httpx.Response, verdict: _Verdict, key: str) -> Accepted | RefusedError:
    """The verdict of a line, which has to name the line's key, except where it was refused."""
    told = verdict.idempotency_key
    is_accepted = verdict.status == httpx.codes.ACCEPTED and bool(verdict.id)
    if (told or is_accepted) and _bare(told) != _bare(key):
        raise _not_ours(answer, f"line {verdict.line} is of {told!r}, not of {key!r}")
    if verdict.status < httpx.codes.BAD_REQUEST and not is_accepted:
        raise _not_ours(answer, f"status {verdict.status} of line {verdict.line}, which is none")
    if is_accepted:
        return Accepted(verdict.id, verdict.state or WAITING, key)
    return _refused(verdict, verdict.status, key)


def _bare(key: str) -> str:
    """A key without the quotes that HTTP lets it have and the service takes off."""
    return key.strip().removeprefix('"').removesuffix('"')


def read_outcome(answer: httpx.Response) -> Outcome | None:
    """The answer to a GET; None: the request waits. Raises RefusedError."""
    try:
        found = _status.decode(answer.content)
        if found.state == WAITING:
            return None
        state = End(found.state)
    except ValueError as error:
        detail = f"this is no state of a request: {error}: {_quote(answer)}"
        raise RefusedError(detail, status=answer.status_code) from error
    encoded = found.output_base64
    return Outcome(
        id=found.id,
        state=state,
        output_bytes=b64decode(encoded) if encoded else bytes(found.output),
        content_type=found.content_type,
        output_lost=found.output_lost,
        reason=found.reason,
        detail=found.detail,
        retry=found.retry,
        usage=found.usage,
        wait_ms=found.wait_ms,
        service_ms=found.service_ms,
        attempts=found.attempts,
        endpoint=found.endpoint,
        ended_ms=found.ended_ms,
    )


def _read(answer: httpx.Response) -> _Verdict:
    try:
        return _verdict.decode(answer.content)
    except ValueError:
        return _Verdict(detail=f"this is no answer of an ingress: {_quote(answer)}")


def _refused(verdict: _Verdict, status: int, key: str) -> RefusedError:
    return RefusedError(
        verdict.detail or f"HTTP {status}",
        status=status,
        reason=verdict.reason,
        retry=verdict.retry,
        retry_after_s=verdict.retry_after_s,
        faults=verdict.faults,
        id=verdict.id,
        idempotency_key=key,
    )


def _not_ours(answer: httpx.Response, what: str) -> ProtocolError:
    return ProtocolError(
        f"{answer.url} does not answer as an ingress does, with verdicts of the lines that were "
        f"sent, but with {what}; is this the address of an ingress?"
    )


def _quote(answer: httpx.Response) -> str:
    text = answer.text
    return repr(text[:QUOTE_CHARS_MAX] + ("…" if len(text) > QUOTE_CHARS_MAX else ""))
