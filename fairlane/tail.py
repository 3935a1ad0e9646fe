"""`fairlane tail`: the records of any topic, readable, one after the other.

A record that can't be decoded is shown with the reason and its first bytes; what follows
is shown too. Reads what is committed, commits nothing, joins no group.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from fairlane.errors import FairlaneError
from schemas.codec import HEADER, DecodeError, describe, passed_through
from schemas.log import Log, Partition, Reader, Record
from schemas.policy import PolicyError, decode_policy
from schemas.topics import Topics

_POLL_RECORDS = 500
_POLL_SECONDS = 0.2
#: Of bytes that are shown: enough to recognise, short enough for a line.
BYTES_SHOWN = 32
#: Of a body that is text.
TEXT_SHOWN = 120
_PRINTABLE_MIN = 32


class UnknownTopicError(FairlaneError):
    """The topic does not exist; the message lists those that do."""


def full_name(log: Log, topics: Topics, name: str) -> str:
    """Topic by its full name or without the prefix; raises UnknownTopicError."""
    for candidate in (name, f"{topics.prefix}.{name}"):
        if log.partitions(candidate):
            return candidate
    ours = [topic for topic in log.topics() if topic.startswith(f"{topics.prefix}.")]
    known = ", ".join(ours) or "none; run `fairlane policy apply FILE` first"
    raise UnknownTopicError(f'topic "{name}" does not exist; under this prefix are: {known}')


def records(
    log: Log,
    topic: str,
    *,
    from_beginning: bool = False,
    follow: bool = True,
    limit: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Records of all partitions of a topic, as they come.

    Ends after `limit` records, when stopped, or, without `follow`, at the end as it was at
    the start. Within a partition the order is the log's.
    """
    reader = log.reader()
    try:
        partitions = [(topic, number) for number in range(log.partitions(topic))]
        bounds = {partition: reader.bounds(partition) for partition in partitions}
        reader.assign({p: b.low if from_beginning else b.end for p, b in bounds.items()})
        ends = {partition: bound.end for partition, bound in bounds.items()}
        shown = 0
        while not is_stopped() and (limit is None or shown < limit):
            if not follow and _all_reached(reader, ends):
                return
            left = _POLL_RECORDS if limit is None else min(_POLL_RECORDS, limit - shown)
            for record in reader.poll(left, _POLL_SECONDS):
                if follow or record.offset < ends[record.topic, record.partition]:
                    yield record
                    shown += 1
    finally:
        reader.close()


def _all_reached(reader: Reader, ends: dict[Partition, int]) -> bool:
    return all(reader.reached(partition, end) for partition, end in ends.items())


def as_dict(record: Record, topics: Topics) -> dict[str, Any]:
    """Record as plain values: place, time, key, kind, fields, body, headers; or the error."""
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    if record.key is not None:
        shown["key"] = _bytes(record.key)
    try:
        if record.topic == topics.policy:
            shown |= {"kind": "policy", "record": msgspec.to_builtins(decode_policy(record.value))}
        else:
            struct = describe(record)
            shown |= {"kind": _kind(struct), "record": _fields(struct)}
    except (DecodeError, PolicyError) as error:
        reason = error.reason.value if isinstance(error, DecodeError) else "unreadable"
        detail = error.detail if isinstance(error, DecodeError) else str(error)
        shown |= {"error": reason, "detail": detail, "first_bytes": _first_bytes(record)}
        return shown
    names = [name for name, _ in record.headers]
    if HEADER in names and shown["kind"] not in _BODILESS:
        shown["body"] = _bytes(record.value, TEXT_SHOWN)
    if extra := passed_through(record.headers):
        shown["headers"] = [[name, _bytes(value)] for name, value in extra]
    return shown


#: Kinds whose value is the record itself although a header (the chain) stands beside it.
_BODILESS = frozenset({"decision", "snapshot", "batch_cancel"})


def as_json(record: Record, topics: Topics) -> str:
    """One line of JSON."""
    return orjson.dumps(as_dict(record, topics)).decode()


def as_text(record: Record, topics: Topics) -> str:
    """One line for people: place, time, kind, fields."""
    shown = as_dict(record, topics)
    time = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    head = f"{record.place} {time:%Y-%m-%dT%H:%M:%S}.{record.timestamp_ms % 1000:03d}Z"
    if "error" in shown:
        return f"{head} ! {shown['error']}: {shown['detail']}; bytes: {shown['first_bytes']}"
    parts = [head, shown["kind"]]
    parts += [f"{name}={_text(value)}" for name, value in shown["record"].items() if name != "v"]
    parts += [
        f"{name}={_text(shown[name])}" for name in ("key", "body", "headers") if name in shown
    ]
    return " ".join(parts)


def _kind(struct: msgspec.Struct) -> str:
    return str(struct.__struct_config__.tag or type(struct).__name__.lower())


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}


def _plain(value: Any) -> Any:
    """Turn Structs to dicts with kind and field names, bytes to what people can read."""
    match value:
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            return _fields(value) if tag is None else {"kind": tag, **_fields(value)}
        case tuple() | list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case bytes():
            return _bytes(value)
        case _:
            return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value if value and " " not in value else orjson.dumps(value).decode()
    return orjson.dumps(value).decode()


def _bytes(value: bytes, most: int = TEXT_SHOWN) -> str:
    """Text if it is text, else the first bytes in hex; the length when cut."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if len(text) == 0 or any(ord(char) < _PRINTABLE_MIN and char not in "\n\t" for char in text):
        text, most = f"0x{value[:BYTES_SHOWN].hex()}", 2 + 2 * BYTES_SHOWN
        return text if len(value) <= BYTES_SHOWN else f"{text}... ({len(value)} bytes)"
    return text if len(text) <= most else f"{text[:most]}... ({len(value)} bytes)"


def _first_bytes(record: Record) -> str:
    """Show the first bytes of what could not be decoded: the header of ours, else the value."""
    data = next((value for name, value in record.headers if name == HEADER), record.value)
    return data[:BYTES_SHOWN].hex() or "none"
