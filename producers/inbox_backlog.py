"""What was read from inboxes and is not done yet: in order, bounded, and a share for each.

However much one tenant puts in, a cycle takes no more of it than of others who have as much,
and no more of it than a bounded number is read ahead: its partition is paused meanwhile. A
partition that is held is paused too, and its first record is looked at again when its time
has come.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from schemas.log import Partition, Record

#: Records that a cycle takes of all inboxes together: a few hundredths of a second of work, which
#: is what a neighbour waits.
CYCLE_RECORDS_MAX = 200
#: And of one at least, however many inboxes have some: a round trip is worth that much.
SHARE_MIN = 20
#: And bytes of one: what a few of the largest records have.
SHARE_BYTES_MAX = 1_000_000
#: One partition is read no further when so much of it is here, until little is left.
AHEAD_MAX = 2_000
AHEAD_BYTES_MAX = 2_000_000
AHEAD_LOW = 400
#: What a process reads ahead of all its inboxes: each that has some is read no further than to
#: its part of it. (One record of each may be more, and so may what the client has fetched.)
PROCESS_BYTES_MAX = 256 << 20
#: What a record costs besides its bytes.
RECORD_BYTES = 600


class Backlog:
    """Records by partition, oldest first."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        """Nothing is here, nothing is held."""
        self._records: dict[Partition, deque[Record]] = {part: deque() for part in partitions}
        self._bytes: dict[Partition, int] = dict.fromkeys(self._records, 0)
        self._held_until_ms: dict[Partition, int] = {}
        self._full: set[Partition] = set()

    def put(self, record: Record) -> None:
        """Keep a record that was read."""
        part = record.topic, record.partition
        self._records[part].append(record)
        self._bytes[part] += _size(record)

    def hold(self, partition: Partition, until_ms: int) -> None:
        """Give no record of the partition before that time."""
        self._held_until_ms[partition] = until_ms

    def crowd(self) -> int:
        """How many inboxes have something here."""
        return sum(map(bool, self._records.values()))

    def paused(self, now_ms: int, crowd: int = 1) -> set[Partition]:
        """Partitions that are not to be read now: held ones, and those with much here.

        `crowd` inboxes of the process have something.
        """
        most = min(AHEAD_BYTES_MAX, PROCESS_BYTES_MAX // max(1, crowd))
        for part, records in self._records.items():
            size = self._bytes[part]
            if len(records) >= AHEAD_MAX or size >= most:
                self._full.add(part)
            elif len(records) < AHEAD_LOW and size < most // 2:
                self._full.discard(part)
        return self._full | self.held(now_ms)

    def held(self, now_ms: int) -> set[Partition]:
        """Partitions whose time has not come."""
        return {part for part, until_ms in self._held_until_ms.items() if now_ms < until_ms}

    def is_ready(self, now_ms: int) -> bool:
        """Whether there is something to take."""
        held = self.held(now_ms)
        return any(records and part not in held for part, records in self._records.items())

    def shares(self, now_ms: int) -> list[tuple[Partition, Sequence[Record]]]:
        """What the next cycle takes: of each partition its oldest, those first that wait longest.

        They stay here until they are `done`.
        """
        held = self.held(now_ms)
        ready = [part for part, records in self._records.items() if records and part not in held]
        if not ready:
            return []
        share = max(SHARE_MIN, CYCLE_RECORDS_MAX // len(ready))
        left = CYCLE_RECORDS_MAX
        found: list[tuple[Partition, Sequence[Record]]] = []
        for part in ready:
            taken = self._first(part, min(share, left))
            left -= len(taken)
            found.append((part, taken))
            self._records[part] = self._records.pop(part)  # behind all others from now on
            if not left:
                break
        return found

    def done(self, partition: Partition, count: int) -> int | None:
        """Forget the oldest `count` records of a partition; returns the offset behind them."""
        records, behind = self._records[partition], None
        for _ in range(count):
            record = records.popleft()
            self._bytes[partition] -= _size(record)
            behind = record.offset + 1
        return behind

    def _first(self, partition: Partition, count: int) -> Sequence[Record]:
        """At most so many of the oldest; at least one if any, however large it is."""
        found: list[Record] = []
        size = 0
        for record in self._records[partition]:
            size += len(record.value)
            if len(found) == count or (found and size > SHARE_BYTES_MAX):
                break
            found.append(record)
        return found


def _size(record: Record) -> int:
    """Bytes that a record takes here, roughly."""
    return RECORD_BYTES + len(record.value) + sum(len(n) + len(c) for n, c in record.headers)
