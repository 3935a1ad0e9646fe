"""What the ingress and its shared store (Redis) tell each other, as values.

What belongs here: charges against limits with their verdicts, and entries of the index of
requests. What does not: how a store keeps them (`adapters.redis`), or which limit a tenant
has (`schemas.policy`). Times are epoch milliseconds.
"""

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from schemas.records import End, Usage
from schemas.topics import RETENTION_MS

#: Width of one counter of a limit, and how many are counted: the current one and the twelve
#: before it, all whole. So no 60 s, wherever they begin, hold more than the limit.
SLOT_MS = 5_000
SLOTS = 13
#: Counters and charge ids are kept this long after the last charge: the whole window and
#: one counter more.
CHARGE_TTL_MS = (SLOTS + 1) * SLOT_MS
#: An index entry lives this long after its request's end; results stay longer in the log.
INDEX_TTL_MS = 24 * 3_600_000
#: And that of a waiting request as much longer as one may wait: half the retention.
WAITING_TTL_MS = RETENTION_MS // 2 + INDEX_TTL_MS
#: A POST with an Idempotency-Key holds it so long at the most against its copies elsewhere, also
#: when its ingress is killed. One that takes longer may be overtaken by a copy, which changes
#: nothing: the scheduler drops the second of an id, and another body is refused anyhow.
CLAIM_MS = 2_000
#: Outputs up to this size stand in the index; larger ones are read from the log.
INLINE_BYTES_MAX = 64_000


class StoreDownError(Exception):
    """The shared store did not answer in time; the call may or may not have had its effect."""


class Charge(NamedTuple):
    """Take `cost` weighted requests from a tenant's minute at an endpoint.

    `id` makes it at most once: the same id again, inside the window, takes nothing, or the
    difference if it is dearer now.
    `limit` is what the policy says now, so that a change of policy acts at once.
    """

    tenant: str
    endpoint: str
    id: str
    cost: int
    limit: int


class Admission(IntEnum):
    """What became of a charge."""

    NEVER = -1  # the cost is above the limit: no waiting helps
    REFUSED = 0  # no room now
    CHARGED = 1
    REPEATED = 2  # charged as much before; nothing was taken this time


class Verdict(NamedTuple):
    """Answer to a charge; `retry_ms` until there is room for this very cost (0: none needed)."""

    admission: Admission
    limit: int
    used: int
    remaining: int
    retry_ms: int

    @property
    def is_admitted(self) -> bool:
        """Whether the request may go on."""
        return self.admission > 0


class Acceptance(Struct, frozen=True):
    """A request is in the log, at this place; `digest` is of its body, "" when unknown."""

    endpoint: str
    tier: str
    topic: str
    partition: int
    offset: int
    accepted_ms: int
    digest: str = ""


class Terminal(Struct, frozen=True):
    """How a request ended, and where its results record stands."""

    endpoint: str
    end: End
    topic: str
    partition: int
    offset: int
    reason: str = ""
    detail: str = ""
    attempt: int = 0
    usage: Usage = Usage()
    arrived_ms: int = 0
    picked_ms: int = 0
    ended_ms: int = 0
    content_type: str = ""
    size: int = 0


class Entry(NamedTuple):
    """What the index knows of a request; `body` is None when it has to be read from the log."""

    acceptance: Acceptance | None
    terminal: Terminal | None
    body: bytes | None


class RequestName(NamedTuple):
    """A request as the index names it: nobody finds another tenant's."""

    tenant: str
    id: str


class Claim(NamedTuple):
    """A POST with an Idempotency-Key begins: its request, its body's digest, its ingress."""

    name: RequestName
    digest: str
    owner: str


class Claimed(NamedTuple):
    """Answer to a claim; with neither entry nor holder the POST may go on if the digest is its own.

    `entry` is what is known of an earlier one (its body is left out), `digest` the body to which
    the key belongs ("" when unknown). `is_held`: another ingress is at it right now.
    """

    entry: Entry | None
    digest: str
    is_held: bool


class Ending(NamedTuple):
    """A terminal outcome to be written into the index; `body` None: too large to stand there."""

    name: RequestName
    terminal: Terminal
    body: bytes | None
