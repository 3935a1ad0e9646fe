"""Reads what the accounting has published: sums of use, and how far they have come.

Sums stand by lane (`usage.<pool>`); here they are added up. Of two values of a sum the
greater `upto` counts, whatever the order they were written in.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from accounting.core.windows import bounds
from accounting.names import group
from schemas.codec import DecodeError, decode_value
from schemas.log import Log, Partition, Reader, Record, UnavailableError
from schemas.records import Finished, WorkerRecord
from schemas.topics import Topics
from schemas.usage import UsageSum, Used, Window

_POLL_RECORDS = 10_000
_POLL_SECONDS = 0.5
#: Empty polls in a row before a log that stopped answering is given up.
_EMPTY_POLLS_MAX = 60
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


def read(log: Log, topics: Topics) -> Counted:
    """Read it all. Raises LogError when the log does not answer.

    How far the accounting has come is asked first, so that the sums hold at least that.
    """
    pools = _pools(log, topics)
    reader = log.reader()
    try:
        behind = [found for pool in pools for found in _behind(log, reader, topics, pool)]
        sums = [total for pool in pools for total in _sums(log, reader, topics.usage(pool))]
        begun = any(
            commit is not None
            for pool in pools
            for commit in reader.committed(
                group(topics), _partitions(log, topics.workers(pool))
            ).values()
        )
    finally:
        reader.close()
    return Counted(sums, behind, begun or bool(sums))


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


def _pools(log: Log, topics: Topics) -> list[str]:
    """Pools with sums; those that left the policy too."""
    prefix = topics.usage("")
    return [name.removeprefix(prefix) for name in log.topics() if name.startswith(prefix)]


def _partitions(log: Log, topic: str) -> list[Partition]:
    return [(topic, number) for number in range(log.partitions(topic))]


def _sums(log: Log, reader: Reader, topic: str) -> Iterable[UsageSum]:
    latest: dict[bytes, UsageSum] = {}
    partitions = _partitions(log, topic)
    spans = {partition: reader.bounds(partition) for partition in partitions}
    starts = {partition: span.low for partition, span in spans.items()}
    ends = {partition: span.end for partition, span in spans.items()}
    for record in _records(reader, starts, ends):
        if record.key is None:
            continue
        if not record.value:
            latest.pop(record.key, None)
            continue
        try:
            total: UsageSum = decode_value(record, UsageSum)
        except DecodeError:
            continue  # not ours: the accounting passes over it too
        known = latest.get(record.key)
        if known is None or known.upto <= total.upto:
            latest[record.key] = total
    return latest.values()


def _behind(log: Log, reader: Reader, topics: Topics, pool: str) -> Iterator[Behind]:
    partitions = _partitions(log, topics.workers(pool))
    committed = reader.committed(group(topics), partitions)
    for partition in partitions:
        span = reader.bounds(partition)
        commit = committed[partition]
        start = max(span.low, commit.offset if commit else span.low)
        if start >= span.end:
            continue
        is_exact = span.end - start <= BEHIND_READ_MAX
        batches, since_ms = 0, 0
        for record in _records(reader, {partition: start}, {partition: span.end}):
            if (ended_ms := _ended_ms(record)) is None:
                continue
            batches, since_ms = batches + 1, since_ms or ended_ms
            if not is_exact:
                batches = span.end - start
                break
        if batches:
            yield Behind(pool, partition[1], batches, is_exact, since_ms)


def _ended_ms(record: Record) -> int | None:
    """When a batch ended; None for what finishes none, or can't be read."""
    try:
        said: WorkerRecord = decode_value(record, WorkerRecord)
    except DecodeError:
        return None
    return said.ended_ms or record.timestamp_ms if isinstance(said, Finished) else None


def _records(
    reader: Reader, starts: dict[Partition, int], ends: dict[Partition, int]
) -> Iterator[Record]:
    """Records from `starts` up to `ends`. Raises UnavailableError when they don't come."""
    reader.assign({p: start for p, start in starts.items() if start < ends[p]})
    left = [p for p, start in starts.items() if start < ends[p]]
    empty = 0
    while left := [p for p in left if not reader.reached(p, ends[p])]:
        found = reader.poll(_POLL_RECORDS, _POLL_SECONDS)
        yield from (r for r in found if r.offset < ends[r.topic, r.partition])
        empty = 0 if found else empty + 1
        if empty > _EMPTY_POLLS_MAX:
            raise UnavailableError(f"{left[0][0]}: no record arrives and its end is not reached")
