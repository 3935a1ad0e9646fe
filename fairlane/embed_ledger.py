"""What DEST holds, in one SQLite file beside the shards: the truth that a run goes on from.

A row of the source that was embedded stands here with the digest of its text, the model and
the shard that holds its vector. Its key is its tenant and its id: two tenants may each have a
row "1", and a row that goes over to another tenant is another row. A shard counts once it is
recorded here, in one transaction with its rows; a shard file that isn't recorded was about to
be, and is nothing.

A *run* is from a first call to the one that comes to the end of the source; calls between were
stopped. Rows written in the current run are told from older ones, because they have to be put
into the same requests again (fairlane.embed_groups).

The file is locked while a run has it open, and freed by the system when the run dies.
"""

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fairlane.errors import FairlaneError

FILE = "_ledger.sqlite"
SEEN_FILE = ".seen.sqlite"
#: Marks an SQLite file as a ledger: "FLEM".
APPLICATION_ID = 0x464C454D
#: Of the tables. 1 had no tenant in the key; no release wrote it.
VERSION = 2
#: Rows of a shard: what a kill may cost, and what is held in memory.
SHARD_ROWS = 10_000
#: Far above any use: files are then limited by the bytes of their vectors (fairlane.embed_sink).
SHARD_ROWS_MAX = 100_000
#: Memory for pages of the ledger; it stays this small however many rows there are.
CACHE_KIB = 8_192
#: Rows in one question, of two values each; SQLite takes 32,766 values, older ones 999.
KEYS_MAX = 450

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE models (number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE shards (number INTEGER PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE rows (
    tenant TEXT NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL, model INTEGER NOT NULL,
    shard INTEGER NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
"""
_SEEN = """CREATE TABLE passing.seen (
    tenant TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tenant, id)) WITHOUT ROWID"""
_WAY_OUT = "name another --out, or remove the folder to begin anew"
_IN_USE = "another run writes there; wait for its end or stop it"
_BROKEN = f"broken ({{}}); {_WAY_OUT}"
#: What the codes of SQLite mean to the user.
_MEANINGS = {
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_FULL: "{}; make room and run it again",
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}
_UNKNOWN = "{}; is the folder writable, and the disk sound?"


class LedgerError(FairlaneError):
    """The ledger can't be read or written; the message says why, and the way out."""


class Key(NamedTuple):
    """What a row is known by; `tenant` is "" where the source has no column of tenants."""

    tenant: str
    id: str


class Model(NamedTuple):
    """Who makes the vectors: name, sha256 of the weights ("" where nobody says), dimensions."""

    name: str
    sha256: str
    dimensions: int


class Known(NamedTuple):
    """A row as it stands in DEST; `run` is the run that wrote it."""

    digest: bytes
    model: int
    run: int


class Shard(NamedTuple):
    """A recorded shard: rows and bytes as written, and how many of its rows still count."""

    number: int
    rows: int
    size: int
    live: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return shard_name(self.number)


def shard_name(number: int) -> str:
    """Name of a shard's file."""
    return f"shard-{number:06d}.parquet"


class Ledger:
    """The ledger of one DEST, opened for this process alone."""

    def __init__(self, folder: Path) -> None:
        """Open or create it.

        Raises FairlaneError: DEST is another's, in use, or broken. From then on every method
        raises LedgerError when the file can't be read or written: nothing of the call counts.
        """
        self.folder = folder
        self._path = folder / FILE
        _check_folder(folder, self._path)
        with _clear(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        try:
            with _clear(self._path):
                self._open(self._db)
        except BaseException:
            self._db.close()
            raise
        self.run = int(self._get("run"))
        self.identity = self._get("identity")

    def _open(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        db.execute("BEGIN EXCLUSIVE")
        found = db.execute("PRAGMA application_id").fetchone()[0]
        if found == 0 and not db.execute("SELECT * FROM sqlite_master").fetchone():
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={VERSION}")
            self._set("run", "1")
            self._set("identity", secrets.token_hex(16))
        elif found != APPLICATION_ID:
            raise LedgerError(f"{self._path}: no ledger of `fairlane embed`; {_WAY_OUT}")
        elif (version := db.execute("PRAGMA user_version").fetchone()[0]) != VERSION:
            raise LedgerError(
                f"{self._path}: a ledger of version {version}, this release reads {VERSION}: "
                f"use the release that wrote it, or {_WAY_OUT}"
            )
        db.execute("COMMIT")
        (self.folder / SEEN_FILE).unlink(missing_ok=True)  # of a run that was killed
        db.execute("ATTACH DATABASE ? AS passing", (str(self.folder / SEEN_FILE),))
        db.execute("PRAGMA passing.journal_mode=OFF")
        db.execute("PRAGMA passing.synchronous=OFF")
        db.execute(_SEEN)

    def _ask(self, query: str, *values: object) -> list[Any]:
        """All rows of the answer."""
        with _clear(self._path):
            return self._db.execute(query, values).fetchall()

    def _put(self, query: str, rows: Iterable[Sequence[object]] = ((),)) -> int:
        """Run it once for each of the rows; returns how many rows of the ledger it changed."""
        with _clear(self._path):
            return self._db.executemany(query, rows).rowcount

    def _get(self, name: str) -> str:
        found = self._ask("SELECT value FROM facts WHERE name=?", name)
        return str(found[0][0]) if found else ""

    def _set(self, name: str, value: str) -> None:
        self._put("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(name, value)])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._ask("BEGIN IMMEDIATE")
        try:
            yield
            self._ask("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back already
                self._db.execute("ROLLBACK")
            raise

    # --- what DEST is made of

    def fix_shape(self, *, has_tenant: bool, dimensions: int) -> None:
        """All shards have the same columns. Raises FairlaneError when they have others."""
        for name, value, what in (
            ("has_tenant", str(int(has_tenant)), "a tenant in each row (1) or not (0)"),
            ("dimensions", str(dimensions), "dimensions of the vectors"),
        ):
            known = self._get(name)
            if not known:
                self._set(name, value)
            elif known != value:
                raise FairlaneError(
                    f"{self.folder}: {what}: it was begun with {known}, now it is {value}; "
                    f"{_WAY_OUT}"
                )

    def model_number(self, model: Model) -> int:
        """Number of a model in this ledger."""
        wanted = (model.name, model.sha256)
        found = self._ask("SELECT number FROM models WHERE name=? AND sha256=?", *wanted)
        if not found:
            self._put("INSERT INTO models (name, sha256) VALUES (?, ?)", [wanted])
            return self.model_number(model)
        return int(found[0][0])

    @property
    def dimensions(self) -> int:
        """Dimensions of the vectors; 0 before `fix_shape`."""
        return int(self._get("dimensions") or "0")

    # --- rows

    def known(self, keys: Sequence[Key]) -> dict[Key, Known]:
        """Those of the rows that stand in DEST."""
        found: dict[Key, Known] = {}
        for wanted, values in _pieces(keys):
            query = "SELECT tenant, id, digest, model, run FROM wanted CROSS JOIN rows "
            query = f"{wanted} {query} USING (tenant, id)"
            for tenant, row_id, *known in self._ask(query, *values):
                found[Key(tenant, row_id)] = Known(*known)
        return found

    def meet(self, keys: Sequence[Key]) -> set[Key]:
        """Note rows of the source (each once in `keys`); returns those that it had before."""
        before: set[Key] = set()
        for wanted, values in _pieces(keys):
            query = "SELECT tenant, id FROM wanted CROSS JOIN passing.seen USING (tenant, id)"
            before.update(Key(*key) for key in self._ask(f"{wanted} {query}", *values))
        new = [key for key in keys if key not in before]
        with self._transaction():
            self._put("INSERT INTO passing.seen VALUES (?, ?)", new)
        return before

    def count(self) -> int:
        """How many rows DEST holds."""
        return int(self._ask("SELECT count(*) FROM rows")[0][0])

    def prune(self) -> int:
        """Forget rows that the source did not have; returns how many."""
        return self._put(
            "DELETE FROM rows WHERE NOT EXISTS (SELECT 1 FROM passing.seen AS seen "
            "WHERE seen.tenant=rows.tenant AND seen.id=rows.id)"
        )

    def end_run(self) -> None:
        """The source was read to its end and nothing is under way."""
        with self._transaction():
            self._set("run", str(self.run + 1))

    # --- shards

    def shards(self) -> list[Shard]:
        """All recorded shards, by number."""
        query = """SELECT s.number, s.rows, s.bytes, coalesce(l.live, 0) FROM shards s LEFT JOIN
            (SELECT shard, count(*) AS live FROM rows GROUP BY shard) l ON l.shard = s.number
            ORDER BY s.number"""
        return [Shard(*row) for row in self._ask(query)]

    def next_shard(self) -> int:
        """Number of the next shard, which no shard had before."""
        number = int(self._get("next_shard") or "1")
        self._set("next_shard", str(number + 1))
        return number

    def add(self, number: int, size: int, model: int, rows: Sequence[tuple[Key, bytes]]) -> None:
        """Record a shard of rows (key, digest of the text), which replace older ones."""
        with self._transaction():
            self._put("INSERT INTO shards VALUES (?, ?, ?)", [(number, len(rows), size)])
            self._put(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO UPDATE "
                "SET digest=excluded.digest, model=excluded.model, shard=excluded.shard, "
                "run=excluded.run",
                [(*key, digest, model, number, self.run) for key, digest in rows],
            )

    def in_shard(self, number: int, keys: Sequence[Key]) -> set[Key]:
        """Those of the rows that stand in this shard."""
        found: set[Key] = set()
        for wanted, values in _pieces(keys):
            query = "SELECT tenant, id FROM wanted CROSS JOIN rows USING (tenant, id) WHERE shard=?"
            found.update(Key(*key) for key in self._ask(f"{wanted} {query}", *values, number))
        return found

    def replace(self, old: Sequence[int], number: int, size: int, keys: Sequence[Key]) -> None:
        """Record that the rows `keys`, all that counts of the shards `old`, are in a new one."""
        with self._transaction():
            if keys:
                self._put("INSERT INTO shards VALUES (?, ?, ?)", [(number, len(keys), size)])
                moved = [(number, *key) for key in keys]
                self._put("UPDATE rows SET shard=? WHERE tenant=? AND id=?", moved)
            self._put("DELETE FROM shards WHERE number=?", [(n,) for n in old])

    def forget_shard(self, number: int) -> None:
        """The shard's file is gone: its rows are to be embedded again."""
        with self._transaction():
            self._put("DELETE FROM rows WHERE shard=?", [(number,)])
            self._put("DELETE FROM shards WHERE number=?", [(number,)])

    def close(self) -> None:
        """Free the file for others."""
        with _clear(self._path):
            self._db.close()
            (self.folder / SEEN_FILE).unlink(missing_ok=True)


def _pieces(keys: Sequence[Key]) -> Iterator[tuple[str, list[str]]]:
    """The table `wanted` for a query and its values, some keys at a time.

    The queries have it on the left of a CROSS JOIN, so SQLite looks each key up; asked for
    "(tenant, id) IN" it reads all rows.
    """
    for at in range(0, len(keys), KEYS_MAX):
        piece = keys[at : at + KEYS_MAX]
        marks = ",".join(["(?,?)"] * len(piece))
        wanted = f"WITH wanted(tenant, id) AS (VALUES {marks})"
        yield wanted, [value for key in piece for value in key]


def _check_folder(folder: Path, path: Path) -> None:
    """Refuse a folder of somebody else's. Raises FairlaneError."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FairlaneError(f"{folder}: is a file; --out is a folder of shards")
    if not path.exists() and any(folder.iterdir()):
        raise FairlaneError(f"{folder}: holds files, but no {FILE}: it is not ours; {_WAY_OUT}")


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    """What the database says, as a message with a way out."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is detail
        raise LedgerError(f"{path}: {_MEANINGS.get(code, _UNKNOWN).format(error)}") from error
    except OSError as error:
        raise LedgerError(f"{error.filename or path}: {error.strerror}") from error
