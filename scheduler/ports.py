"""What the scheduler needs from outside, beside the log (schemas.log)."""

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""


class Meter(Protocol):
    """Numbers for people: names and labels come from bounded vocabularies."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Notes(Protocol):
    """Where people read what happened: an event's name and its facts."""

    def info(self, event: str, **facts: object) -> None:
        """Note what is usual."""

    def warning(self, event: str, **facts: object) -> None:
        """Note what somebody should look at."""


class Aside(Protocol):
    """Does one call beside what its owner does meanwhile: the end of a full cycle's transaction."""

    def start(self, call: Callable[[], None]) -> None:
        """Begin the call; `wait` comes before the next `start`."""

    def wait(self) -> None:
        """Wait for the call to end, and raise what it raised."""

    def close(self) -> None:
        """Free what it holds; nothing is begun any more."""


class Board(Protocol):
    """Where ingresses read what waits; advice, so nothing depends on it being there."""

    def post(self, name: str, data: bytes) -> None:
        """Publish under a name, in place of what stood there; never waits and never fails."""
