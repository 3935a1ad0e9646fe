"""Groups that have to wait for their tenant, on disk: memory holds a number for each.

They stand in an SQLite file beside the shards that has no name any more once it is open: the
system removes it however the run ends, and the next run reads the source again.
"""

import sqlite3
from pathlib import Path

import msgspec

from fairlane.embed_groups import Group

FILE = ".aside.sqlite"
#: What may be set aside: disk, and about 100 bytes of memory for each group.
BYTES_MAX = 1 << 30
GROUPS_MAX = 100_000
_CACHE_KIB = 2_048

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Group)


class Aside:
    """Groups set aside by one run; the file is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        """Nothing is set aside."""
        self._path = folder / FILE
        self._db: sqlite3.Connection | None = None
        self._bytes = self._groups = self._last = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no place for another."""
        return self._bytes >= BYTES_MAX or self._groups >= GROUPS_MAX

    def put(self, group: Group) -> int:
        """Set a group aside; returns its number. Raises sqlite3.Error, OSError."""
        body = _encoder.encode(group)
        if self._db is None:
            self._db = self._opened()
        self._last += 1
        self._db.execute("INSERT INTO groups VALUES (?, ?)", (self._last, body))
        self._bytes += len(body)
        self._groups += 1
        return self._last

    def take(self, number: int) -> Group:
        """Get a group back, once. Raises sqlite3.Error."""
        assert self._db is not None, "it was put aside before"
        query = "SELECT body FROM groups WHERE number=?"
        (body,) = self._db.execute(query, (number,)).fetchone()
        self._db.execute("DELETE FROM groups WHERE number=?", (number,))
        self._bytes -= len(body)
        self._groups -= 1
        return _decoder.decode(body)

    def close(self) -> None:
        """Let go of all."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _opened(self) -> sqlite3.Connection:
        self._path.unlink(missing_ok=True)
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        db.execute("CREATE TABLE groups (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        self._path.unlink()
        return db
