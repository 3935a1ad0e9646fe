"""Records of an inbox: what a tenant may put there, where one stands, what its request is called.

A record is the body of POST /v1/requests as its value; its headers may say what HTTP headers
say there: `idempotency-key`, `traceparent`, `x-request-id`. Whose it is says the topic alone.

A request that came by inbox carries its *position* (the topic's identity, partition, offset)
in the log: by it a process that starts tells what is in already.
"""

from typing import NamedTuple

from producers.core import ids
from producers.core.submission import BODY_BYTES_MAX, Fault, Faults
from schemas.log import UNREADABLE_HEADER, Headers, Record
from schemas.reasons import Reason

#: Header of a published request, and of what becomes of it: its place in the inbox.
POSITION = "fairlane-inbox"
KEY, TRACE, REQUEST_ID = "idempotency-key", "traceparent", "x-request-id"
OURS = frozenset({KEY, TRACE, REQUEST_ID})
#: Ids of requests without a key of their own are made from their position, under a route that
#: no caller of the API can name.
ROUTE = "inbox"
#: Clients and tracing add a few headers of their own; more are a mistake, or an attack.
HEADERS_MAX = 32
#: The format's version 00 has 55 characters.
TRACE_BYTES_MAX = 55


class Position(NamedTuple):
    """Where a record stands: a recreated inbox of the same name has another `topic_id`."""

    topic_id: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Text as in the header: `topic id/partition/offset`."""
        return f"{self.topic_id}/{self.partition}/{self.offset}"


class Envelope(NamedTuple):
    """What a record's headers say: a key, a trace and a name of the call; None or "" if not."""

    key: str | None = None
    trace: bytes | None = None
    call: str = ""

    @property
    def travelling(self) -> tuple[tuple[str, bytes], ...]:
        """What comes back with every answer."""
        trace = ((TRACE, self.trace),) if self.trace else ()
        return (*trace, (REQUEST_ID, self.call.encode())) if self.call else trace


def position_of(headers: Headers) -> Position | None:
    """Inbox position that the headers of a published record carry; None when it has none."""
    for name, content in headers:
        if name == POSITION:
            try:
                topic_id, partition, offset = content.decode().rsplit("/", 2)
                return Position(topic_id, int(partition), int(offset))
            except ValueError:
                return None
    return None


def own_id(tenant: str, position: Position) -> str:
    """Id of a request whose record has no idempotency key."""
    return ids.request_id(tenant, ROUTE, str(position))


def envelope(record: Record) -> Envelope | Faults:
    """Read a record's headers, and look at its size, before a byte of it is parsed."""
    size, count = len(record.value), len(record.headers)
    if size > BODY_BYTES_MAX:
        message = f"has {size} bytes; a request has up to {BODY_BYTES_MAX}"
        return Faults((Fault(Reason.BODY_TOO_LARGE, "body", message),))
    if count > HEADERS_MAX:
        return _fault("headers", f"there are {count}; a record has up to {HEADERS_MAX}")
    found: dict[str, bytes] = {}
    for name, content in record.headers:
        if name == UNREADABLE_HEADER:
            return _fault("headers", "their names must be UTF-8 text")
        lower = name.lower()
        if lower in OURS and found.setdefault(lower, content) != content:
            return _fault(lower, "is there twice, with two contents")
    return _envelope(found)


def _envelope(found: dict[str, bytes]) -> Envelope | Faults:
    key, call = None, ""
    if KEY in found:
        key = ids.idempotency_key(found[KEY].decode(errors="replace"))
        if key is None:
            rule = f"1..{ids.KEY_CHARS_MAX} visible ASCII characters, quoted or bare"
            return _fault(KEY, f"must be {rule}")
    if REQUEST_ID in found:
        call = found[REQUEST_ID].decode(errors="replace")
        if not ids.is_call_id(call):
            rule = (
                f"1..{ids.CALL_CHARS_MAX} of letters, digits and . _ : / -, and no id of a request"
            )
            return _fault(REQUEST_ID, f"must be {rule}")
    return Envelope(key, found.get(TRACE, b"")[:TRACE_BYTES_MAX] or None, call)


def _fault(field: str, message: str) -> Faults:
    return Faults((Fault(Reason.INVALID_REQUEST, field, message),))
