"""`fairlane usage`: who used what, as a table, CSV or JSON."""

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from accounting.core.sums import KEPT_MS
from accounting.core.windows import bounds
from fairlane.errors import FairlaneError
from fairlane.usage_read import read, rows
from fairlane.usage_show import Report, as_csv, as_json, print_table, remarks
from schemas.codec import DecodeError
from schemas.usage import Window

#: Kinds of windows that are asked for by name.
KINDS = (Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH)


class UsageError(FairlaneError):
    """What was asked can't be answered; the message says what can."""


def parse_time(text: str, option: str) -> int:
    """Epoch milliseconds of `2026-11-30` or `2026-11-30T14:00`, in UTC unless it says else.

    Raises UsageError.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} is no time: write 2026-11-30 or 2026-11-30T14:00 (UTC)"
        ) from error
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return int(found.timestamp()) * 1_000


def span(window: Window, from_text: str, to_text: str, now_ms: int) -> tuple[int, int]:
    """[from, to) in epoch milliseconds; by default from this month's start to the end of now.

    Raises UsageError when an end is not the start of a window of the kind.
    """
    from_ms = (
        parse_time(from_text, "--from") if from_text else bounds(Window.MONTH, now_ms).start_ms
    )
    to_ms = parse_time(to_text, "--to") if to_text else bounds(window, now_ms).end_ms
    for option, text, time_ms in (("--from", from_text, from_ms), ("--to", to_text, to_ms)):
        start_ms = bounds(window, time_ms).start_ms
        if start_ms != time_ms:
            finer = ", ".join(k.value for k in KINDS if bounds(k, time_ms).start_ms == time_ms)
            raise UsageError(
                f"{option} {text} is no beginning of a {window.value}, which is summed as a whole: "
                f"give its start, {shown(start_ms)}"
                + (f", or --by {finer}" if finer else "; nothing finer than a minute is kept")
            )
    if to_ms <= from_ms:
        raise UsageError(f"--to {shown(to_ms)} is not after --from {shown(from_ms)}")
    return from_ms, to_ms


def shown(time_ms: int) -> str:
    """Write a time to the minute, as the options take it."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M}"


def command(
    tenant: Annotated[
        list[str] | None, typer.Option(help="Only this tenant; may be given again.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Only this endpoint; may be given again.")
    ] = None,
    from_: Annotated[
        str, typer.Option("--from", help="First window: 2026-11-30 or 2026-11-30T14:00, UTC.")
    ] = "",
    to: Annotated[str, typer.Option(help="First window no longer shown.")] = "",
    by: Annotated[str, typer.Option(help="minute, hour, day or month.")] = Window.DAY.value,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what tenants used, by minute, hour, day or month of UTC.

    By default from the beginning of this month on.
    """
    if csv and json:
        raise UsageError("--csv and --json exclude each other")
    if by not in {kind.value for kind in KINDS}:
        raise UsageError(f"--by {by!r} is none of {', '.join(kind.value for kind in KINDS)}")
    window = Window(by)
    now_ms = time.time_ns() // 1_000_000
    from_ms, to_ms = span(window, from_, to, now_ms)
    report = _report(window, from_ms, to_ms, frozenset(tenant or ()), frozenset(endpoint or ()))
    if json:
        print(as_json(report))
        return
    if csv:
        print(as_csv(report), end="")
    else:
        print_table(report)
    for line in remarks(report, KEPT_MS.get(window)):
        print(line, file=sys.stderr if csv else sys.stdout)


def _report(
    window: Window, from_ms: int, to_ms: int, tenants: frozenset[str], endpoints: frozenset[str]
) -> Report:
    from fairlane.cli_connect import connected

    now_ms = time.time_ns() // 1_000_000
    with connected() as (log, topics):
        try:
            counted = read(log, topics)
        except DecodeError as error:
            raise UsageError(str(error)) from error
    if not counted.is_begun:
        raise UsageError(
            f"nothing is counted under {topics.prefix!r} yet: run `fairlane accounting`"
        )
    found = rows(counted.sums, window, from_ms, to_ms, tenants, endpoints)
    return Report(window, from_ms, to_ms, found, counted.behind, now_ms, counted.lost)
