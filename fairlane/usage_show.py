"""A report of use for people and for programs: table, CSV, JSON."""

import csv
import io
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from accounting.core.sums import GRACE_MS
from fairlane.usage_read import Behind, Row
from schemas.log import TRANSACTION_TIMEOUT_MS
from schemas.usage import UsageLost, Used, Window

#: Where a window's start is cut for people: a day needs no time, a month no day.
_FORMATS = {Window.DAY: "%Y-%m-%d", Window.MONTH: "%Y-%m"}
_FORMAT = "%Y-%m-%d %H:%M"
#: Lanes named one by one below a table.
_LANES_SHOWN = 5
#: Columns that are shown even if nothing is in them.
_ALWAYS = frozenset({"requests", "input", "output", "service s"})
#: Wider than any table of these columns.
_WIDTH_MAX = 1_000
_MS_PER_DAY = 86_400_000
#: A batch is told a while after it ended: its transaction may take that long, and clocks
#: differ. What takes longer than GRACE_MS is counted as late.
COUNTED_GRACE_MS = GRACE_MS + TRANSACTION_TIMEOUT_MS


class Report(NamedTuple):
    """What is shown. What ended before `counted_to_ms` is in it, but for what comes late."""

    window: Window
    from_ms: int
    to_ms: int
    rows: list[Row]
    behind: list[Behind]
    now_ms: int
    lost: list[UsageLost]

    @property
    def counted_to_ms(self) -> int:
        """Epoch milliseconds up to which all lanes are counted: some while before now."""
        since = min((lane.since_ms for lane in self.behind), default=self.now_ms)
        return min(since, self.now_ms) - COUNTED_GRACE_MS

    @property
    def total(self) -> Used:
        """All rows together."""
        return sum((row.used for row in self.rows), Used())


def iso(time_ms: int) -> str:
    """Write a time in UTC, to the millisecond only where it has some."""
    found = datetime.fromtimestamp(time_ms // 1_000, UTC)
    fraction = f".{time_ms % 1_000:03d}" if time_ms % 1_000 else ""
    return f"{found:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def used_as_dict(used: Used) -> dict[str, int]:
    """Fields of what was used, requests first."""
    fields = {name: getattr(used, name) for name in used.__struct_fields__}
    return {"requests": used.requests, **fields}


def row_as_dict(row: Row) -> dict[str, Any]:
    """One window as plain values."""
    return {
        "start": iso(row.start_ms),
        "end": iso(row.end_ms),
        "start_ms": row.start_ms,
        "tenant": row.tenant,
        "endpoint": row.endpoint,
        **used_as_dict(row.used),
        "batches": row.batches,
        "late": row.late,
    }


def lost_as_dict(lost: UsageLost) -> dict[str, Any]:
    """Offsets of a lane, from the first that is gone up to the first that is not."""
    names = ("pool", "lane", "from_offset", "to_offset", "noticed_ms")
    return {name: getattr(lost, name) for name in names}


def as_json(report: Report) -> str:
    """One JSON object: the windows, their total, and up to when they are counted."""
    found = {
        "by": report.window.value,
        "from": iso(report.from_ms),
        "to": iso(report.to_ms),
        "counted_to": iso(report.counted_to_ms),
        "counted_to_ms": report.counted_to_ms,
        "behind": [lane._asdict() for lane in report.behind],
        "lost": [lost_as_dict(lost) for lost in report.lost],
        "windows": [row_as_dict(row) for row in report.rows],
        "total": used_as_dict(report.total),
    }
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def as_csv(report: Report) -> str:
    """Header and one line a window."""
    names = list(row_as_dict(Row("", "", 0, 0, Used(), 0, 0)))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row_as_dict(row) for row in report.rows)
    return text.getvalue()


def print_table(report: Report) -> None:
    """Print for people; figures are never cut, columns of zeros left out."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_footer=bool(report.rows), pad_edge=False)
    totals = _numbers(report.total)
    names = [name for name, total in totals.items() if total != "0" or name in _ALWAYS]
    table.add_column(report.window.value, footer="total", no_wrap=True)
    table.add_column("tenant", no_wrap=True)
    table.add_column("endpoint", no_wrap=True)
    for name in names:
        table.add_column(name, footer=totals[name], justify="right", no_wrap=True)
    for row in report.rows:
        figures = _numbers(row.used)
        start = _start(report.window, row.start_ms)
        table.add_row(start, row.tenant, row.endpoint, *(figures[name] for name in names))
    if not report.rows:
        print(f"Nothing was used from {iso(report.from_ms)} to {iso(report.to_ms)}.")
        return
    console = Console()
    needed = console.measure(table, options=console.options.update(width=_WIDTH_MAX)).maximum
    Console(width=max(console.width, needed)).print(table)


def _start(window: Window, start_ms: int) -> str:
    return f"{datetime.fromtimestamp(start_ms // 1_000, UTC):{_FORMATS.get(window, _FORMAT)}}"


def _numbers(used: Used) -> dict[str, str]:
    """Columns of figures; how requests failed to succeed is one of them."""
    figures = {
        "requests": used.requests,
        "not served": used.requests - used.succeeded,
        "input": used.input_tokens,
        "cached": used.cached_tokens,
        "output": used.output_tokens,
        "reasoning": used.reasoning_tokens,
    }
    shown = {name: f"{number:,}" for name, number in figures.items()}
    return {**shown, "service s": f"{used.service_ms / 1_000:,.1f}"}


def remarks(report: Report, kept_ms: int | None) -> list[str]:
    """Lines below a table: up to when it is counted, which lanes are behind, what was lost."""
    counted_to = iso(report.counted_to_ms)
    if not report.behind:
        grace_s = COUNTED_GRACE_MS // 1_000
        lines = [f"Counted up to {counted_to}, {grace_s} s before now: younger may be on its way."]
    else:
        lanes = [_lane(lane) for lane in report.behind[:_LANES_SHOWN]]
        if len(report.behind) > _LANES_SHOWN:
            lanes.append(f"{len(report.behind) - _LANES_SHOWN} lanes more")
        lines = [f"Counted up to {counted_to}; not yet counted: {', '.join(lanes)}."]
    lines += [_loss(lost) for lost in report.lost]
    if kept_ms is not None and report.from_ms < report.now_ms - kept_ms:
        lines.append(
            f"Sums by {report.window.value} are kept for {kept_ms // _MS_PER_DAY} days; "
            "days and months stay."
        )
    return lines


def _lane(lane: Behind) -> str:
    number = f"{lane.batches:,}" if lane.is_exact else f"up to {lane.batches:,}"
    return f"{number} batches of {lane.pool}[{lane.lane}]"


def _loss(lost: UsageLost) -> str:
    noticed = f", noticed {iso(lost.noticed_ms)}" if lost.noticed_ms else ""
    return (
        f"LOST: up to {lost.to_offset - lost.from_offset:,} records of {lost.pool}[{lost.lane}] "
        f"were dropped by retention before they were counted{noticed}."
    )
