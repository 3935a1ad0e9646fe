"""Recorded traffic: a CSV of arrivals, read whole, and turned into requests.

The header is `arrival_ms,tenant,endpoint,input_tokens,output_tokens`; integers, arrivals in
order. A trace holds no text, so bodies are made up: JSON with the row's own output tokens
(which the simulated engine obeys), padded to the row's input tokens.

What belongs here: the format and its faults. What does not: policies and engines.
"""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from schemas.policy import NAME_PATTERN, NAME_RULE
from schemas.policy_check import BATCH_BYTES_MAX
from simulation.door import Arrival
from simulation.tenants import BYTES_PER_TOKEN
from workers.engines.simulated import OUTPUT_TOKENS_MAX

HEADER = ("arrival_ms", "tenant", "endpoint", "input_tokens", "output_tokens")
#: Some sources know no client: their rows belong to this tenant.
ANONYMOUS = "anonymous"
#: Longest trace: a week, as long as a log keeps requests.
ARRIVAL_MS_MAX = 7 * 24 * 3_600_000
#: The body of a request must fit in a batch.
INPUT_TOKENS_MAX = BATCH_BYTES_MAX // BYTES_PER_TOKEN
#: Faults shown at once; a file of another kind has one in each line.
FAULTS_MAX = 10

_INTEGERS = (
    ("arrival_ms", ARRIVAL_MS_MAX),
    ("input_tokens", INPUT_TOKENS_MAX),
    ("output_tokens", OUTPUT_TOKENS_MAX),
)


class TraceError(Exception):
    """The file is no trace; each line names a line of it and what would be right there."""


class Row(NamedTuple):
    """One request of a trace, `arrival_ms` after its beginning."""

    arrival_ms: int
    tenant: str
    endpoint: str
    input_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[Row]:
    """Read a trace whole.

    Raises:
        TraceError: it is unreadable, empty, or lines are wrong; the first ten are named.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} can't be read: {error}") from error
    if not lines or tuple(lines[0]) != HEADER:
        found = ",".join(lines[0]) if lines else ""
        raise TraceError(f"{path}:1: the header is {found!r}; it must be {','.join(HEADER)}")
    rows: list[Row] = []
    faults: list[str] = []
    for number, values in enumerate(lines[1:], start=2):
        found_faults, row = _row(values, rows[-1].arrival_ms if rows else 0)
        faults += [f"{path}:{number}: {fault}" for fault in found_faults]
        rows += [row] if row else []
    if faults:
        more = f"\n... and {len(faults) - FAULTS_MAX} more" if len(faults) > FAULTS_MAX else ""
        raise TraceError("\n".join(faults[:FAULTS_MAX]) + more)
    if not rows:
        raise TraceError(f"{path}: a header and no request below it")
    return rows


def _row(values: list[str], before_ms: int) -> tuple[list[str], Row | None]:
    if len(values) != len(HEADER):
        return [f"{len(values)} fields; there are {len(HEADER)}: {','.join(HEADER)}"], None
    fields = dict(zip(HEADER, values, strict=True))
    faults = [
        f"{name} is {fields[name]!r}; it must be an integer in 0..{most}"
        for name, most in _INTEGERS
        if not (fields[name].isascii() and fields[name].isdecimal() and int(fields[name]) <= most)
    ]
    tenant = fields["tenant"] or ANONYMOUS
    for name, value in (("tenant", tenant), ("endpoint", fields["endpoint"])):
        if not re.fullmatch(NAME_PATTERN, value):
            faults.append(f"{name} {value!r} is not valid: {NAME_RULE}")
    if faults:
        return faults, None
    row = Row(
        int(fields["arrival_ms"]),
        tenant,
        fields["endpoint"],
        int(fields["input_tokens"]),
        int(fields["output_tokens"]),
    )
    if row.arrival_ms < before_ms:
        return [f"arrival_ms is {row.arrival_ms}, before the line above ({before_ms})"], None
    return [], row


def body_of(row: Row) -> bytes:
    """A body that the simulated engine counts as the row says.

    JSON needs five or six tokens for itself: a row with fewer has a body of that many.
    """
    size = BYTES_PER_TOKEN * row.input_tokens
    said = b'{"output_tokens":%d' % row.output_tokens
    padding = size - len(said) - len(b',"input":""}')
    if padding >= 0:
        return said + b',"input":"' + b"x" * padding + b'"}'
    return said.ljust(size - 1) + b"}"


def arrivals_of(rows: Iterable[Row], tier: str) -> list[Arrival]:
    """The rows as requests of one tier, at their own times.

    A caller doesn't know how long an answer will be: each allows the next power of two.
    """
    return [
        Arrival(
            row.arrival_ms,
            row.tenant,
            row.endpoint,
            tier,
            body_of(row),
            output_tokens_max=1 << max(0, row.output_tokens - 1).bit_length(),
        )
        for row in rows
    ]
