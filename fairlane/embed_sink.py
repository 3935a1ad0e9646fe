"""Vectors into shards, and DEST kept at one row an id.

A shard is written under a temporary name, synced, renamed, then recorded in the ledger, in
one transaction with its rows. Killed before that it is a file that nobody recorded, removed
at the next start. A row that is embedded anew stands in a later shard; at the end of a run
the shards that hold rows which no longer count are written again without them, small ones
together. `step` is called before each step that a kill may come between; tests kill there.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fairlane.embed_groups import Embedding
from fairlane.embed_ledger import SHARD_ROWS, Ledger, Model, Shard, shard_name
from fairlane.embed_parquet import read_shard, sync_folder, write_shard
from fairlane.errors import FairlaneError

#: A shard has fewer rows than SHARD_ROWS when their vectors take as much as this ...
SHARD_BYTES = 32 << 20
#: ... or when slow engines have worked on it for this long.
SHARD_S = 60.0

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
        recorded = {shard.name: shard for shard in self._ledger.shards()}
        for name, shard in recorded.items():
            path = self._folder / name
            size = path.stat().st_size if path.exists() else -1
            if size < 0:
                self._ledger.forget_shard(shard.number)
                told.append(f"{path} is gone: its {shard.live} rows are embedded again")
            elif size != shard.size:
                raise FairlaneError(
                    f"{path}: has {size} bytes, it was written with {shard.size}: put the right "
                    "file back, or remove it and its rows are embedded again"
                )
        for path in self._folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in recorded:
                path.unlink()
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
        number, size = self._write(rows)
        self._step("record")
        model = self._number_of(rows[0])
        self._ledger.add(number, size, model, [(row.id, row.text_sha256) for row in rows])

    def _number_of(self, row: Embedding) -> int:
        if self._model != (row.model, row.model_sha256):
            self._model = (row.model, row.model_sha256)
            self._model_number = self._ledger.model_number(Model(*self._model, 0))
        return self._model_number

    def _write(self, rows: list[Embedding]) -> tuple[int, int]:
        self._step("number")
        number = self._ledger.next_shard()
        self._step("write")
        path = self._folder / shard_name(number)
        return number, write_shard(path, rows, has_tenant=self._has_tenant)

    # --- at the end of a run

    def compact(self) -> None:
        """Write shards again that hold rows which no longer count, and small ones together."""
        for group in self._groups(self._ledger.shards()):
            rows = [row for shard in group for row in self._live(shard)]
            number, size = self._write(rows) if rows else (0, 0)
            self._step("replace")
            old = [shard.number for shard in group]
            self._ledger.replace(old, number, size, [row.id for row in rows])
            for shard in group:
                self._step("remove")
                (self._folder / shard.name).unlink(missing_ok=True)
        sync_folder(self._folder)

    def _groups(self, shards: list[Shard]) -> Iterator[list[Shard]]:
        """Shards that become one, up to the rows of a shard together."""
        group: list[Shard] = []
        for shard in shards:
            if shard.live == shard.rows and shard.rows >= self._shard_rows // 2:
                continue
            if group and sum(other.live for other in group) + shard.live > self._shard_rows:
                yield group
                group = []
            group.append(shard)
        if len(group) > 1 or any(shard.live < shard.rows for shard in group):
            yield group

    def _live(self, shard: Shard) -> Iterator[Embedding]:
        rows = list(read_shard(self._folder / shard.name))
        live = self._ledger.in_shard(shard.number, [row.id for row in rows])
        return (row for row in rows if row.id in live)


def shards_of(folder: Path) -> list[Path]:
    """Files of the shards in a DEST, by number."""
    return sorted(folder.glob("shard-*.parquet"))
