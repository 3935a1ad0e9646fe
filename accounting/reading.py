"""Records of some partitions from here to there, by a reader of the log."""

from collections.abc import Iterator, Mapping

from schemas.log import Partition, Reader, Record, UnavailableError

_POLL_RECORDS = 10_000
_POLL_SECONDS = 0.5
#: Empty polls in a row before a log that stopped answering is given up.
_EMPTY_POLLS_MAX = 60


def records(
    reader: Reader, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[Record]:
    """Records from `starts` up to `ends`. Raises UnavailableError when they don't come."""
    left = [partition for partition, start in starts.items() if start < ends[partition]]
    reader.assign({partition: starts[partition] for partition in left})
    empty = 0
    while left := [p for p in left if not reader.reached(p, ends[p])]:
        found = reader.poll(_POLL_RECORDS, _POLL_SECONDS)
        yield from (r for r in found if r.offset < ends[r.topic, r.partition])
        empty = 0 if found else empty + 1
        if empty > _EMPTY_POLLS_MAX:
            raise UnavailableError(f"{left[0][0]}: no record arrives and its end is not reached")
