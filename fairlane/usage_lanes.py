"""How far each lane is counted, what is stored of it, and what was lost before it was counted.

A record is lost when retention drops it before the accounting has come to it. Offsets that
expired with their group (Kafka keeps them for a week) are made up for by the sums, which
hold what they have seen.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from accounting.names import group
from accounting.reading import records
from schemas.codec import DecodeError, decode_value
from schemas.log import Log, Partition, Reader
from schemas.reasons import Reason
from schemas.records import VERSION
from schemas.topics import Topics
from schemas.usage import UsageLost, UsageSum

#: The marker behind a lane's last counted record is no record: one offset may always be gone.
_MARKER = 1


class Progress(NamedTuple):
    """A lane: the offset up to which it is counted (None: nobody says), what the log holds."""

    pool: str
    lane: int
    committed: int | None
    low: int
    end: int


class Stored(NamedTuple):
    """What stands in a pool's topic of sums."""

    sums: list[UsageSum]
    lost: list[UsageLost]


def progress(log: Log, reader: Reader, topics: Topics, pool: str) -> Iterator[Progress]:
    """Lanes of a pool, as they are now. Raises LogError."""
    partitions = _partitions(log, topics.workers(pool))
    committed = reader.committed(group(topics), partitions)
    for partition in partitions:
        span, commit = reader.bounds(partition), committed[partition]
        yield Progress(pool, partition[1], commit and commit.offset, span.low, span.end)


def stored(log: Log, reader: Reader, topic: str) -> Stored:
    """Sums and losses of a pool. Raises LogError, and DecodeError for a later release's."""
    latest: dict[bytes, UsageSum | UsageLost] = {}
    partitions = _partitions(log, topic)
    spans = {partition: reader.bounds(partition) for partition in partitions}
    starts = {partition: span.low for partition, span in spans.items()}
    ends = {partition: span.end for partition, span in spans.items()}
    for record in records(reader, starts, ends):
        if record.key is None:
            continue
        if not record.value:
            latest.pop(record.key, None)
            continue
        try:
            found: UsageSum | UsageLost = decode_value(record, UsageSum | UsageLost)
        except DecodeError as error:
            if error.reason is Reason.UNKNOWN_VERSION:
                raise
            continue  # not ours: the accounting passes over it too
        known = latest.get(record.key)
        if known is None or _is_later(found, known):
            latest[record.key] = found
    return Stored(
        [found for found in latest.values() if isinstance(found, UsageSum)],
        [found for found in latest.values() if isinstance(found, UsageLost)],
    )


def losses(lanes: Iterable[Progress], sums: Iterable[UsageSum]) -> Iterator[UsageLost]:
    """What lies between the point up to which a lane is counted and what the log still holds.

    A lane of which nothing was ever counted has lost nothing: its counting begins now.
    """
    upto: dict[tuple[str, int], int] = {}
    for total in sums:
        lane = total.pool, total.lane
        upto[lane] = max(upto.get(lane, 0), total.upto)
    for pool, number, committed, low, _ in lanes:
        reached = max(committed or 0, upto.get((pool, number), 0))
        is_begun = committed is not None or (pool, number) in upto
        if is_begun and low - reached > _MARKER:
            yield UsageLost(VERSION, pool, number, reached, low)


def _partitions(log: Log, topic: str) -> list[Partition]:
    return [(topic, number) for number in range(log.partitions(topic))]


def _is_later(found: UsageSum | UsageLost, known: UsageSum | UsageLost) -> bool:
    if isinstance(found, UsageSum) and isinstance(known, UsageSum):
        return known.upto <= found.upto
    return True
