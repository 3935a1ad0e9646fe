"""API keys: `fl_<id>_<secret>`, opaque, shown once; only a digest of the secret is stored.

The id finds the record (`schemas.records.ApiKey`), the secret proves. The secret has 256
random bits, so a plain fast hash is enough: there is nothing to guess that a slow one
would protect. Comparisons take the same time whatever differs.
"""

import hmac
import re
from collections.abc import Callable
from hashlib import blake2b

from schemas.records import VERSION, ApiKey

ID_BYTES = 8
SECRET_BYTES = 32
#: Longest text that is looked at as a key; ours have 84 characters.
KEY_CHARS_MAX = 128
#: Longest note of a key, so that a table of keys stays small in every ingress.
NOTE_CHARS_MAX = 200

_KEY = re.compile(rf"fl_([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


def new_key(random_bytes: Callable[[int], bytes]) -> str:
    """Make a key from a source of random bytes (`secrets.token_bytes`)."""
    return f"fl_{random_bytes(ID_BYTES).hex()}_{random_bytes(SECRET_BYTES).hex()}"


def parse(key: str) -> tuple[str, str] | None:
    """Cut a key into (id, secret); None when it is no key of ours."""
    found = _KEY.fullmatch(key) if len(key) <= KEY_CHARS_MAX else None
    return (found[1], found[2]) if found else None


def digest(secret: str) -> bytes:
    """Digest of a secret as stored: blake2b, 32 bytes."""
    return blake2b(secret.encode(), digest_size=32).digest()


def key_record(key: str, tenant: str, now_ms: int, note: str = "") -> ApiKey:
    """Record of a new key; raises ValueError for a text that is no key."""
    parts = parse(key)
    if parts is None:
        raise ValueError("no key of the form fl_<id>_<secret>")
    key_id, secret = parts
    return ApiKey(VERSION, key_id, tenant, digest(secret), now_ms, note=note)


def proves(record: ApiKey, secret: str) -> bool:
    """Tell whether the secret is the record's and the key is not revoked."""
    return hmac.compare_digest(record.digest, digest(secret)) and not record.revoked_ms
