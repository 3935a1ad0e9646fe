"""What the judge keeps of requests and of what was decided about them: plain values.

What belongs here: data. What does not: any rule (simulation.judged_shard, .invariants).
"""

from dataclasses import dataclass, field

from schemas.reasons import Reason
from schemas.records import End, Finished, Request, WorkerRecord

Lane = tuple[str, int]


@dataclass(slots=True)
class Asked:
    """A request as it stands in its topic; `meta` is None when nobody can read it."""

    meta: Request | None
    tier: str
    arrived_ms: int
    body: bytes
    size: int


@dataclass(slots=True)
class Life:
    """A request that was taken in and has not ended."""

    key: int
    meta: Request
    asked: Asked
    attempt: int = 0
    handed_back: int = 0
    not_before_ms: int = 0
    batch: int = 0
    is_cancelled: bool = False
    is_flying: bool = False  #: picked, or in a worker's hands
    is_back: bool = False  #: handed back, and nothing was decided about it since
    is_held: bool = False  #: queued again, and not before its time

    @property
    def is_waiting(self) -> bool:
        """It waits, whether it may be picked now or not."""
        return not self.is_flying and not self.is_back


@dataclass(slots=True)
class Ending:
    """An end that was decided: by the scheduler (`reason`), or by a worker."""

    id: str
    end: End
    reason: str | None = None


@dataclass(slots=True)
class Decided:
    """What other topics have to say after a decision."""

    batches: dict[int, tuple[Lane, list[Life]]] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    cancels: list[tuple[Lane, int, int]] = field(default_factory=list)


def told(record: WorkerRecord | None) -> object:
    """What of a worker's record the scheduler takes over."""
    if isinstance(record, Finished):
        return (record.number, record.outcomes)
    return record


def end_of(reason: str) -> End:
    """The end that goes with a reason of the scheduler's."""
    if reason == Reason.CANCELLED:
        return End.CANCELLED
    return End.EXPIRED if reason in (Reason.EXPIRED, Reason.DEADLINE) else End.FAILED
