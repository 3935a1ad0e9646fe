"""Which lanes the accounting counts, and what it finds lost before it begins."""

from typing import Protocol

from accounting.names import lost_key, worked_pools
from fairlane.usage_lanes import losses, progress, stored
from schemas.codec import encode
from schemas.log import Log, UnavailableError
from schemas.policy import Policy
from schemas.topics import Topics
from schemas.usage import UsageLost

_FLUSH_S = 10.0


class Notes(Protocol):
    """Where people read what happened."""

    def error(self, event: str, *, exc_info: bool, **facts: object) -> None:
        """Note what stopped something, or was lost."""


class Meter(Protocol):
    """Counters by name."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""


def lanes_to_count(log: Log, topics: Topics, policy: Policy) -> dict[str, int]:
    """Lanes of each pool: the policy's, and those that left it but have a topic still.

    What was on its way when a pool left the policy ends some time, and is somebody's.
    Raises LogError.
    """
    lanes = {pool.name: pool.lanes for pool in policy.pools}
    for pool in worked_pools(log.topics(), topics):
        if pool not in lanes and (count := log.partitions(topics.workers(pool))):
            lanes[pool] = count
    return lanes


def note_losses(
    log: Log, topics: Topics, pools: dict[str, int], now_ms: int, notes: Notes, meter: Meter
) -> list[UsageLost]:
    """Say what retention took before it was counted, and write it down beside the sums.

    Once counting goes on, the offsets don't tell any more. To be called before; the same
    loss that is found again replaces what was written. Raises LogError.
    """
    reader = log.reader()
    found: list[UsageLost] = []
    try:
        for pool in pools:
            lanes = [
                lane
                for lane in progress(log, reader, topics, pool)
                if lane.low > (lane.committed or 0)
            ]
            if lanes:
                found += losses(lanes, stored(log, reader, topics.usage(pool)).sums)
    finally:
        reader.close()
    producer = log.producer()
    for lost in found:
        count = lost.to_offset - lost.from_offset
        notes.error(
            "records lost before they were counted",
            exc_info=False,
            lane=f"{lost.pool}[{lost.lane}]",
            offsets=f"{lost.from_offset}..{lost.to_offset - 1}",
        )
        meter.count("accounting_lost_records_total", count, pool=lost.pool)
        noted = UsageLost(lost.v, lost.pool, lost.lane, lost.from_offset, lost.to_offset, now_ms)
        producer.send(topics.usage(lost.pool), lost.lane, encode(noted), key=lost_key(lost))
    left = producer.flush(_FLUSH_S)
    producer.close()
    if left:
        raise UnavailableError(f"{left} losses could not be written down")
    return found
