"""Keeps the log of an embedded deployment small: deletes what nobody needs any more.

Needed is what a reader has not passed, and what a service would read again to recover:

    requests    from the lowest one that had not ended when the latest snapshot was written
    decisions   from the latest snapshot on
    workers, control    from the position in the scheduler's state
    batches     from the lane's committed progress
    results     from the indexer's committed position, and the last few bytes before it:
                outputs too large for the index are read from there

Frontiers only grow, so those noted before a snapshot are at most those in it. When requests
pile up between two snapshots, one is written early. `policy` and `keys` are read from their
beginning by whoever starts, and stay whole.

Called between the turns of the services, in the same thread: then state and log agree.
"""

from adapters.memory import MemoryLog
from scheduler.service import Scheduler
from scheduler.shard import Shard
from schemas.log import Partition
from schemas.topics import Topics
from workers.names import LaneNames

#: Requests of a partition that ended and are kept only for a recovery.
REQUEST_BYTES = 8 << 20
#: Results that were indexed and may still be read.
RESULT_BYTES = 8 << 20
#: Refusals and dead letters: nobody reads them but a person.
TOLD_BYTES = 1 << 20


class Trimmer:
    """Trims one deployment."""

    def __init__(self, log: MemoryLog, topics: Topics, pools: list[tuple[str, int]]) -> None:
        """`pools` are names and lanes."""
        self._log, self._topics = log, topics
        self._lanes = [
            LaneNames(topics, pool, number) for pool, lanes in pools for number in range(lanes)
        ]
        self._reader = log.reader()
        self._snapshots: dict[int, int] = {}
        self._noted: dict[Partition, int] = {}

    def trim(self, scheduler: Scheduler) -> None:
        """Delete what is not needed. Raises LogError."""
        for shard in list(scheduler.shards.values()):
            if shard.ready:
                self._trim_shard(shard)
        for lane in self._lanes:
            progress = self._reader.committed(lane.group, [lane.batches])[lane.batches]
            if progress is not None:
                self._delete(lane.batches, progress.offset)
        self._trim_results()
        for topic in (self._topics.refusals, self._topics.dead):
            for number in range(self._log.partitions(topic)):
                self._delete((topic, number), self._log.tail((topic, number), TOLD_BYTES))

    def _trim_shard(self, shard: Shard) -> None:
        state = shard.state
        if any(self._has_piled_up(part.partition) for part in state.parts):
            shard.write_snapshot()
        for partition, position in state.positions.items():
            if partition != (self._topics.policy, 0):
                self._delete(partition, position)
        snapshot = shard.snapshot_offset
        if snapshot != self._snapshots.get(shard.shard, -1):
            self._snapshots[shard.shard] = snapshot
            self._delete((self._topics.decisions, shard.shard), snapshot)
            for part in state.parts:
                self._delete(part.partition, self._noted.get(part.partition, 0))
        self._noted.update({part.partition: state.frontier(part) for part in state.parts})

    def _has_piled_up(self, partition: Partition) -> bool:
        """Whether enough has ended since the last look that a snapshot sets it free."""
        return self._log.tail(partition, REQUEST_BYTES) > self._reader.bounds(partition).low and (
            self._noted.get(partition, 0) > self._reader.bounds(partition).low
        )

    def _trim_results(self) -> None:
        topic = self._topics.results
        group = f"{self._topics.prefix}.index"
        parts = [(topic, number) for number in range(self._log.partitions(topic))]
        for part, commit in self._reader.committed(group, parts).items():
            if commit is not None:
                self._delete(part, min(commit.offset, self._log.tail(part, RESULT_BYTES)))

    def _delete(self, partition: Partition, before: int) -> None:
        if before > self._reader.bounds(partition).low:
            self._log.delete_records({partition: before})
