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


class Settled(Struct, array_like=True, tag="finished", frozen=True):
    """A `Finished` without what only the accounting reads: that is not decoded."""

    v: int
    number: int
    outcomes: tuple[Outcome, ...]


class HandedBack(Struct, array_like=True, tag="handed_back", frozen=True):
    """A new holder does not run its predecessor's batch; the scheduler has it again."""

    v: int
    number: int


LaneRecord = Batch | BatchCancel
WorkerRecord = Seen | Started | Finished | HandedBack


# --- control, partition = shard


class Cancel(Struct, array_like=True, tag="cancel", frozen=True):
    """End the request that stands at this place, wherever it is by now."""

    v: int
    topic: str
    partition: int
    offset: int


class Pause(Struct, array_like=True, tag="pause", frozen=True):
    """Pick nothing of this tenant at this endpoint; what waits goes on waiting, and expires.

    `tenant` "" is every tenant, `endpoint` "" every endpoint; never both. A tenant's children
    are paused with it. `until_ms` is when it is over by itself, 0: only by a `Resume`. A later
    pause of the same two names takes the place of an earlier one.
    """

    v: int
    tenant: str
    endpoint: str
    until_ms: int = 0


class Resume(Struct, array_like=True, tag="resume", frozen=True):
    """End the pause of the same two names; others that cover the same requests stay."""

    v: int
    tenant: str
    endpoint: str


ControlRecord = Cancel | Pause | Resume


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
