"""The demo for a person at a terminal: a live table, progress, and the end side by side.

What belongs here: how figures look. What does not: any figure.
"""

from collections.abc import Iterator
from textwrap import wrap

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairlane.demo_play import Frame
from fairlane.demo_report import Report, figure, seconds, verdict
from fairlane.demo_scene import Scene
from fairlane.demo_tally import Tally, TenantTally, Waits

LIGHT_STYLE, LATE_STYLE, HEAVY_STYLE, QUIET = "bold green", "bold red", "yellow", "bright_black"
#: What bars are made of, here and in the library.
BAR = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"
_TRACK = "grey23"
#: Lines of the live screen that are no tenant.
_LINES_AROUND = 10
#: Columns of the live table beside its bar.
_LIVE_COLUMNS = 70
_BAR_WIDTH_MAX = 40
#: The text is not wider than this, however wide the terminal.
_WIDTH_MAX = 110
#: How long batches count for the fill shown, milliseconds.
_FILL_WINDOW_MS = 2_000


class TerminalShow:
    """Draws on a terminal; `close` leaves it as it was, at any point."""

    def __init__(self, console: Console, speed: float) -> None:
        self._console = console
        self._speed = speed
        self._scene: Scene | None = None
        self._live: Live | None = None
        self._progress: Progress | None = None

    def begin(self, scene: Scene) -> None:
        """Show the first, empty table."""
        self._scene = scene
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(f" {text}", style=QUIET))

    def frame(self, tally: Tally, now_ms: int) -> None:
        """Draw the figures as they are."""
        if self._live and self._scene:
            page = live_page(self._scene, tally, now_ms, self._speed, self._console)
            self._live.update(page, refresh=True)

    def control(self, name: str, requests: int) -> Frame:
        """Begin a control of so many requests; returns what is called as it goes."""
        self._stop_live()
        if self._progress is None:
            self._progress = Progress(
                TextColumn(" {task.description}", style=QUIET),
                BarColumn(_BAR_WIDTH_MAX, _TRACK, "white", "white"),
                TextColumn("{task.percentage:>3.0f} %", style=QUIET),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        progress = self._progress
        task = progress.add_task(f"the same traffic, {name:20}", total=requests)
        return lambda tally, _now_ms: progress.update(task, completed=tally.ended_count)

    def report(self, report: Report) -> None:
        """Show the end, side by side."""
        self.close()
        for line in end_lines(report, min(self._console.width, _WIDTH_MAX)):
            self._console.print(line)

    def stopped(self) -> None:
        """Somebody ended it early."""
        self.close()
        self._console.print(Text(" stopped", style=QUIET))

    def close(self) -> None:
        """Give the terminal back."""
        self._stop_live()
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _stop_live(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


# --- while it runs


def live_page(
    scene: Scene, tally: Tally, now_ms: int, speed: float, console: Console
) -> RenderableType:
    """The live screen: what happens, how fast, and a line for each tenant."""
    width = min(console.width, _WIDTH_MAX)
    page = Group(
        Text(),
        Text.assemble(("Fairlane  ", "bold"), scene.title),
        Text(),
        _pulse(scene, tally, now_ms, speed),
        Text(),
        _tenants(scene, tally, now_ms, width - _LIVE_COLUMNS, console.height - _LINES_AROUND),
        Text(),
        Text(_caption(scene, tally), style=QUIET),
    )
    return Padding(page, (0, 1))


def _caption(scene: Scene, tally: Tally) -> str:
    """What a guide would say now."""
    if not scene.light:
        return ""
    heavy, light = tally.tenants[scene.heavy], tally.tenants[scene.light]
    if not heavy.arrived_ms:
        return "Everybody's usual traffic."
    if not heavy.waiting:
        return f"The burst is served. {scene.heavy} waited behind itself."
    if light.waiting or not light.arrived_ms:
        return f"{scene.heavy}'s burst is here, and {scene.light}'s few come just behind it."
    return (
        f"{scene.light} is served: its slowest waited {seconds(light.longest_ms)}. "
        f"{scene.heavy} waits behind itself."
    )


def _pulse(scene: Scene, tally: Tally, now_ms: int, speed: float) -> RenderableType:
    batch_requests = scene.policy.endpoints[0].batch_requests
    fill = tally.fill(now_ms - _FILL_WINDOW_MS, now_ms + 1, batch_requests)
    line = Table.grid(padding=(0, 3))
    clock = f"{now_ms / 1000:5.1f} s" + (f"  x{speed:g}" if speed != 1 else "")
    line.add_row(
        Text(clock, style="bold"),
        f"{tally.per_second(now_ms):5,} served/s",
        f"batches {100 * fill:3.0f} % full" if batch_requests > 1 else "",
        _bar(tally.ended_count, len(scene.arrivals), 22, QUIET),
    )
    return line


def _tenants(scene: Scene, tally: Tally, now_ms: int, bar: int, lines: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET, pad_edge=False)
    for name in ("tier", "tenant"):
        table.add_column(name)
    for name in ("weight", "asked", "served", "waiting", "longest wait"):
        table.add_column(name, justify="right", min_width=6)
    table.add_column("served of asked" if bar >= len("served of asked") else "done")
    shown = list(tally.tenants.values())
    hidden = max(0, len(shown) - max(1, lines)) if len(shown) > lines else 0
    if hidden:
        hidden += 1
        shown = sorted(shown, key=lambda tenant: -len(tenant.arrived_ms))[: len(shown) - hidden]
    tier = ""
    for tenant in shown:
        name = "" if tenant.tier == tier else tenant.tier
        tier = tenant.tier
        table.add_row(*_tenant(scene, tally, tenant, now_ms, name, bar))
    if hidden:
        table.add_row("", Text(f"and {hidden} more", style=QUIET))
    return table


def _tenant(
    scene: Scene, tally: Tally, tenant: TenantTally, now_ms: int, tier: str, bar: int
) -> Iterator[RenderableType]:
    style = _style(scene, tenant.name)
    asked, served = len(tenant.arrived_ms), tenant.ended
    longest_ms = tenant.longest_wait_ms(now_ms, tally.longest_service_ms())
    yield Text(tier, style=QUIET)
    yield Text(tenant.name, style=style)
    yield Text(str(tenant.weight), style=QUIET)
    yield Text(f"{asked:,}", style=style)
    yield Text(f"{served:,}", style=style)
    yield Text(f"{tenant.waiting:,}", style=style if tenant.waiting else QUIET)
    yield Text(seconds(longest_ms) if asked else "", style=style)
    yield _bar(served, asked, max(6, min(bar, _BAR_WIDTH_MAX)), style or "white")


def _bar(done: int, total: int, width: int, style: str) -> ProgressBar:
    return ProgressBar(
        total=max(1, total),
        completed=done,
        width=width,
        style=_TRACK,
        complete_style=style,
        finished_style=style,
    )


def _style(scene: Scene, tenant: str) -> str:
    return {scene.light: LIGHT_STYLE, scene.heavy: HEAVY_STYLE}.get(tenant, "")


# --- the end


def end_lines(report: Report, width: int) -> list[Text]:
    """Each tenant's waits in every run, the light one's slowest, and what happened."""
    cell = max(5, min(7, (width - 14) // (4 * len(report.runs)) - 1))
    lines = [Text(), _title(report), Text(), *_head(report, cell)]
    tier = ""
    for tenant in report.fairlane.tenants.values():
        if tenant.tier != tier and len(report.scene.policy.tiers) > 1:
            lines.append(Text(f" {tenant.tier}", style=QUIET))
        tier = tenant.tier
        lines.append(_row(report, tenant.name, cell))
    if report.scene.light:
        lines += [Text(), *_slowest(report, width)]
    first, *others = verdict(report)
    lines += [Text(), *_wrapped(first, width, "bold")]
    for other in others:
        lines += _wrapped(other, width, QUIET)
    return [*lines, Text()]


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    return [Text(f" {line}", style=style) for line in wrap(text, width - 2)]


def _title(report: Report) -> Text:
    return Text.assemble(
        (" Fairlane  ", "bold"),
        report.scene.title,
        ("  Waits in seconds.", QUIET),
    )


def _head(report: Report, cell: int) -> list[Text]:
    names, figures = Text(" " * 10), Text(" tenant   ", style=QUIET)
    for name in report.runs:
        names.append("   ")
        names.append(f"{name:^{4 * cell}}", style="bold" if name == "Fairlane" else "")
        figures.append("   " + "".join(f"{p:>{cell}}" for p in Waits._fields))
    return [names, figures]


def _row(report: Report, tenant: str, cell: int) -> Text:
    style = _style(report.scene, tenant)
    line = Text(f"  {tenant[:8]:8}", style=style)
    for name, tally in report.runs.items():
        line.append("   ")
        for percentile, wait_ms in tally.waits(tenant)._asdict().items():
            mark = _mark(report, tenant, name) if percentile == "max" else ""
            line.append(f"{figure(wait_ms):>{cell}}", style=mark or style)
    return line


def _mark(report: Report, tenant: str, run: str) -> str:
    """The figure that the story is about."""
    if tenant != report.scene.light:
        return ""
    return LIGHT_STYLE if run == "Fairlane" else LATE_STYLE


def _slowest(report: Report, width: int) -> Iterator[Text]:
    count = len(report.fairlane.tenants[report.scene.light].arrived_ms)
    longest_ms = max(1, *(report.slowest_ms(tally) for tally in report.runs.values()))
    yield Text(f" {report.scene.light}'s slowest of {count}", style=LIGHT_STYLE)
    for name, tally in report.runs.items():
        wait_ms = report.slowest_ms(tally)
        bar = BAR * max(1, (width - 25) * wait_ms // longest_ms)
        style = LIGHT_STYLE if name == "Fairlane" else LATE_STYLE
        yield Text.assemble(f"  {name:10} {seconds(wait_ms):>8}  ", (bar, style))
