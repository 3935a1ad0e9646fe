"""What schemathesis has to be told of this API: its two media types of lines.

Loaded by its command line (SCHEMATHESIS_HOOKS), in a process of its own.
"""

import json
from typing import Any

import schemathesis

NDJSON = "application/x-ndjson"


def to_lines(_: Any, value: Any) -> bytes:
    """A list as its elements' lines; anything else as the line that it is."""
    lines = value if isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def as_text(_: Any, response: Any) -> str:
    """What the document says of these: text."""
    text: str = response.content.decode()
    return text


schemathesis.serializer(NDJSON)(to_lines)
schemathesis.deserializer(NDJSON, "text/event-stream", "text/plain")(as_text)
