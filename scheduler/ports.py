"""What the scheduler needs from outside, beside the log (schemas.log)."""

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


class Say(Protocol):
    """Structured log lines."""

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event with its fields."""
