"""Records of use and cost: what the accounting publishes, for whoever charges or looks.

Encoded like all records (schemas.records): `[tag, v, field, ...]`, new fields at the end.
"""

from enum import StrEnum

from msgspec import Struct

# --- usage.<pool>, partition = lane, compacted: who used what; the accounting's table


class Window(StrEnum):
    """Kinds of windows that use is summed over, in UTC; `all` is since the beginning."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    ALL = "all"


class Used(Struct, array_like=True, frozen=True):
    """What was used: requests by how they ended, tokens by kind, time.

    `service_ms` adds up what each request was told; those of one batch were served together.
    """

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    service_ms: int = 0

    @property
    def requests(self) -> int:
        """Requests, however they ended."""
        return self.succeeded + self.failed + self.cancelled + self.expired

    def __add__(self, other: "Used") -> "Used":
        return Used(
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.expired + other.expired,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.service_ms + other.service_ms,
        )


class UsageSum(Struct, array_like=True, tag="usage_sum", frozen=True):
    """What a tenant used at an endpoint in one window, as far as one lane's records tell.

    A whole sum, never a difference: the records of the lane below offset `upto` are in it,
    so the same sum may stand twice and the greatest `upto` counts. `late` requests
    were told a minute or more after their window was over. `ns_per_token`, nanoseconds of
    service, is learned in windows of the kind `all`, else 0. The record's key:
    `tenant/endpoint/window/start_ms/pool/lane`.
    """

    v: int
    tenant: str
    endpoint: str
    window: Window
    start_ms: int
    pool: str
    lane: int
    upto: int
    used: Used
    batches: int = 0
    late: int = 0
    first_ms: int = 0
    last_ms: int = 0
    ns_per_token: int = 0


class UsageLost(Struct, array_like=True, tag="usage_lost", frozen=True):
    """Records of a lane that nobody counted before retention took them.

    Offsets from `from_offset` up to, without, `to_offset`; markers of transactions are among
    them. Stands beside the lane's sums for good. The record's key: `lost/from_offset/pool/lane`.
    """

    v: int
    pool: str
    lane: int
    from_offset: int
    to_offset: int
    noticed_ms: int = 0


# --- costs, compacted: what a token of a tenant takes at an endpoint


class Cost(Struct, array_like=True, tag="cost", frozen=True):
    """Learned nanoseconds of service a token, on one lane up to offset `upto`.

    `tokens` were learned from, the last at `ended_ms`: who wants one figure for several
    lanes weighs them by tokens. The record's key: `tenant/endpoint/pool/lane`.
    """

    v: int
    tenant: str
    endpoint: str
    pool: str
    lane: int
    upto: int
    ns_per_token: int
    tokens: int = 0
    ended_ms: int = 0
