r"""Events of a request as text/event-stream.

An event is one line of JSON under `data:`, and nothing else makes an event: signs of life are
comments, of one line, without the empty line that some readers take for an event. Only the
terminal event has an id, so that a reader that comes back with Last-Event-ID can have missed
nothing but what it names. Line breaks in an output's JSON, which stand between its tokens alone,
become spaces.
"""

TYPE = "text/event-stream"
COMMENT = b": waiting\n"
_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def event(name: str, document: bytes, event_id: str = "") -> bytes:
    """One event, whole."""
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id else "")
    return head.encode() + b"data: " + document.translate(_BREAKS) + b"\n\n"


def last_id(request_id: str) -> str:
    """Id of a request's terminal event."""
    return f"{request_id}:end"
