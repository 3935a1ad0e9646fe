"""What stands in a DEST of `fairlane embed`, read by the library alone."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def stored(folder: Path) -> list[dict[str, Any]]:
    """Every row of every shard, doubled ones included."""
    return [
        row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def by_id(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows by id; fails when there are two of one."""
    rows = stored(folder)
    found = {str(row["id"]): row for row in rows}
    assert len(found) == len(rows), "an id stands in DEST twice"
    return found


def by_key(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by tenant and id; fails when there are two of one."""
    rows = stored(folder)
    found = {(str(row["tenant"]), str(row["id"])): row for row in rows}
    assert len(found) == len(rows), "a row stands in DEST twice"
    return found
