"""Records to bytes and back; the only place where the wire's framing is written.

A record with an opaque body (request, batch, result, dead) carries its metadata in ONE
header, `fairlane`, and the body untouched as the value. Every other record is its value.
Headers that we do not know pass through in order.

Decoding never trusts: whatever is wrong becomes a `DecodeError` that names the place.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import DecodeError as _MsgpackError
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from schemas.decisions import Chain, Decision, SnapshotChunk
from schemas.log import Headers, Record
from schemas.reasons import Reason
from schemas.records import (
    VERSION,
    ApiKey,
    Batch,
    BatchCancel,
    ControlRecord,
    Dead,
    Finished,
    HandedBack,
    Refusal,
    Request,
    Result,
    Seen,
    Started,
)
from schemas.usage import Cost, UsageLost, UsageSum

HEADER = "fairlane"

T = TypeVar("T", bound=Struct)

_encoder = Encoder()
_decoders: dict[Any, Decoder[Any]] = {}

_HEADER_KINDS = Request | Batch | BatchCancel | Result | Dead | Chain
_VALUE_KINDS = (
    Decision
    | SnapshotChunk
    | Seen
    | Started
    | Finished
    | HandedBack
    | ControlRecord
    | Refusal
    | ApiKey
    | UsageSum
    | UsageLost
    | Cost
)


class DecodeError(Exception):
    """A record that can't be read: `reason` is `unreadable` or `unknown_version`."""

    def __init__(self, place: str, reason: Reason, detail: str) -> None:
        """Name the record's place, the reason, and what is wrong with it."""
        self.place, self.reason, self.detail = place, reason, detail
        super().__init__(f"{place}: {reason.value}: {detail}")


def encode(record: Struct) -> bytes:
    """Encode one record (or one header) as a msgpack array."""
    return _encoder.encode(record)


def header(record: Struct, extra: Headers = ()) -> list[tuple[str, bytes]]:
    """Headers of a record with a body: its metadata first, then what passes through."""
    return [(HEADER, _encoder.encode(record)), *extra]


def passed_through(headers: Headers) -> tuple[tuple[str, bytes], ...]:
    """Headers that are not ours, in their order."""
    return tuple(h for h in headers if h[0] != HEADER)


def _decode(data: bytes, kind: Any, place: str) -> Any:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = Decoder(kind)
    try:
        record = decoder.decode(data)
    except (_MsgpackError, UnicodeDecodeError, RecursionError) as error:
        version = _version_of(data)
        if version is not None and version > VERSION:
            raise _unknown_version(place, version) from error
        raise DecodeError(place, Reason.UNREADABLE, str(error)) from error
    if record.v != VERSION:
        raise _unknown_version(place, record.v)
    return record


def _unknown_version(place: str, version: object) -> DecodeError:
    return DecodeError(
        place,
        Reason.UNKNOWN_VERSION,
        f"version {version} of a record; this release reads version {VERSION}: upgrade it first",
    )


def _version_of(data: bytes) -> int | None:
    try:
        array = Decoder().decode(data)
    except (_MsgpackError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(array, list) and len(array) > 1 and isinstance(array[1], int):
        return array[1]
    return None


def decode_value(record: Record, kind: Any) -> Any:
    """Decode a record's value as `kind` (a Struct or a union of tagged Structs).

    Raises DecodeError naming the record's place.
    """
    return _decode(record.value, kind, record.place)


def decode_header(record: Record, kind: Any) -> Any:
    """Decode the `fairlane` header of a record as `kind`; raises DecodeError."""
    for name, data in record.headers:
        if name == HEADER:
            return _decode(data, kind, record.place)
    raise DecodeError(record.place, Reason.UNREADABLE, f"no header named {HEADER!r}")


def decoder_of(kind: type[T]) -> Callable[[bytes], T]:
    """The bare decoder of one kind, for loops over many records of it.

    It raises ValueError (also for text that is no UTF-8) or RecursionError, and looks at no
    version: whoever meets one of these decodes that record again, by the functions above.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = Decoder(kind)
    return decoder.decode


def decode_bytes(data: bytes, kind: type[T], place: str) -> T:
    """Decode bytes that are no log record of their own (a chunk's content, a test's)."""
    result: T = _decode(data, kind, place)
    return result


def describe(record: Record) -> Struct:
    """Decode any record of any topic, for people; raises DecodeError."""
    if any(name == HEADER for name, _ in record.headers):
        described: Struct = decode_header(record, _HEADER_KINDS)
        if not isinstance(described, Chain):
            return described
    value: Struct = decode_value(record, _VALUE_KINDS)
    return value


def batch_bodies(batch: Batch, value: bytes, place: str) -> list[bytes]:
    """Cut a batch record's value into its requests' bodies; raises DecodeError."""
    bodies: list[bytes] = []
    start = 0
    for item in batch.items:
        if item.size < 0:
            raise DecodeError(place, Reason.UNREADABLE, f"a body of {item.size} bytes")
        bodies.append(value[start : start + item.size])
        start += item.size
    if start != len(value):
        detail = f"bodies take {start} bytes, the record has {len(value)}"
        raise DecodeError(place, Reason.UNREADABLE, detail)
    return bodies


def chain(previous: bytes, value: bytes) -> bytes:
    """Digest that seals `value` to all before it: blake2b-16(previous + value)."""
    return blake2b(previous + value, digest_size=16).digest()


def join(bodies: Iterable[bytes]) -> bytes:
    """Bodies one after the other, as `batch_bodies` cuts them."""
    return b"".join(bodies)
