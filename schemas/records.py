"""Every record that crosses a topic, as a value.

Each is a msgspec Struct encoded as a msgpack array: `[tag, v, field, ...]`. The tag names
the kind, `v` is the version of the kind. New fields go to the end, with a default; a
change of meaning raises VERSION and gets a golden file (tests/unit/golden). Decoding an
unknown version is an error of that record alone (`schemas.codec`).

Times are integer epoch milliseconds (`_ms`), costs and tokens integers. `key` is the
scheduler's name of a request: see `pack_key`.
"""

from enum import StrEnum

from msgspec import Struct

from schemas import control

VERSION = 1

#: Priorities run from 0, the most urgent, to 999.
PRIORITY_MAX = 999
PRIORITY_DEFAULT = 500

_OFFSET_BITS = 44


def pack_key(part: int, offset: int) -> int:
    """Name a request by where it stands: index of its partition (in State), offset."""
    return part << _OFFSET_BITS | offset


def unpack_key(key: int) -> tuple[int, int]:
    """Reverse `pack_key`: (part, offset)."""
    return key >> _OFFSET_BITS, key & (1 << _OFFSET_BITS) - 1


class End(StrEnum):
    """How a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Usage(Struct, array_like=True, frozen=True):
    """What a request really consumed; tokens as counted by the engine, times measured."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    service_ms: int = 0
    first_token_ms: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens together: the true cost of the `token` cost model."""
        return self.input_tokens + self.output_tokens


# --- requests.<tier>: this in the header, the body as the record's value


class Request(Struct, array_like=True, tag="request", frozen=True):
    """Metadata of an accepted request. Tier, arrival and body are the record's own.

    `deadline_ms` is for the finish, 0 for none. `input_tokens` is the ingress's estimate,
    `output_tokens_max` what the caller allows the model to write. `inputs` are counted at
    endpoints that take several in one request; then `input_tokens` is their sum.
    """

    v: int
    id: str
    tenant: str
    endpoint: str
    priority: int = PRIORITY_DEFAULT
    deadline_ms: int = 0
    input_tokens: int = 0
    output_tokens_max: int = 0
    inputs: int = 1


# --- batches.<pool>: this in the header, the bodies one after the other as the value


class Item(Struct, array_like=True, frozen=True):
    """One request of a batch; `size` bytes of the batch record's value are its body."""

    key: int
    id: str
    tenant: str
    endpoint: str
    attempt: int
    size: int
    arrived_ms: int
    deadline_ms: int
    tokens: int
    headers: tuple[tuple[str, bytes], ...] = ()


class Batch(Struct, array_like=True, tag="batch", frozen=True):
    """All a worker needs to run a batch. `number` counts batches of the shard."""

    v: int
    shard: int
    number: int
    pool: str
    picked_ms: int
    items: tuple[Item, ...]


class BatchCancel(Struct, array_like=True, tag="batch_cancel", frozen=True):
    """A dispatched request is no longer wanted; its lane ends it, early if it can."""

    v: int
    number: int
    key: int


# --- results: this in the header, the answer's body as the value


class Result(Struct, array_like=True, tag="result", frozen=True):
    """The one terminal outcome of a request."""

    v: int
    id: str
    tenant: str
    endpoint: str
    end: End
    reason: str = ""
    detail: str = ""
    attempt: int = 0
    usage: Usage = Usage()
    arrived_ms: int = 0
    picked_ms: int = 0
    ended_ms: int = 0


# --- dead: this in the header, the original's value as the value


class Dead(Struct, array_like=True, tag="dead", frozen=True):
    """What could not be served, why, and where the original stands."""

    v: int
    topic: str
    partition: int
    offset: int
    reason: str
    detail: str = ""
    id: str = ""
    tenant: str = ""


# --- workers.<pool>, partition = lane


class Seen(Struct, array_like=True, tag="seen", frozen=True):
    """A holder took the lane and has so many slots: capacity only, never used slots."""

    v: int
    slots: int


class Started(Struct, array_like=True, tag="started", frozen=True):
    """Advice, outside of transactions: the engine is about to see this batch."""

    v: int
    number: int


class Outcome(Struct, array_like=True, frozen=True):
    """How one request of a finished batch ended, in the batch's order."""

    key: int
    end: End
    usage: Usage = Usage()


class Finished(Struct, array_like=True, tag="finished", frozen=True):
    """A batch is done: an outcome for each of its requests, tenants for the accounting.

    `ended_ms` is the one of the batch's results; 0 in records written before it was kept.
    """

    v: int
    number: int
    outcomes: tuple[Outcome, ...]
    tenants: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    ended_ms: int = 0


class HandedBack(Struct, array_like=True, tag="handed_back", frozen=True):
    """A new holder does not run its predecessor's batch; the scheduler has it again."""

    v: int
    number: int


LaneRecord = Batch | BatchCancel
WorkerRecord = Seen | Started | Finished | HandedBack


# --- control, partition = shard: see schemas.control

Cancel = control.Cancel
Pause = control.Pause
Resume = control.Resume
ControlRecord = control.ControlRecord


# --- refusals: why somebody was not let in


class Refusal(Struct, array_like=True, tag="refusal", frozen=True):
    """A request refused at the door, or `count` of them when they come too fast."""

    v: int
    id: str
    tenant: str
    endpoint: str
    reason: str
    cost: int
    limit: str = ""
    retry_after_s: int = 0
    count: int = 1


# --- keys (compacted; record key = the key's id)


class ApiKey(Struct, array_like=True, tag="api_key", frozen=True):
    """Digest of an opaque key; the key itself is shown once and stored nowhere."""

    v: int
    id: str
    tenant: str
    digest: bytes
    created_ms: int
    revoked_ms: int = 0
    note: str = ""


# --- decisions: one record a cycle (the value), or a chunk of a snapshot


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
    """The time of a `Pause` of these two names is over."""

    tenant: str
    endpoint: str


class Picked(Struct, array_like=True, tag="picked", frozen=True):
    """One selection: what it was charged, and the turn that made it affordable.

    `round` is the round of the ring in which it was served (grants up to it are implied),
    `seat` its tenant's place in the ring; under `fifo` they are 0 and 1. Of a tenant with a
    parent they are the parent's, and `inner_*` its own among the parent's children. A `round`
    of -1 is a pick that overtook the next in order: charged, but the ring stays where it was.
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
    | Ended
    | Requeued
    | Released
    | Unpaused
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
