"""What a cycle decided so far: its steps, applied at once, and what follows from them."""

from dataclasses import dataclass, field

from scheduler.core.apply import apply
from scheduler.core.arrivals import Arrival
from scheduler.core.state import State
from scheduler.core.tenants import Live
from schemas.decisions import Ended, Step
from schemas.reasons import Reason

#: Steps of one cycle beside those that its inputs are: bounds the decision record (at most
#: about 45 bytes a step, and half a record is left for what is recorded by value).
STEPS_MAX = 10_000
#: Bytes of bodies in one cycle's batches: bounds the transaction.
BODY_BYTES_MAX = 32_000_000


@dataclass(slots=True)
class BatchOut:
    """A batch to send: its requests in order."""

    pool: str
    lane: int
    number: int
    requests: list[Live]


@dataclass(slots=True)
class Cycle:
    """What a cycle decided (`steps`), and what follows for other topics."""

    steps: list[Step] = field(default_factory=list)
    batches: list[BatchOut] = field(default_factory=list)
    ended: list[tuple[Live, str]] = field(default_factory=list)
    refused: list[tuple[str, int, Arrival, str]] = field(default_factory=list)
    cancels: list[tuple[str, int, int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    body_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """The decision record or the transaction is as large as it may be."""
        return len(self.steps) >= STEPS_MAX or self.body_bytes >= BODY_BYTES_MAX


def take(state: State, cycle: Cycle, step: Step) -> None:
    """Apply a step and keep it for the record."""
    apply(state, step)
    cycle.steps.append(step)


def end(state: State, cycle: Cycle, live: Live, reason: Reason) -> None:
    """End a request that is in no worker's hands."""
    take(state, cycle, Ended(live.key, reason))
    cycle.ended.append((live, reason))
