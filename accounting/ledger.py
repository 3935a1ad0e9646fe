"""What is stored and committed of the lanes that this process begins to count.

What belongs here: the order in which both are read. What does not: what is done with them.

Whoever had the lane before may still be at it: its sums come to the log first, its offsets
are committed afterwards. So offsets are read first and sums afterwards, to the end that the
log has by then: all below the offset is in the sums. The other way round, sums that were
written in between would be missed, and with them what they hold.
"""

from collections.abc import Callable, Iterable, Mapping

from accounting.names import group
from accounting.reading import records
from schemas.log import Log, Partition, Reader, Record
from schemas.topics import Topics


class Ledger:
    """Reads what is stored; remembers how far, so that a lane that comes back costs little."""

    def __init__(
        self, log: Log, topics: Topics, stored: Mapping[str, Callable[[Record], None]]
    ) -> None:
        """`stored` takes in the records of each pool's sums, in the order of their lane."""
        self._log, self._topics, self._stored = log, topics, stored
        self._read: dict[Partition, int] = {}

    def open(self, lanes: Iterable[tuple[str, int]]) -> dict[Partition, int]:
        """Take in the sums of lanes (pool, number); returns where counting each goes on.

        Raises LogError, and whatever `stored` raises.
        """
        lanes = list(lanes)
        reader = self._log.reader()
        try:
            partitions = [(self._topics.workers(pool), lane) for pool, lane in lanes]
            committed = reader.committed(group(self._topics), partitions)
            self._take_in(reader, lanes)
        finally:
            reader.close()
        return {partition: at.offset if at else 0 for partition, at in committed.items()}

    def _take_in(self, reader: Reader, lanes: list[tuple[str, int]]) -> None:
        pools = {self._topics.usage(pool): pool for pool, _ in lanes}
        bounds = {
            (topic, lane): reader.bounds((topic, lane))
            for topic, lane in ((self._topics.usage(pool), lane) for pool, lane in lanes)
        }
        starts = {at: max(self._read.get(at, 0), span.low) for at, span in bounds.items()}
        ends = {at: span.end for at, span in bounds.items()}
        for record in records(reader, starts, ends):
            self._stored[pools[record.topic]](record)
        # Kept only now: what was left half way is read again.
        self._read.update(ends)
