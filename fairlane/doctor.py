"""`fairlane doctor`: what is there, what is missing, what to do."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fairlane.doctor_checks import Check, State, judge
from fairlane.doctor_probes import look

#: Names are padded to this, so that what was found stands in a column.
_NAME_CHARS = 22


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what is present, what is missing and what to do; exit 1 when something is missing."""
    checks = judge(look(os.environ, Path.cwd()))
    print(as_object(checks) if as_json else as_text(checks))
    if not is_well(checks):
        raise typer.Exit(1)


def is_well(checks: Sequence[Check]) -> bool:
    """Whether all that is needed is there; warnings are no reason not to work."""
    return not any(check.state is State.MISSING for check in checks)


def as_object(checks: Sequence[Check]) -> str:
    """One JSON object: `ok`, and `checks` as a list."""
    found = {"ok": is_well(checks), "checks": [check._asdict() for check in checks]}
    return json.dumps(found, indent=1)


def as_text(checks: Sequence[Check]) -> str:
    """The checks by group, what to do below each that is not well, and a last line."""
    lines: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            lines.append(group)
        lines.append(f"  {check.state:8} {check.name:{_NAME_CHARS}} {check.found}")
        if check.advice:
            lines.append(f"  {'':8} {'':{_NAME_CHARS}} -> {check.advice}")
    return "\n".join([*lines, "", _summary(checks)])


def _summary(checks: Sequence[Check]) -> str:
    counts = [
        f"{sum(check.state is state for check in checks)} {state}"
        for state in State
        if any(check.state is state for check in checks)
    ]
    verdict = "all that is needed is there" if is_well(checks) else "something is missing"
    return f"{verdict}: {', '.join(counts)}"
