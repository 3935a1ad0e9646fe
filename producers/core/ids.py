"""The id of a request: a hash of tenant, route and idempotency key.

One formula for every request. A caller that names no key gets a random one, and can read
it in the answer: so even then a request in doubt can be sent again under the same id. The
tenant is part of the hash: nobody can aim at another tenant's id.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

#: Where requests are sent: part of each id, whatever call it came by.
ROUTE = "/v1/requests"
#: Random bytes of a key that we make: 128 bits never meet again.
KEY_BYTES = 16
#: Longest Idempotency-Key; a UUID has 36 characters, a path or digest with a line number fits.
KEY_CHARS_MAX = 200

#: Longest x-request-id that is taken over; a UUID has 36 characters, trace ids up to 55.
CALL_CHARS_MAX = 128
#: Random bytes of one that we make.
CALL_BYTES = 16

#: An id is 16 bytes as base 32 without its padding, two digits at a time.
_ID_BYTES = 16
_DIGITS = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)
_PAIR = len(_PAIRS) - 1
_ID_PADDING = 130 - 8 * _ID_BYTES
_SHIFTS = tuple(range(120, -1, -10))

_ID = re.compile(r"req_[a-z2-7]{26}")
_KEY = re.compile(r"[\x21-\x7e]+")
_CALL = re.compile(r"[A-Za-z0-9._:/-]+")
#: A string of a structured field (RFC 9651), in which a backslash may stand before these two.
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")


def request_id(tenant: str, route: str, key: str) -> str:
    """Id of a request: `req_` and 128 bits in base 32."""
    hashed = blake2b(digest_size=_ID_BYTES)
    for part in (tenant, route, key):
        data = part.encode()
        hashed.update(len(data).to_bytes(4) + data)
    bits = int.from_bytes(hashed.digest()) << _ID_PADDING
    return "req_" + "".join([_PAIRS[bits >> shift & _PAIR] for shift in _SHIFTS])


def digest(fields: Mapping[str, msgspec.Raw]) -> str:
    """Digest of a request's fields: tells a repetition of a request from another of its key.

    Each field counts as it was written; their order does not, so that a request is the same
    as the body of a call and as a line of many.
    """
    hashed = blake2b(digest_size=16)
    for name in sorted(fields):
        for part in (memoryview(name.encode()), memoryview(fields[name])):
            hashed.update(len(part).to_bytes(4))
            hashed.update(part)
    return hashed.hexdigest()


def is_request_id(text: str) -> bool:
    """Whether the text has the form of an id; nothing else is ever looked up."""
    return _ID.fullmatch(text) is not None


def is_call_id(text: str) -> bool:
    """Whether a caller's x-request-id is taken over: nothing in it can harm a log or a key.

    One in the form of a request's id would be looked up as that.
    """
    is_harmless = len(text) <= CALL_CHARS_MAX and _CALL.fullmatch(text) is not None
    return is_harmless and not is_request_id(text)


def idempotency_key(field: str) -> str | None:
    """Read an Idempotency-Key header, quoted or bare; None when it is malformed."""
    key = field.strip()
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        key = _ESCAPED.sub(r"\1", quoted[1]) if quoted else ""
    return key if len(key) <= KEY_CHARS_MAX and _KEY.fullmatch(key) else None
