"""What DEST holds, in one SQLite file beside the shards: the truth that a run goes on from.

A row of the source that was embedded stands here with the digest of its text, the model and
the shard that holds its vector. A shard counts once it is recorded here, in one transaction
with its rows; a shard file that isn't recorded was about to be, and is nothing.

A *run* is from a first call to the one that comes to the end of the source; calls between were
stopped. Rows written in the current run are told from older ones, because they have to be put
into the same requests again (fairlane.embed_groups).

The file is locked while a run has it open, and freed by the system when the run dies.
"""

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairlane.errors import FairlaneError

FILE = "_ledger.sqlite"
SEEN_FILE = ".seen.sqlite"
#: Marks an SQLite file as a ledger: "FLEM".
APPLICATION_ID = 0x464C454D
VERSION = 1
#: Rows of a shard: what a kill may cost, and what is held in memory.
SHARD_ROWS = 10_000
#: Far above any use: files are then limited by the bytes of their vectors (fairlane.embed_sink).
SHARD_ROWS_MAX = 100_000
#: Memory for pages of the ledger; it stays this small however many rows there are.
CACHE_KIB = 8_192
#: Names in one question; SQLite takes 32,766, older ones 999.
IDS_MAX = 900

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE models (number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE shards (number INTEGER PRIMARY KEY, rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE rows (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, model INTEGER NOT NULL,
    shard INTEGER NOT NULL, run INTEGER NOT NULL
) WITHOUT ROWID;
"""
_WAY_OUT = "name another --out, or remove it to begin anew"


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
        """Open or create it. Raises FairlaneError: DEST is another's, in use, or broken."""
        self.folder = folder
        path = folder / FILE
        _check_folder(folder, path)
        with _clear(path):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            with _clear(path):
                self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        db = self._db
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
            raise FairlaneError(f"{self.folder / FILE}: no ledger of `fairlane embed`; {_WAY_OUT}")
        elif (version := db.execute("PRAGMA user_version").fetchone()[0]) != VERSION:
            raise FairlaneError(
                f"{self.folder / FILE}: version {version} of a ledger; this release reads "
                f"{VERSION}: upgrade it, or {_WAY_OUT}"
            )
        db.execute("COMMIT")
        (self.folder / SEEN_FILE).unlink(missing_ok=True)  # of a run that was killed
        db.execute("ATTACH DATABASE ? AS passing", (str(self.folder / SEEN_FILE),))
        db.execute("PRAGMA passing.journal_mode=OFF")
        db.execute("PRAGMA passing.synchronous=OFF")
        db.execute("CREATE TABLE passing.seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self.run = int(self._get("run"))
        self.identity = self._get("identity")

    def _get(self, name: str) -> str:
        found = self._db.execute("SELECT value FROM facts WHERE name=?", (name,)).fetchone()
        return str(found[0]) if found else ""

    def _set(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

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
        db = self._db
        found = db.execute("SELECT number FROM models WHERE name=? AND sha256=?", wanted).fetchone()
        if found is None:
            db.execute("INSERT INTO models (name, sha256) VALUES (?, ?)", wanted)
            return self.model_number(model)
        return int(found[0])

    # --- rows

    def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """Those of the rows that stand in DEST."""
        found: dict[str, Known] = {}
        for piece in _pieces(ids):
            marks = ",".join("?" * len(piece))
            query = f"SELECT id, digest, model, run FROM rows WHERE id IN ({marks})"  # noqa: S608
            for row_id, digest, model, run in self._db.execute(query, piece):
                found[row_id] = Known(digest, model, run)
        return found

    def meet(self, ids: Sequence[str]) -> set[str]:
        """Note ids of the source (each once in `ids`); returns those that it had before."""
        before: set[str] = set()
        for piece in _pieces(ids):
            marks = ",".join("?" * len(piece))
            query = f"SELECT id FROM passing.seen WHERE id IN ({marks})"  # noqa: S608
            before.update(row_id for (row_id,) in self._db.execute(query, piece))
        new = [(row_id,) for row_id in ids if row_id not in before]
        with self._transaction():
            self._db.executemany("INSERT INTO passing.seen VALUES (?)", new)
        return before

    def count(self) -> int:
        """How many rows DEST holds."""
        return int(self._db.execute("SELECT count(*) FROM rows").fetchone()[0])

    def prune(self) -> int:
        """Forget rows whose ids the source did not have; returns how many."""
        where = "id NOT IN (SELECT id FROM passing.seen)"
        return self._db.execute(f"DELETE FROM rows WHERE {where}").rowcount  # noqa: S608

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
        return [Shard(*row) for row in self._db.execute(query)]

    def next_shard(self) -> int:
        """Number of the next shard, which no shard had before."""
        number = int(self._get("next_shard") or "1")
        self._set("next_shard", str(number + 1))
        return number

    def add(self, number: int, size: int, model: int, rows: Sequence[tuple[str, bytes]]) -> None:
        """Record a shard of rows (id, digest of the text), which replace older ones."""
        with self._transaction():
            self._db.execute("INSERT INTO shards VALUES (?, ?, ?)", (number, len(rows), size))
            self._db.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "digest=excluded.digest, model=excluded.model, shard=excluded.shard, "
                "run=excluded.run",
                [(row_id, digest, model, number, self.run) for row_id, digest in rows],
            )

    def in_shard(self, number: int, ids: Sequence[str]) -> set[str]:
        """Those of the ids whose rows stand in this shard."""
        found: set[str] = set()
        for piece in _pieces(ids):
            marks = ",".join("?" * len(piece))
            query = f"SELECT id FROM rows WHERE shard=? AND id IN ({marks})"  # noqa: S608
            found.update(row_id for (row_id,) in self._db.execute(query, (number, *piece)))
        return found

    def replace(self, old: Sequence[int], number: int, size: int, ids: Sequence[str]) -> None:
        """Record that the rows `ids`, all that counts of the shards `old`, are in a new one."""
        with self._transaction():
            if ids:
                self._db.execute("INSERT INTO shards VALUES (?, ?, ?)", (number, len(ids), size))
                self._db.executemany(
                    "UPDATE rows SET shard=? WHERE id=?", [(number, row_id) for row_id in ids]
                )
            self._db.executemany("DELETE FROM shards WHERE number=?", [(n,) for n in old])

    def forget_shard(self, number: int) -> None:
        """The shard's file is gone: its rows are to be embedded again."""
        with self._transaction():
            self._db.execute("DELETE FROM rows WHERE shard=?", (number,))
            self._db.execute("DELETE FROM shards WHERE number=?", (number,))

    def close(self) -> None:
        """Free the file for others."""
        self._db.close()
        (self.folder / SEEN_FILE).unlink(missing_ok=True)


def _pieces(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(ids), IDS_MAX):
        yield ids[at : at + IDS_MAX]


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
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            message = f"{path.parent}: another run writes there; wait for its end or stop it"
            raise FairlaneError(message) from error
        raise FairlaneError(f"{path}: {error}; is the folder writable?") from error
    except sqlite3.DatabaseError as error:
        raise FairlaneError(f"{path}: broken ({error}); {_WAY_OUT}") from error
    except OSError as error:
        raise FairlaneError(f"{error.filename or path}: {error.strerror}") from error
