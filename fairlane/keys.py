"""API keys for operators: create, revoke, list. The key itself is returned once, never kept."""

import secrets
from collections.abc import Callable

import msgspec

from fairlane.errors import FairlaneError
from fairlane.publish import publish_key, published_keys, published_policy
from schemas.keys import NOTE_CHARS_MAX, key_record, new_key, parse
from schemas.log import Log
from schemas.policy_check import undefined
from schemas.records import ApiKey
from schemas.topics import Topics


class KeysError(FairlaneError):
    """What was asked of the keys can't be done; the message says why and what to do."""


def create(
    log: Log,
    topics: Topics,
    tenant: str,
    now_ms: int,
    note: str = "",
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> str:
    """Make and publish a key for a tenant of the published policy; returns the key.

    Raises KeysError when the policy has no such tenant or the note is too long.
    """
    policy = published_policy(log, topics)
    if policy is None:
        raise KeysError(
            f"no policy is published under {topics.prefix!r}: run `fairlane policy apply FILE`"
        )
    if policy.tenant(tenant) is None:
        raise KeysError(undefined("tenant", tenant, (t.name for t in policy.tenants)))
    if len(note) > NOTE_CHARS_MAX:
        raise KeysError(f"the note has {len(note)} characters; {NOTE_CHARS_MAX} are kept")
    key = new_key(random_bytes)
    publish_key(log, topics, key_record(key, tenant, now_ms, note))
    return key


def revoke(log: Log, topics: Topics, key_id: str, now_ms: int) -> ApiKey:
    """Revoke a key by its id (or by the key itself); returns its record.

    A key that is revoked already stays as it is. Raises KeysError for an unknown id.
    """
    parts = parse(key_id)
    wanted = parts[0] if parts else key_id.removeprefix("fl_")
    found = published_keys(log, topics).get(wanted)
    if found is None:
        raise KeysError(f"no key has the id {wanted!r}: `fairlane keys list` shows them")
    if found.revoked_ms:
        return found
    revoked = msgspec.structs.replace(found, revoked_ms=now_ms)
    publish_key(log, topics, revoked)
    return revoked
