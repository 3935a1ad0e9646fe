"""What a tenant reads in its own results topic: one JSON document a record.

`kind` is also a header, so that a reader may choose without parsing:
- `ended`: a request's outcome, the document of GET /v1/requests/{id};
- `refused`: an inbox record that was not let in, with the problem document of the API;
- `repeated`: an inbox record whose idempotency key belongs to an earlier request, which goes on;
- `lost`: inbox records that the log dropped before anybody took them in.
"""

from typing import Any, NamedTuple

import msgspec

from producers.core.answers import Problem, status_document
from producers.core.inbox import POSITION, REQUEST_ID, Position
from schemas.front import Ending, Entry
from schemas.log import RECORD_BYTES_MAX, Headers

#: Room for key and headers of a record.
_MARGIN_BYTES = 4_096


class Answer(NamedTuple):
    """A record for a tenant's results topic."""

    tenant: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        """Bytes of the value, which is most of it."""
        return len(self.value)


def refused(
    tenant: str, request_id: str, position: Position, headers: Headers, problem: Problem
) -> Answer:
    """The answer to a record that is not let in."""
    return failed(tenant, request_id, position, headers, problem.content())


def failed(
    tenant: str, request_id: str, position: Position, headers: Headers, content: dict[str, Any]
) -> Answer:
    """Likewise, with the content of a problem document."""
    return _answer("refused", tenant, request_id, position, headers, content)


def repeated(
    tenant: str, request_id: str, position: Position, headers: Headers, state: str
) -> Answer:
    """The answer to a record whose request is known already; `state` as far as known, or ""."""
    content = {"state": state} if state else {}
    return _answer("repeated", tenant, request_id, position, headers, content)


def lost(tenant: str, partition: int, first: int, stop: int) -> Answer:
    """Records from `first` up to `stop`, without it, left the log before they were taken in."""
    detail = (
        f"offsets {first} to {stop - 1} of partition {partition} were older than the inbox is "
        "kept: send again what was in them"
    )
    content = {"partition": partition, "first": first, "stop": stop, "detail": detail}
    value = msgspec.json.encode({"kind": "lost", **content})
    return Answer(tenant, b"", value, (("kind", b"lost"),))


def ended(ending: Ending, body: bytes, position: Position | None, headers: Headers) -> Answer:
    """A copy of a terminal outcome."""
    name = ending.name
    extra: dict[str, Any] = {"kind": "ended"} | _origin(position, headers)
    document = status_document(name.id, Entry(None, ending.terminal, None), body)
    if len(document) > RECORD_BYTES_MAX - _MARGIN_BYTES:
        extra["output_omitted"] = f"too large for a record: GET /v1/requests/{name.id} has it"
        document = status_document(name.id, Entry(None, ending.terminal, None), b"")
    value = msgspec.json.encode(extra)[:-1] + b"," + document[1:]
    return Answer(name.tenant, name.id.encode(), value, _headers("ended", position, headers))


def _answer(
    kind: str,
    tenant: str,
    request_id: str,
    position: Position,
    headers: Headers,
    content: dict[str, Any],
) -> Answer:
    document = {"kind": kind} | _origin(position, headers) | {"id": request_id} | content
    value = msgspec.json.encode(document)
    return Answer(tenant, request_id.encode(), value, _headers(kind, position, headers))


def _origin(position: Position | None, headers: Headers) -> dict[str, Any]:
    """Where it came from, as the tenant knows it."""
    found: dict[str, Any] = {}
    if position:
        found["inbox"] = {"partition": position.partition, "offset": position.offset}
    for name, content in headers:
        if name == REQUEST_ID:
            found["x_request_id"] = content.decode(errors="replace")
    return found


def _headers(
    kind: str, position: Position | None, headers: Headers
) -> tuple[tuple[str, bytes], ...]:
    travelling = [(name, content) for name, content in headers if name in _TRAVELLING]
    place = [(POSITION, str(position).encode())] if position else []
    return (("kind", kind.encode()), *place, *travelling)


_TRAVELLING = (REQUEST_ID, "traceparent")
