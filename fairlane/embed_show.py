"""How far `fairlane embed` is: a bar on a terminal, a line now and then in a pipe."""

import time
from collections import deque
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
)
from rich.text import Text

#: Seconds between two lines in a pipe, and with nothing new to tell.
LINE_S, WAITING_S = 5.0, 10.0
#: The rate is that of the rows embedded within so many seconds.
WINDOW_S = 60.0
#: Looks at the count are kept for the rate when so far apart.
_APART_S = 0.5


class _Pace:
    """Rows embedded a second, of late: rows that are passed over at the start say nothing."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self.rate = 0.0

    def look(self, now_s: float, embedded: int) -> None:
        """So many are embedded by now."""
        looks = self._looks
        if looks and not looks[-1][1] == looks[0][1] == embedded:
            while len(looks) > 1 and looks[1][0] <= now_s - WINDOW_S:
                looks.popleft()
            passed_s = now_s - looks[0][0]
            self.rate = (embedded - looks[0][1]) / passed_s if passed_s > 0 else 0.0
            if now_s - looks[-1][0] >= _APART_S:
                looks.append((now_s, embedded))
        else:  # the window begins with the first row
            looks.clear()
            looks.append((now_s, embedded))
            self.rate = 0.0

    def left(self, rows: int) -> str:
        """How long so many rows take; empty when nobody knows."""
        return _clock(rows / self.rate) if self.rate and rows > 0 else ""


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        rate = task.fields["pace"].rate
        return Text(f"{rate:,.0f}/s" if rate else "-/s", style="progress.data.speed")


class _Left(ProgressColumn):
    """Time that is left."""

    def render(self, task: Task) -> Text:
        left = task.fields["pace"].left(round(task.remaining or 0))
        return Text(left or "-:--", style="progress.remaining")


class TerminalShow:
    """A bar that moves."""

    def __init__(
        self, console: Console, name: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`now_s` is handed in by tests."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            _Left(),
            console=console,
        )
        self._pace, self._now_s = _Pace(), now_s
        self._task = self._progress.add_task(name, total=None, pace=self._pace)
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

    def rows(self, done: int, failed: int, embedded: int, waits_for: str) -> None:
        """So many rows are done; see `fairlane.embed_parts.Show`."""
        self._pace.look(self._now_s(), embedded)
        name = f"{self._name}, {failed:,} failed" if failed else self._name
        name += f", waiting for {waits_for}" if waits_for else ""
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
        self._pace = _Pace()
        self._told = (0, 0)
        self._told_s = now_s()

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
        self._told_s = self._now_s()

    def rows(self, done: int, failed: int, embedded: int, waits_for: str) -> None:
        """A line, not too often: so many rows are done; see `fairlane.embed_parts.Show`."""
        now_s = self._now_s()
        self._pace.look(now_s, embedded)
        is_new = (done, failed) != self._told
        if now_s - self._told_s < (LINE_S if is_new else WAITING_S):
            return
        self._told, self._told_s = (done, failed), now_s
        facts = [f"{done:,} of {self._total:,} rows"]
        if self._pace.rate:
            facts.append(f"{self._pace.rate:,.0f}/s")
        if left := self._pace.left(self._total - done):
            facts.append(f"{left} left")
        if failed:
            facts.append(f"{failed:,} failed")
        if waits_for or not is_new:
            facts.append(f"waiting for {waits_for or 'answers'}")
        self._write(", ".join(facts))

    def say(self, text: str) -> None:
        """A line."""
        self._write(text)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
