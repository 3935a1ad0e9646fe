"""What workers need from the outside, as small Protocols; `fairlane` hands them in.

The log's Protocols stand in `schemas.log`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from workers.engine import EngineBatch, EngineOutcome


class Engine(Protocol):
    """Runs models. Called from one thread per slot; several calls may run at once."""

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        """Run a batch to its end; returns one outcome per request, in their order.

        `cancelled(index)` tells whether nobody wants that request any more; ask it when
        stopping early would save something. What is wrong with one request is its
        outcome (`workers.engine.failed`); an exception fails every request of the batch.
        """


class VirtualEngine(Protocol):
    """An engine whose time is known beforehand, for a clock that nobody waits for."""

    def service_ms(self, batch: EngineBatch) -> int:
        """How long the batch takes, in milliseconds."""

    def answer(
        self, batch: EngineBatch, cancelled: Callable[[int], bool]
    ) -> Sequence[EngineOutcome]:
        """What it ends with, one outcome per request; takes no time."""


class Completion(NamedTuple):
    """A batch that left its slot."""

    ticket: int
    outcomes: tuple[EngineOutcome, ...]


class Slots(Protocol):
    """A lane's room for batches. A *ticket* is the caller's name of a batch it started."""

    @property
    def total(self) -> int:
        """How many batches run at once."""

    @property
    def free(self) -> int:
        """How many more may be started now."""

    def start(self, ticket: int, batch: EngineBatch) -> None:
        """Put a batch on a free slot; returns at once. Never called when none is free."""

    def finished(self) -> list[Completion]:
        """Batches that left their slots since the last call; each is told once."""

    def cancel(self, ticket: int, key: int) -> None:
        """Tell the engine that one request is no longer wanted; unknown ones are ignored."""

    def close(self) -> None:
        """Cancel everything, wait for nothing; what still runs ends unheard."""


#: Makes the slots of one lane (its number is the argument).
SlotsFactory = Callable[[int], Slots]


class Clock(Protocol):
    """The time, in epoch milliseconds."""

    def now_ms(self) -> int:
        """Return the time now."""


class Meter(Protocol):
    """Counters and gauges by name; labels are few and bounded."""

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
