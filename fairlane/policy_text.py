"""A policy as the TOML document that says the same, for `fairlane policy show`."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.policy import Policy


def to_toml(policy: Policy) -> str:
    """Document of a policy; parsing it gives the policy again, but for the version."""
    lines = [f"# version {policy.version}", ""]
    lines += ["[topology]", *_fields(policy.topology), ""]
    for section in ("tiers", "pools", "endpoints", "tenants"):
        for item in getattr(policy, section):
            lines += [f"[[{section}]]", *_fields(item), ""]
    return "\n".join(lines)


def _fields(item: msgspec.Struct) -> Iterator[str]:
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if value not in (None, "", {}):
            yield f"{name} = {_value(value)}"


def _value(value: Any) -> str:
    """TOML of a value; names hold no character that needs more than JSON's quoting."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
