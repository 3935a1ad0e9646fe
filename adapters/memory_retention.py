"""What brokers do by themselves as time passes: delete, compact, forget.

What belongs here: which records and positions go, by the topics' own settings (`TopicSpec`).
What does not: when this is asked, `MemoryLog.clean`: brokers look every few minutes.

As on a broker, whole segments go, when their newest record is old enough; of a partition in
which everything is old nothing stays but its end. Compaction leaves the segment alone that is
written to. Transactions that are open hold neither up: brokers delete below the high
watermark, and compact below the last stable offset.
"""

from collections.abc import Mapping

from adapters.memory_store import PartitionLog, Store

#: How long brokers keep positions of a group without members after it committed them, where
#: `offsets.retention.minutes` says nothing else.
POSITIONS_MS = 7 * 24 * 3_600_000
#: Where a topic says nothing: the brokers' own `log.roll.hours`, `log.retention.hours`.
SEGMENT_MS = 7 * 24 * 3_600_000
RETENTION_MS = 7 * 24 * 3_600_000


def clean(store: Store, now_ms: int, positions_ms: int) -> None:
    """Delete and compact what is due by now, and forget positions of that age."""
    for (topic, _), part in store.parts.items():
        config = store.configs.get(topic, {})
        if config.get("cleanup.policy", "delete") == "compact":
            _compact(part, config, now_ms)
        else:
            _delete(part, config, now_ms)
    for group, commits in store.committed.items():
        for partition in list(commits):
            if now_ms - store.committed_ms[group, partition] >= positions_ms:
                del commits[partition]
                del store.committed_ms[group, partition]


def segments(part: PartitionLog, segment_ms: int) -> list[int]:
    """Where each segment begins, as places in `slots`; the last one is written to."""
    starts: list[int] = []
    first_ms = 0
    for at, time_ms in enumerate(part.times):
        if not starts or time_ms - first_ms > segment_ms:
            starts.append(at)
            first_ms = time_ms
    return starts


def _delete(part: PartitionLog, config: Mapping[str, str], now_ms: int) -> None:
    retention_ms = int(config.get("retention.ms", RETENTION_MS))
    if not part.times or now_ms - part.times[0] <= retention_ms:
        return
    starts = segments(part, int(config.get("segment.ms", SEGMENT_MS)))
    gone = 0
    for stop in (*starts[1:], len(part.times)):
        if now_ms - part.times[stop - 1] <= retention_ms:
            break
        gone = stop
    part.delete_before(part.low + gone)


def _compact(part: PartitionLog, config: Mapping[str, str], now_ms: int) -> None:
    lag_ms = int(config.get("min.compaction.lag.ms", 0))
    starts = segments(part, int(config.get("segment.ms", SEGMENT_MS)))
    stop = 0
    for start in starts[1:]:  # a segment that may be cleaned, up to where the next one begins
        if now_ms - part.times[start - 1] < lag_ms or part.low + start > part.end:
            break
        stop = start
    newest: set[bytes | None] = set()
    for at in range(stop - 1, -1, -1):
        record = part.slots[at]
        if record is None or record.offset in part.aborted:
            continue
        if record.key in newest:
            part.slots[at] = None
        newest.add(record.key)
