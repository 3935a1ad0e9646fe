"""What the ingress and its shared store (Redis) tell each other, as values.

What belongs here: charges against limits with their verdicts, and entries of the index of
requests. What does not: how a store keeps them (`adapters.redis`), or which limit a tenant
has (`schemas.policy`). Times are epoch milliseconds.
"""

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from schemas.policy import UNLIMITED, Allowance
from schemas.records import End, Usage
from schemas.topics import RETENTION_MS

#: Width of one counter of a limit, and how many are counted: the current one and the twelve
#: before it, all whole. So no 60 s, wherever they begin, hold more than the limit.
SLOT_MS = 5_000
SLOTS = 13
#: Charge ids are kept this long after the last call for them: the whole window and one counter
#: more. Counters: until the end of their month, and this much longer.
CHARGE_TTL_MS = (SLOTS + 1) * SLOT_MS
#: An index entry lives this long after its request's end; results stay longer in the log.
INDEX_TTL_MS = 24 * 3_600_000
#: And that of a waiting request as much longer as one may wait: half the retention.
WAITING_TTL_MS = RETENTION_MS // 2 + INDEX_TTL_MS
#: An id that is to be settled is kept as long as its request may last.
OPEN_CHARGE_TTL_MS = WAITING_TTL_MS
#: An ingress that has not said for so long that it lives is not counted among those that do.
INGRESS_TTL_MS = 10_000
#: Requests of a tenant that are listed, the newest; an older one is found by its id alone.
LISTED_MAX = 100_000
#: And of one x-request-id: as many as a bulk call has lines.
LISTED_PER_CALL_MAX = 10_000
#: No time is later than this: 2^53, up to which every reader of JSON is exact.
MS_MAX = 1 << 53
#: A POST with an Idempotency-Key holds it so long at the most against its copies elsewhere, also
#: when its ingress is killed. One that takes longer may be overtaken by a copy, which changes
#: nothing: the scheduler drops the second of an id, and another body is refused anyhow.
CLAIM_MS = 2_000
#: Outputs up to this size stand in the index; larger ones are read from the log.
INLINE_BYTES_MAX = 64_000


class StoreDownError(Exception):
    """The shared store did not answer in time; the call may or may not have had its effect."""


class LimitState(NamedTuple):
    """One limit as it stands after a call.

    `reset_s` is the wait until there is room for this very cost when it refused it, else until
    all of the window is free again at the latest.
    """

    name: str
    limit: int
    used: int
    remaining: int
    window_s: int
    reset_s: int


class Charge(NamedTuple):
    """Take `requests` and `tokens`, both weighted, from a tenant's limits at an endpoint.

    `id` makes it at most once: the same id again takes nothing, or the difference if it is
    dearer now. The allowances are what the policy says now, so that a change acts at once. With a
    `parent` the same is taken from the parent's as well: from both or from none. `weight` is the
    one that is in the amounts; a settlement's tokens are multiplied by it.
    """

    tenant: str
    endpoint: str
    id: str
    requests: int
    tokens: int
    allowance: Allowance
    parent: str = ""
    parent_allowance: Allowance = UNLIMITED
    weight: int = 1

    @property
    def keeps_id(self) -> bool:
        """Whether the id is kept until the request's end, which settles it."""
        return self.allowance.keeps_ids or self.parent_allowance.keeps_ids


class Settlement(NamedTuple):
    """The true tokens of a request that ended, not weighted; None: the estimate stays."""

    tenant: str
    endpoint: str
    id: str
    tokens: int | None
    parent: str = ""


class MonthUse(NamedTuple):
    """What a tenant has taken in a month at an endpoint at least, weighted; see `restore`."""

    tenant: str
    endpoint: str
    month_end_ms: int
    requests: int
    tokens: int
    parent: str = ""


class Admission(IntEnum):
    """What became of a charge."""

    NEVER = -1  # the cost is above a limit: no waiting helps
    REFUSED = 0  # no room now
    CHARGED = 1
    REPEATED = 2  # charged as much before; nothing was taken this time


class Verdict(NamedTuple):
    """Answer to a charge; `retry_ms` until there is room for this very cost (0: none needed).

    `states` has each enforced limit once, by name: the tenant's own or its parent's, whichever
    has less left. `refused_by` is the first that refused, `refused_of` whose it is; `shadowed`
    are those in shadow that would have refused. `is_local`: counted by this process alone.
    """

    admission: Admission
    states: tuple[LimitState, ...]
    retry_ms: int = 0
    refused_by: str = ""
    refused_of: str = ""
    shadowed: tuple[str, ...] = ()
    is_local: bool = False

    @property
    def is_admitted(self) -> bool:
        """Whether the request may go on."""
        return self.admission > 0

    @property
    def decisive(self) -> LimitState:
        """The limit that refused; of an admitted call the first."""
        return next((state for state in self.states if state.name == self.refused_by), _first(self))


def _first(verdict: Verdict) -> LimitState:
    return verdict.states[0] if verdict.states else LimitState("", 0, 0, 0, 0, 0)


class Acceptance(Struct, frozen=True):
    """A request is in the log, at this place; `digest` is of its body, "" when unknown.

    `call` is the x-request-id that its caller gave, "" when there was none.
    """

    endpoint: str
    tier: str
    topic: str
    partition: int
    offset: int
    accepted_ms: int
    digest: str = ""
    call: str = ""


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


class Listed(NamedTuple):
    """A request's place in its tenant's list, which is ordered by both."""

    accepted_ms: int
    id: str


class Window(NamedTuple):
    """A piece of a tenant's list, newest first: at most `size` places, behind `after`.

    `call` "" is every call's requests, else only those of this x-request-id. Both bounds of
    time belong to it.
    """

    tenant: str
    size: int
    after: Listed | None = None
    since_ms: int = 0
    until_ms: int = MS_MAX
    call: str = ""


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
