"""One verdict of the doctor: its state, what was found, what to do."""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """What a check says. MISSING alone keeps a deployment from working."""

    OK = "ok"
    WARN = "warn"  # works, but not as it should, or not all of it
    MISSING = "missing"  # needed, and not there or not right
    UNKNOWN = "unknown"  # could not be looked at


class Check(NamedTuple):
    """One check: `advice` says what to do, empty when nothing is."""

    group: str
    name: str
    state: State
    found: str
    advice: str = ""


def ok(group: str, name: str, found: str) -> Check:
    """All is well."""
    return Check(group, name, State.OK, found)


def warn(group: str, name: str, found: str, advice: str) -> Check:
    """It works, but not as it should."""
    return Check(group, name, State.WARN, found, advice)


def missing(group: str, name: str, found: str, advice: str) -> Check:
    """It doesn't work without."""
    return Check(group, name, State.MISSING, found, advice)


def unknown(group: str, name: str, found: str, advice: str) -> Check:
    """It could not be looked at."""
    return Check(group, name, State.UNKNOWN, found, advice)
