"""A log that counts what is read from it."""

from collections import Counter
from typing import Any

from schemas.log import Log, Partition, Reader, Record


class CountingLog:
    """Passes everything on; `read` counts records by topic, `readers` what was opened."""

    def __init__(self, inner: Log) -> None:
        self._inner = inner
        self.read: Counter[str] = Counter()
        self.readers = 0

    def reader(self, *, committed_only: bool = True, ahead: bool = True) -> Any:
        self.readers += 1
        inner = self._inner.reader(committed_only=committed_only, ahead=ahead)
        return _CountingReader(inner, self.read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CountingReader:
    def __init__(self, inner: Reader, read: Counter[str]) -> None:
        self._inner = inner
        self._read = read

    def poll(self, limit: int, timeout_s: float) -> list[Record]:
        records = self._inner.poll(limit, timeout_s)
        self._read.update(record.topic for record in records)
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def places(records: list[tuple[Partition, list[Record]]]) -> list[tuple[int, int]]:
    """Partition number and offset of what `Ranges.poll` returned."""
    return [(number, record.offset) for (_, number), found in records for record in found]
