"""The records of `decisions`: what each cycle read and chose, as steps, and snapshots.

The same rules as in `schemas.records` hold. A step is the smallest thing that changes a
shard's state; `scheduler.core.apply` is what each of them means.
"""

from msgspec import Struct

from schemas.records import ControlRecord, WorkerRecord


class PolicySet(Struct, array_like=True, tag="policy", frozen=True):
    """The policy as published, by value (JSON)."""

    document: bytes


class WorkerSaid(Struct, array_like=True, tag="worker", frozen=True):
    """A record of `workers.<pool>`, by value."""

    pool: str
    lane: int
    record: WorkerRecord


class ControlSaid(Struct, array_like=True, tag="control", frozen=True):
    """A record of `control`, by value."""

    record: ControlRecord


class Read(Struct, array_like=True, tag="read", frozen=True):
    """The shard's next position in an input other than requests."""

    topic: str
    partition: int
    position: int


class Arrived(Struct, array_like=True, tag="arrived", frozen=True):
    """Requests taken in by position: those of the partition in [start, stop).

    `refused` lists the ones that were not admitted: (offset, reason).
    """

    topic: str
    partition: int
    tier: str
    start: int
    stop: int
    refused: tuple[tuple[int, str], ...] = ()


class TopicMet(Struct, array_like=True, tag="topic", frozen=True):
    """Identity of a request topic; a recreated one has another and stops the shard."""

    topic: str
    id: str


class Ended(Struct, array_like=True, tag="ended", frozen=True):
    """The scheduler itself ended a request that was not in a worker's hands."""

    key: int
    reason: str


class Requeued(Struct, array_like=True, tag="requeued", frozen=True):
    """A handed-back request waits again, not before `not_before_ms` (0: at once)."""

    key: int
    attempt: int
    not_before_ms: int = 0


class Released(Struct, array_like=True, tag="released", frozen=True):
    """A request that was held back may be picked again."""

    key: int


class Unpaused(Struct, array_like=True, tag="unpaused", frozen=True):
    """The time of a pause is over."""

    tenant: str
    endpoint: str


class Picked(Struct, array_like=True, tag="picked", frozen=True):
    """One selection: what it was charged, and the turn that made it affordable.

    `round` is the round of the ring in which it was served (grants up to it are implied),
    `seat` its tenant's place in the ring; under `fifo` they are 0 and 1, under `vtc` the
    round is the tenant's counter. For a tenant with a parent they are the parent's, and
    `inner_round` and `inner_seat` the child's. Round -1: it filled the rest of a batch
    before its turn came, at its tenant's expense.
    """

    key: int
    cost: int
    round: int = 0
    seat: int = 0
    inner_round: int = 0
    inner_seat: int = 0


class Sealed(Struct, array_like=True, tag="sealed", frozen=True):
    """The picks since the last seal are batch `number`, sent to this lane."""

    pool: str
    lane: int
    number: int


Step = (
    PolicySet
    | WorkerSaid
    | ControlSaid
    | Read
    | Arrived
    | TopicMet
    | Unpaused
    | Ended
    | Requeued
    | Released
    | Picked
    | Sealed
)


class Decision(Struct, array_like=True, tag="decision", frozen=True):
    """What one cycle read and decided: the steps that take State from seq-1 to seq."""

    v: int
    shard: int
    seq: int
    now_ms: int
    steps: tuple[Step, ...]


class SnapshotChunk(Struct, array_like=True, tag="snapshot", frozen=True):
    """Piece `index` of `count` of the encoded State as it was after decision `seq`."""

    v: int
    shard: int
    seq: int
    index: int
    count: int
    data: bytes


class Chain(Struct, array_like=True, tag="chain", frozen=True):
    """Header of a record in `decisions`: it seals the record to all before it.

    `digest` = blake2b-16(previous digest + value). `snapshot` is the offset of the first
    chunk of the latest snapshot before this record, -1 when there is none.
    """

    v: int
    seq: int
    digest: bytes
    snapshot: int = -1


DecisionRecord = Decision | SnapshotChunk
