"""The body of a bulk call: lines of JSON, each a request with a fate of its own."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from producers.core import ids
from producers.core.submission import BODY_BYTES_MAX, Fault, Faults, Fields, outline
from schemas.reasons import Reason

#: The one field of a line that a single call has as a header.
KEY_FIELD = "idempotency_key"


class Line(NamedTuple):
    """A line by its number, from 1; `key` is its idempotency key if it names one.

    `size` is what there was to read, in bytes.
    """

    number: int
    fields: Fields | Faults
    key: str | None
    size: int = 0


def read_lines(body: bytes) -> Iterator[Line]:
    """Read the lines one after the other; blank ones are passed over, but counted."""
    start = number = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        number += 1
        if end - start > BODY_BYTES_MAX:
            yield Line(number, _too_long(end - start), None)
        elif text := body[start:end].strip():
            yield _read(number, text)
        start = end + 1


def waves(lines: Iterable[Line], lines_max: int, bytes_max: int) -> Iterator[list[Line]]:
    """Lines that go together: up to so many, or one more than fit in so many bytes."""
    wave: list[Line] = []
    size = 0
    for line in lines:
        wave.append(line)
        size += line.size
        if len(wave) == lines_max or size > bytes_max:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


def _read(number: int, text: bytes) -> Line:
    fields = outline(text)
    if isinstance(fields, Faults) or KEY_FIELD not in fields:
        return Line(number, fields, None, len(text))
    key = _key(fields.pop(KEY_FIELD))
    if key is None:
        message = f"must be a string of 1..{ids.KEY_CHARS_MAX} visible ASCII characters"
        faults = Faults((Fault(Reason.INVALID_REQUEST, KEY_FIELD, message),))
        return Line(number, faults, None, len(text))
    return Line(number, fields, key, len(text))


def _key(raw: msgspec.Raw) -> str | None:
    try:
        return ids.idempotency_key(msgspec.json.decode(raw, type=str))
    except msgspec.DecodeError:
        return None


def _too_long(size: int) -> Faults:
    message = f"has {size} bytes; a line may have up to {BODY_BYTES_MAX}"
    return Faults((Fault(Reason.BODY_TOO_LARGE, "line", message),))
