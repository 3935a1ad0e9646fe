"""What the inboxes need from outside, besides the ports of the ingress."""

from typing import Protocol


class Meter(Protocol):
    """Counters and gauges."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
