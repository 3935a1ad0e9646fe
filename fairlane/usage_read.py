"""Reads what the accounting has published: sums of use, and how far they have come.

Sums stand by lane (`usage.<pool>`); here they are added up. Of two values of a sum the
greater `upto` counts, whatever the order they were written in.
"""

from collections.abc import Iterable
from typing import NamedTuple

from accounting.core.windows import bounds
from accounting.names import lost_key, summed_pools
from accounting.reading import records
from fairlane.usage_lanes import Progress, losses, progress, stored
from schemas.codec import DecodeError, decode_value
from schemas.log import Log, Reader, Record
from schemas.reasons import Reason
from schemas.records import Finished, WorkerRecord
from schemas.topics import Topics
from schemas.usage import UsageLost, UsageSum, Used, Window

#: Of a lane that is further behind, the batches are not counted one by one.
BEHIND_READ_MAX = 20_000


class Row(NamedTuple):
    """What a tenant used at an endpoint in one window, over all lanes."""

    tenant: str
    endpoint: str
    start_ms: int
    end_ms: int
    used: Used
    batches: int
    late: int


class Behind(NamedTuple):
    """A lane with records that are not counted yet.

    `batches` is how many, or how many records at most when `is_exact` is false; the first
    of them ended at `since_ms`.
    """

    pool: str
    lane: int
    batches: int
    is_exact: bool
    since_ms: int


class Counted(NamedTuple):
    """All that the accounting has published, and the lanes that are ahead of it."""

    sums: list[UsageSum]
    behind: list[Behind]
    #: Whether an accounting has ever counted here.
    is_begun: bool
    #: What retention took before it was counted, noticed then or now.
    lost: list[UsageLost]


def read(log: Log, topics: Topics) -> Counted:
    """Read it all. Raises LogError when the log does not answer.

    Raises DecodeError for a sum that a later release stored.
    How far the accounting has come is asked first, so that the sums hold at least that.
    """
    pools = summed_pools(log.topics(), topics)
    reader = log.reader()
    try:
        lanes = [lane for pool in pools for lane in progress(log, reader, topics, pool)]
        behind = [found for lane in lanes if (found := _behind(reader, topics, lane))]
        sums: list[UsageSum] = []
        lost: dict[bytes, UsageLost] = {}
        for pool in pools:
            found_sums, found_lost = stored(log, reader, topics.usage(pool))
            sums += found_sums
            lost |= {lost_key(told): told for told in found_lost}
    finally:
        reader.close()
    for told in losses(lanes, sums):
        known = lost.get(lost_key(told))
        if known is None or known.to_offset < told.to_offset:
            lost[lost_key(told)] = told
    begun = any(lane.committed is not None for lane in lanes) or bool(sums)
    return Counted(sums, behind, begun, list(lost.values()))


def rows(
    sums: Iterable[UsageSum],
    window: Window,
    from_ms: int,
    to_ms: int,
    tenants: frozenset[str] = frozenset(),
    endpoints: frozenset[str] = frozenset(),
) -> list[Row]:
    """Add sums up over lanes, for windows that begin in [from_ms, to_ms); sorted.

    Empty sets stand for all tenants, all endpoints.
    """
    found: dict[tuple[int, str, str], Row] = {}
    for total in sums:
        if (
            total.window is not window
            or not from_ms <= total.start_ms < to_ms
            or (tenants and total.tenant not in tenants)
            or (endpoints and total.endpoint not in endpoints)
        ):
            continue
        key = total.start_ms, total.tenant, total.endpoint
        row = found.get(key)
        if row is None:
            end_ms = bounds(window, total.start_ms).end_ms
            row = Row(total.tenant, total.endpoint, total.start_ms, end_ms, Used(), 0, 0)
        found[key] = row._replace(
            used=row.used + total.used,
            batches=row.batches + total.batches,
            late=row.late + total.late,
        )
    return [found[key] for key in sorted(found)]


def _behind(reader: Reader, topics: Topics, lane: Progress) -> Behind | None:
    start = max(lane.low, lane.committed or 0)
    if start >= lane.end:
        return None
    is_exact = lane.end - start <= BEHIND_READ_MAX
    partition = topics.workers(lane.pool), lane.lane
    batches, since_ms = 0, 0
    for record in records(reader, {partition: start}, {partition: lane.end}):
        if (ended_ms := _ended_ms(record)) is None:
            continue
        batches, since_ms = batches + 1, since_ms or ended_ms
        if not is_exact:
            batches = lane.end - start
            break
    return Behind(lane.pool, lane.lane, batches, is_exact, since_ms) if batches else None


def _ended_ms(record: Record) -> int | None:
    """When a batch ended; None for what finishes none, or can't be read by any release."""
    try:
        said: WorkerRecord = decode_value(record, WorkerRecord)
    except DecodeError as error:
        # The accounting halts at it, and may find a batch there when it is upgraded.
        return record.timestamp_ms if error.reason is Reason.UNKNOWN_VERSION else None
    return said.ended_ms or record.timestamp_ms if isinstance(said, Finished) else None
