"""Fairlane's processes as an operator starts them, for tests that stop and kill them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Longer than any condition takes on a machine that is busy with other suites.
DEADLINE_S = 60.0
_LOOK_S = 0.02


def until(is_so: Callable[[], object], what: str) -> None:
    """Wait for a condition; fails with `what` when it doesn't come."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for: {what}"
        time.sleep(_LOOK_S)


class FairlaneProcess:
    """One service in its own process; what it notes stands in a file."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str], *arguments: str) -> None:
        self.name = name
        self._notes = folder / f"{name}-{time.monotonic_ns()}.log"
        with self._notes.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlane", *arguments],
                env={**os.environ, **env},
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
            )

    def notes(self) -> list[dict[str, Any]]:
        """What it noted so far; lines that are no notes are left out."""
        lines = self.text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def text(self) -> str:
        """All that it wrote, for messages."""
        return self._notes.read_text()

    def noted(self, event: str) -> dict[str, Any] | None:
        """First note of an event; None when there is none yet."""
        return next((note for note in self.notes() if note["event"] == event), None)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for a note, but no longer than the process lives."""

        def is_there() -> bool:
            assert self.process.poll() is None, f"{self.name} ended: {self.text()}"
            return self.noted(event) is not None

        until(is_there, f"{self.name} notes {event!r}")
        note = self.noted(event)
        assert note is not None
        return note

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


class Processes:
    """Starts processes of one deployment and kills at last what still runs."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self._started: list[FairlaneProcess] = []

    def start(self, *arguments: str) -> FairlaneProcess:
        """Start `fairlane ARGUMENTS`."""
        process = FairlaneProcess(arguments[0], self._folder, self._env, *arguments)
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill what still runs, however the test ended."""
        for started in self._started:
            if started.process.poll() is None:
                started.process.kill()
            started.process.wait(DEADLINE_S)
