"""A policy document (TOML) to a `Policy`, with every fault at once.

Three kinds of faults, merged: syntax (alone, with its line), structure (unknown fields,
wrong types, what is missing; found here by walking the declared Structs) and meaning
(`schemas.policy_check`). To tell all at once, a faulty field is replaced by a stand-in
while the meaning is checked, and what the check says about a stand-in is left out.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, inspect

from schemas.policy import TEXT_BYTES_MAX, Policy, PolicyError
from schemas.policy_check import faults, label

#: Largest document that is read: as much as a policy may have unpacked.
FILE_BYTES_MAX = TEXT_BYTES_MAX

#: Integers of a document have 64 bits and a sign.
_INTEGERS = 1 << 63

_TOML_WORDS = {str: "a string", int: "an integer", bool: "true or false", float: "a fraction"}


def load(path: Path) -> Policy:
    """Read and check a policy file; raises PolicyError with every fault."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PolicyError([f"{path}: larger than {FILE_BYTES_MAX} bytes: no policy is"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError([f"{path}: can't be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise PolicyError([f"{path}: is no UTF-8 text: {error}"]) from error
    return parse(text, str(path))


def parse(text: str, source: str = "policy") -> Policy:
    """Parse and check a document; raises PolicyError with every fault."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a figure of thousands of digits
        raise PolicyError([f"{source}: no valid TOML: {error}"]) from error
    walk = _Walk()
    policy: Policy = walk.struct(Policy, document, "")
    found = walk.faults
    found += [fault.text for fault in faults(policy) if not walk.is_stand_in(fault.path)]
    if found:
        raise PolicyError(found)
    return policy


class _Walk:
    """One pass over a document: builds Structs, collects faults and where stand-ins are."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._stand_ins: set[str] = set()

    def is_stand_in(self, path: str) -> bool:
        """Tell whether the path, or what holds it, was replaced."""
        return any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in self._stand_ins)

    def struct(self, kind: type[Struct], table: dict[str, Any], path: str) -> Any:
        """Build a Struct of the table; unknown and missing fields become faults."""
        name = table.get("name")
        place = label(path, name if isinstance(name, str) else "") or "policy"
        fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
        for unknown in [key for key in table if key not in fields or not _is_given(kind, key)]:
            self._unknown(place, unknown, [key for key in fields if _is_given(kind, key)])
        values: dict[str, Any] = {}
        for key, declared in fields.items():
            inner = f"{path}.{key}" if path else key
            if key in table and _is_given(kind, key):
                has_default = not declared.required
                value = self._value(inspect.type_info(declared.type), table[key], inner, place)
                if value is not None:
                    values[key] = value
                elif not has_default:
                    values[key] = _stand_in(inspect.type_info(declared.type))
            elif declared.required:
                if not _is_list_of_tables(declared.type):
                    self._fault(inner, f"{place}: {key} is missing")
                values[key] = _stand_in(inspect.type_info(declared.type))
        return kind(**values)

    def _fault(self, path: str, text: str) -> None:
        self.faults.append(text)
        self._stand_ins.add(path)

    def _unknown(self, place: str, name: str, known: list[str]) -> None:
        if place == "policy" and name == "version":
            self.faults.append("policy: version is counted when it is applied; leave it out")
            return
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known are: {', '.join(known)}"
        self.faults.append(f'{place}: unknown field "{name}"; {hint}')

    def _value(self, kind: inspect.Type, value: Any, path: str, place: str) -> Any:
        """Convert one field; None when it has a fault (no field of a document is None)."""
        converted: Any = None
        match kind:
            case inspect.StructType(cls=cls) if isinstance(value, dict):
                converted = self.struct(cls, value, path)
            case inspect.VarTupleType(item_type=item) if isinstance(value, list):
                converted = self._items(item, value, path, place)
            case inspect.DictType(value_type=item) if isinstance(value, dict):
                inner = {k: self._value(item, v, f"{path}.{k}", place) for k, v in value.items()}
                converted = {k: v for k, v in inner.items() if v is not None}
            case inspect.EnumType(cls=cls) if isinstance(value, str):
                converted = self._enum(cls, value, path, place)
            case inspect.UnionType(types=types):
                converted = self._value(types[0], value, path, place)
            case inspect.StrType() if isinstance(value, str):
                converted = value
            case inspect.IntType() if _is_integer(value):
                converted = value
            case _:
                is_wrong = f"{_short(path)} is {_shown(value)}; it must be {_wanted(kind)}"
                self._fault(path, f"{place}: {is_wrong}")
        return converted

    def _items(self, kind: inspect.Type, value: list[Any], path: str, place: str) -> Any:
        items = [
            self._value(kind, item, f"{path}[{index}]", place) for index, item in enumerate(value)
        ]
        kept = tuple(item for item in items if item is not None)
        if value and not kept:
            self._stand_ins.add(path)
        return kept

    def _enum(self, kind: type[Any], value: str, path: str, place: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            words = [str(member.value) for member in kind]
            near = difflib.get_close_matches(value, words, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            text = f'{place}: {_short(path)} "{value}" is not known; one of: {", ".join(words)}'
            self._fault(path, text + hint)
            return None


def _is_given(kind: type[Struct], field: str) -> bool:
    """Tell whether a document may hold the field: `version` is counted, never given."""
    return not (kind is Policy and field == "version")


def _is_list_of_tables(kind: Any) -> bool:
    """Tell whether an absent field is an empty section, which the check reports itself."""
    info = inspect.type_info(kind)
    return isinstance(info, inspect.VarTupleType) and isinstance(info.item_type, inspect.StructType)


def _is_integer(value: Any) -> bool:
    """Tell whether it is one that TOML and other languages can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INTEGERS


def _stand_in(kind: inspect.Type) -> Any:
    return () if isinstance(kind, inspect.VarTupleType) else ""


def _short(path: str) -> str:
    """Field of a path, with what stands below it: `tenants[1].tiers[0]` -> `tiers[0]`."""
    parts = path.split(".")
    return ".".join(parts[1:]) if len(parts) > 1 else path


def _shown(value: Any) -> str:
    """Value as a person wrote it, and what it is: `"8"` (a string)."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, int) and abs(value) >= _INTEGERS:
        return "beyond 64 bits"
    word = _TOML_WORDS.get(type(value), "a date or time")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}" ({word})' if isinstance(value, str) else f"{text} ({word})"


def _wanted(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            wanted = _wanted(types[0])
        case inspect.EnumType(cls=cls):
            wanted = f"one of: {', '.join(str(member.value) for member in cls)}"
        case inspect.VarTupleType(item_type=inspect.StructType()):
            wanted = "an array of tables, [[...]]"
        case inspect.VarTupleType(item_type=item):
            wanted = f"an array, each {_wanted(item)}"
        case inspect.IntType():
            wanted = "an integer"
        case inspect.StrType():
            wanted = "a string"
        case _:
            wanted = "a table"
    return wanted
