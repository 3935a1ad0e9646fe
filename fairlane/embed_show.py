"""How far `fairlane embed` is: a bar on a terminal, a line now and then in a pipe."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

#: Seconds between two lines in a pipe.
LINE_S = 5.0


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "-/s", style="progress.data.speed")


class TerminalShow:
    """A bar that moves."""

    def __init__(self, console: Console, name: str) -> None:
        """Nothing is drawn before `begin`."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(name, total=None)
        self._name = name

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, total: int) -> None:
        """There are about so many rows."""
        self._progress.update(self._task, total=total)

    def rows(self, done: int, failed: int) -> None:
        """So many rows are done, of them so many failed."""
        name = f"{self._name}, {failed:,} failed" if failed else self._name
        self._progress.update(self._task, completed=done, description=name)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class PlainShow:
    """Lines without control codes."""

    def __init__(
        self, write: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`write` takes a line; `now_s` is handed in by tests."""
        self._write, self._now_s = write, now_s
        self._total = 0
        self._began_s = self._told_s = now_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def begin(self, total: int) -> None:
        """There are about so many rows."""
        self._total = total
        self._began_s = self._told_s = self._now_s()

    def rows(self, done: int, failed: int) -> None:
        """A line, not too often: so many rows are done, of them so many failed."""
        now_s = self._now_s()
        if now_s - self._told_s < LINE_S:
            return
        self._told_s = now_s
        rate = done / (now_s - self._began_s)
        left_s = (self._total - done) / rate if rate else 0.0
        line = f"{done:,} of {self._total:,} rows, {rate:,.0f}/s"
        if rate and left_s > 0:
            line += f", {_clock(left_s)} left"
        self._write(line + (f", {failed:,} failed" if failed else ""))

    def say(self, text: str) -> None:
        """A line."""
        self._write(text)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
