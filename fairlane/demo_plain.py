"""The demo for a pipe, a log or a program: lines of text, or nothing until the JSON.

No colours, no control codes, no waiting.
"""

import json
import sys
from typing import TextIO

from rich.console import Console

from fairlane.demo_play import Frame
from fairlane.demo_report import Report, document, seconds
from fairlane.demo_scene import Scene
from fairlane.demo_screen import BAR, end_lines
from fairlane.demo_tally import Tally

#: A line of figures each so often, in the run's own time.
LINE_MS = 2_000
_WIDTH = 100


class PlainShow:
    """Writes lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._scene: Scene | None = None
        self._next_ms = 0

    def begin(self, scene: Scene) -> None:
        """Say what is played."""
        self._scene = scene
        self.say(f"Fairlane: {scene.title}")

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=self._out, flush=True)

    def frame(self, tally: Tally, now_ms: int) -> None:
        """A line of figures, not too often."""
        if now_ms < self._next_ms or self._scene is None:
            return
        self._next_ms = now_ms - now_ms % LINE_MS + LINE_MS
        service_ms = tally.longest_service_ms()
        told = [name for name in (self._scene.heavy, self._scene.light) if name]
        facts = [
            f"{name} {tenant.ended:,} of {len(tenant.arrived_ms):,}, longest wait "
            f"{seconds(tenant.longest_wait_ms(now_ms, service_ms))}"
            for name, tenant in tally.tenants.items()
            if name in told
        ]
        total = f"served {tally.ended_count:,} of {tally.asked_count:,}"
        self.say("; ".join([f"{now_ms / 1000:6.1f} s  {total}", *facts]))

    def control(self, name: str, requests: int) -> Frame:
        """Say what runs next."""
        self.say(f"the same traffic, {name}: {requests:,} requests")
        return lambda _tally, _now_ms: None

    def report(self, report: Report) -> None:
        """The end, side by side, as text."""
        console = Console(
            file=self._out, force_terminal=False, color_system=None, no_color=True, width=_WIDTH
        )
        can_draw = console.encoding.startswith("utf")
        for line in end_lines(report, _WIDTH):
            console.print(line.plain if can_draw else line.plain.replace(BAR, "="), markup=False)

    def stopped(self) -> None:
        """Somebody ended it early."""
        self.say("stopped")

    def close(self) -> None:
        """Nothing to give back."""


class JsonShow(PlainShow):
    """Writes one JSON object at the end; `say` goes to stderr."""

    def begin(self, scene: Scene) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """A line beside the object."""
        print(text, file=sys.stderr, flush=True)

    def frame(self, tally: Tally, now_ms: int) -> None:
        """Nothing."""

    def control(self, name: str, requests: int) -> Frame:
        """Nothing."""
        del name, requests
        return lambda _tally, _now_ms: None

    def report(self, report: Report) -> None:
        """The object."""
        print(json.dumps(document(report)), file=self._out, flush=True)
