"""Vectors into shards, and DEST kept at one row an id.

A shard is

    written under a hidden name and synced -> recorded in the ledger, in one transaction with
    its rows -> the shards that it stands for, if any, are removed -> renamed

Killed before it is recorded it is a file that nobody knows, removed at the next start; killed
after that, the next start (`tidy`) does the rest. A row that is embedded anew stands in a later
shard; at the end of a run the shards that hold rows which no longer count are written again
without them, small ones together (`compact`). So a reader never meets an unchanged row twice,
but between the last two steps the rows of one new shard are missing.

`step` is called before each step that a kill may come between; tests kill there.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from fairlane.embed_groups import Embedding
from fairlane.embed_ledger import SHARD_ROWS, Key, Ledger, Model, Shard, shard_name
from fairlane.embed_parquet import FLOAT_BYTES, read_shard, sync_folder, write_shard
from fairlane.errors import FairlaneError

#: A shard has fewer rows than SHARD_ROWS when their vectors take as much as this ...
SHARD_BYTES = 32 << 20
#: ... or when slow engines have worked on it for this long.
SHARD_S = 60.0
#: Rows of an old shard that are looked up in the ledger at once.
PIECE_ROWS = 450

_OURS = re.compile(r"\.?shard-\d{6,}\.parquet(\.tmp)?")


class Sink:
    """Writes the shards of one DEST."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        has_tenant: bool,
        shard_rows: int = SHARD_ROWS,
        now_s: Callable[[], float] = time.monotonic,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing is touched before `tidy`; `now_s` is for the age of a shard."""
        self.recorded = 0  # rows of this call that stand in a recorded shard
        self._ledger, self._folder = ledger, ledger.folder
        self._has_tenant, self._shard_rows = has_tenant, shard_rows
        self._now_s, self._step = now_s, step
        self._rows: list[Embedding] = []
        self._bytes = 0
        self._since_s = 0.0
        self._model: tuple[str, str] | None = None
        self._model_number = 0

    def tidy(self) -> list[str]:
        """Bring files and ledger together; returns what there is to tell.

        Raises FairlaneError for a shard that is not as it was written.
        """
        told: list[str] = []
        kept: dict[str, Path] = {}
        for shard in self._ledger.shards():
            path = self._folder / shard.name
            found = path if path.exists() else _hidden(path)
            size = found.stat().st_size if found.exists() else -1
            if size < 0:
                self._ledger.forget_shard(shard.number)
                told.append(f"{path} is gone: its {shard.live} rows are embedded again")
            elif size != shard.size:
                raise FairlaneError(
                    f"{found}: has {size} bytes, it was written with {shard.size}: put the right "
                    "file back, or remove it and its rows are embedded again"
                )
            kept[found.name] = path
        for path in list(self._folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in kept:
                path.unlink()
        for name, path in kept.items():  # killed between the ledger and the name
            if name != path.name and (self._folder / name).exists():
                self._show(path)
        return told

    def add(self, rows: Iterable[Embedding]) -> None:
        """Take rows in; writes a shard when there are enough."""
        if not self._rows:
            self._since_s = self._now_s()
        for row in rows:
            self._rows.append(row)
            self._bytes += len(row.vector)
        is_old = self._now_s() - self._since_s >= SHARD_S
        if len(self._rows) >= self._shard_rows or self._bytes >= SHARD_BYTES or is_old:
            self.flush()

    def flush(self) -> None:
        """Write what was taken in and is not in a shard yet."""
        if not self._rows:
            return
        rows, self._rows, self._bytes = self._rows, [], 0
        path, number, size = self._write(rows)
        self._step("record")
        model = self._number_of(rows[0])
        self._ledger.add(number, size, model, [(_key(row), row.text_sha256) for row in rows])
        self.recorded += len(rows)
        self._show(path)

    def _number_of(self, row: Embedding) -> int:
        if self._model != (row.model, row.model_sha256):
            self._model = (row.model, row.model_sha256)
            self._model_number = self._ledger.model_number(Model(*self._model, 0))
        return self._model_number

    def _write(self, rows: list[Embedding]) -> tuple[Path, int, int]:
        """The shard's path, where it is not yet, its number and its size."""
        self._step("number")
        number = self._ledger.next_shard()
        self._step("write")
        path = self._folder / shard_name(number)
        return path, number, write_shard(_hidden(path), rows, has_tenant=self._has_tenant)

    def _show(self, path: Path) -> None:
        """Give a recorded shard its name."""
        self._step("rename")
        _hidden(path).rename(path)
        sync_folder(self._folder)

    # --- at the end of a run

    def compact(self) -> None:
        """Write shards again that hold rows which no longer count, and small ones together."""
        for group in list(self._groups(self._ledger.shards())):
            self._merge(group)
        sync_folder(self._folder)

    def _merge(self, group: list[Shard]) -> None:
        rows = [row for shard in group for row in self._live(shard)]
        path, number, size = self._write(rows) if rows else (None, 0, 0)
        self._step("replace")
        old = [shard.number for shard in group]
        self._ledger.replace(old, number, size, [_key(row) for row in rows])
        for shard in group:
            self._step("remove")
            (self._folder / shard.name).unlink(missing_ok=True)
        if path:
            self._show(path)

    def _groups(self, shards: list[Shard]) -> Iterator[list[Shard]]:
        """Shards that become one, up to the rows and the bytes of a shard together."""
        row_bytes = FLOAT_BYTES * self._ledger.dimensions
        group: list[Shard] = []
        for shard in shards:
            is_large = (
                2 * shard.rows >= self._shard_rows or 2 * shard.rows * row_bytes >= SHARD_BYTES
            )
            if shard.live == shard.rows and is_large:
                continue
            rows = sum(other.live for other in group) + shard.live
            if rows > self._shard_rows or rows * row_bytes > SHARD_BYTES:
                yield from _worthwhile(group)
                group = []
            group.append(shard)
        yield from _worthwhile(group)

    def _live(self, shard: Shard) -> Iterator[Embedding]:
        rows = read_shard(self._folder / shard.name)
        while piece := list(islice(rows, PIECE_ROWS)):
            live = self._ledger.in_shard(shard.number, [_key(row) for row in piece])
            yield from (row for row in piece if _key(row) in live)


def _worthwhile(group: list[Shard]) -> list[list[Shard]]:
    """The group, unless it is one shard that stays as it is."""
    is_changed = len(group) > 1 or any(shard.live < shard.rows for shard in group)
    return [group] if is_changed else []


def _key(row: Embedding) -> Key:
    return Key(row.tenant, row.id)


def _hidden(path: Path) -> Path:
    """Where a shard is until it is recorded; readers of Parquet pass such names over."""
    return path.with_name(f".{path.name}.tmp")
