"""What one batch adds to the sums of its lane, and when a sum has seen it already.

What belongs here: values from values. What does not: where sums are kept.

A sum is kept for each tenant, endpoint, window and LANE, and carries `upto`: the offset
after the last record of the lane that it holds. Records of a lane are counted in their
order, so a record below `upto` is in the sum, whoever reads it again and however often:

    sum + record  =  sum                                   if record.offset < sum.upto
                     sum with its share, upto = offset + 1  otherwise

Hence a sum up to an offset is the same whoever made it: it can be published twice, and of
two the one with the greater `upto` is the later.
"""

from collections.abc import Iterator
from typing import NamedTuple

from accounting.core.windows import DAY_MS, bounds
from schemas.records import VERSION, End, Finished, Outcome
from schemas.usage import UsageSum, Used, Window

#: A batch is late for a window that ended this long before the batch's record was written.
#: Both times stand in the record: whoever counts it finds the same.
GRACE_MS = 60_000
#: How long windows are kept; those without a length here (day, month, all) stay.
KEPT_MS = {Window.MINUTE: 2 * DAY_MS, Window.HOUR: 60 * DAY_MS}
#: Weight of what was learned against a new batch: 15 to 1, so that 16 batches renew it.
LEARNED_WEIGHT = 15
_NS_PER_MS = 1_000_000

#: The ends of requests in the order of `Used`, whose first fields they are.
_ENDS = (End.SUCCEEDED, End.FAILED, End.CANCELLED, End.EXPIRED)


class MismatchError(Exception):
    """A finished batch that doesn't say whose each of its outcomes is."""


class Slot(NamedTuple):
    """Which sum: the parts of its key."""

    tenant: str
    endpoint: str
    window: Window
    start_ms: int
    pool: str
    lane: int

    @property
    def key(self) -> bytes:
        """Key of the sum's record."""
        tenant, endpoint, window, start_ms, pool, lane = self
        return f"{tenant}/{endpoint}/{window.value}/{start_ms}/{pool}/{lane}".encode()


def slot_of(total: UsageSum) -> Slot:
    """Which sum it is."""
    return Slot(total.tenant, total.endpoint, total.window, total.start_ms, total.pool, total.lane)


class KeyParts(NamedTuple):
    """What a sum's key says of when and where."""

    window: Window
    start_ms: int
    lane: int


def key_parts(key: bytes) -> KeyParts:
    """Read a sum's key; raises ValueError for what is none."""
    _, window, start_ms, _, lane = key.decode().rsplit("/", 4)
    return KeyParts(Window(window), int(start_ms), int(lane))


def lane_of(key: bytes) -> int:
    """Lane of a sum by its record's key: the partition it stands in."""
    return int(key.rpartition(b"/")[2])


class Share(NamedTuple):
    """What one batch adds to a sum: when it ended, what was used, what a token took."""

    offset: int
    ended_ms: int
    used: Used
    ns_per_token: int


def shares(finished: Finished) -> dict[tuple[str, str], Used]:
    """What each (tenant, endpoint) used in a batch, in the order of their first request.

    Raises MismatchError when tenants and endpoints are not told for each outcome.
    """
    told = (len(finished.outcomes), len(finished.tenants), len(finished.endpoints))
    if len(set(told)) > 1:
        raise MismatchError(f"{told[0]} outcomes, {told[1]} tenants, {told[2]} endpoints")
    found: dict[tuple[str, str], list[int]] = {}
    for outcome, tenant, endpoint in zip(
        finished.outcomes, finished.tenants, finished.endpoints, strict=True
    ):
        whose = tenant, endpoint
        if whose not in found:
            found[whose] = [0] * len(Used.__struct_fields__)
        _add(found[whose], outcome)
    return {whose: Used(*figures) for whose, figures in found.items()}


def _add(figures: list[int], outcome: Outcome) -> None:
    """Add one request to figures in the order of `Used`."""
    usage = outcome.usage
    figures[_ENDS.index(outcome.end)] += 1
    figures[4] += usage.input_tokens
    figures[5] += usage.output_tokens
    figures[6] += usage.cached_tokens
    figures[7] += usage.reasoning_tokens
    figures[8] += usage.service_ms


def ns_per_token(finished: Finished) -> int:
    """Nanoseconds of service a token of the batch took; 0 when it has no tokens or time.

    Each request of a batch is told the time of the whole batch, so the longest is the batch's.
    """
    tokens = sum(outcome.usage.tokens for outcome in finished.outcomes)
    longest_ms = max((outcome.usage.service_ms for outcome in finished.outcomes), default=0)
    return longest_ms * _NS_PER_MS // tokens if tokens else 0


def learn(known: int, measured: int) -> int:
    """Integer moving average of a cost; 0 stands for nothing known or nothing measured.

    It comes to rest within half of LEARNED_WEIGHT of what is measured: the unit is small.
    """
    if not known or not measured:
        return known or measured
    parts = LEARNED_WEIGHT + 1
    return (LEARNED_WEIGHT * known + measured + parts // 2) // parts


def is_kept(window: Window, start_ms: int, newest_ms: int) -> bool:
    """Tell whether a window is still kept when its lane has come to `newest_ms`."""
    kept = KEPT_MS.get(window)
    return kept is None or start_ms > newest_ms - kept


def windows_of(
    ended_ms: int, written_ms: int, newest_ms: int
) -> Iterator[tuple[Window, int, bool]]:
    """Windows that hold a time and are kept: (kind, start, whether it is late for them).

    `written_ms` is when its record was written, `newest_ms` the latest time that the lane had
    come to before.
    """
    for window in Window:
        start_ms, end_ms = bounds(window, ended_ms)
        if is_kept(window, start_ms, newest_ms):
            yield window, start_ms, 0 < end_ms <= written_ms - GRACE_MS


def grown(known: UsageSum | None, slot: Slot, share: Share, *, is_late: bool) -> UsageSum | None:
    """Sum with a share added; None when it holds the share already."""
    late = share.used.requests if is_late else 0
    learned = share.ns_per_token if slot.window is Window.ALL else 0
    upto, ended_ms = share.offset + 1, share.ended_ms
    if known is None:
        return UsageSum(VERSION, *slot, upto, share.used, 1, late, ended_ms, ended_ms, learned)
    if share.offset < known.upto:
        return None
    return UsageSum(
        VERSION,
        *slot,
        upto,
        known.used + share.used,
        known.batches + 1,
        known.late + late,
        min(known.first_ms, ended_ms),
        max(known.last_ms, ended_ms),
        learn(known.ns_per_token, learned),
    )
