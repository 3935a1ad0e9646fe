"""What the accounting needs from the outside, as small Protocols; `fairlane` hands them in.

The log's own Protocols stand in `schemas.log`; what Faust reads and writes goes through
Faust's client (`accounting.driver`).
"""

from typing import Protocol


class Notes(Protocol):
    """Where people read what happened: an event's name and its facts."""

    def info(self, event: str, **facts: object) -> None:
        """Note what is usual."""

    def warning(self, event: str, **facts: object) -> None:
        """Note what somebody should look at."""

    def error(self, event: str, **facts: object) -> None:
        """Note what stopped something."""


class Meter(Protocol):
    """Counters and gauges by name; labels are few and bounded."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Clock(Protocol):
    """The time, in epoch milliseconds."""

    def now_ms(self) -> int:
        """Return the time now."""
