"""Shards and ledger of `fairlane embed`: one row an id, whenever the process was killed."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from struct import pack

import pyarrow.parquet as pq
import pytest

from fairlane.embed_groups import Embedding
from fairlane.embed_ledger import FILE, SEEN_FILE, Key, Ledger, LedgerError, Model
from fairlane.embed_sink import SHARD_S, Sink
from fairlane.errors import FairlaneError
from tests.support.vectors import by_id, by_key, stored

FIRST = {f"id{n}": f"text {n}" for n in range(25)}
#: Three changed, one new, one gone.
SECOND = {**FIRST, "id3": "other", "id13": "other", "id14": "other", "new": "text"}
del SECOND["id7"]


class KilledError(BaseException):
    """The process ends here: nothing is cleaned up."""


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def embedding(row_id: str, text: str, model: str = "m", tenant: str = "acme") -> Embedding:
    return Embedding(row_id, tenant, pack("<2f", len(text), 1.0), model, "f" * 64, digest(text))


def keys(ids: Sequence[str], tenant: str = "acme") -> list[Key]:
    return [Key(tenant, row_id) for row_id in ids]


def run(
    folder: Path,
    texts: dict[str, str],
    step: Callable[[str], None],
    *,
    prune: bool = False,
    tenant: str = "acme",
    shard_rows: int = 10,
) -> int:
    """One run over the texts, as `fairlane.embed_run` drives it; returns how many were new."""
    ledger = Ledger(folder)
    try:
        sink = Sink(ledger, has_tenant=True, shard_rows=shard_rows, step=step)
        ledger.fix_shape(has_tenant=True, dimensions=2)
        ledger.model_number(Model("m", "f" * 64, 2))
        sink.tidy()
        assert ledger.meet(keys(list(texts), tenant)) == set()
        known = {key.id: row for key, row in ledger.known(keys(list(texts), tenant)).items()}
        new = {i: t for i, t in texts.items() if i not in known or known[i].digest != digest(t)}
        for row_id, text in new.items():
            sink.add([embedding(row_id, text, tenant=tenant)])
        sink.flush()
        assert sink.recorded == len(new)
        if prune:
            ledger.prune()
        sink.compact()
        ledger.end_run()
    finally:
        ledger._db.close()
    return len(new)


def killing_at(number: int) -> Callable[[str], None]:
    """A step that kills at its `number`-th call."""
    left = [number]

    def step(_: str) -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1

    return step


def ignore(_: str) -> None:
    pass


def texts_in(folder: Path) -> dict[str, str]:
    return {row_id: row["text_sha256"] for row_id, row in by_id(folder).items()}


def shas(texts: dict[str, str]) -> dict[str, str]:
    return {row_id: digest(text).hex() for row_id, text in texts.items()}


def kills(folder: Path, texts: dict[str, str], *, prune: bool) -> int:
    """Kill before each step in turn, each time further on; returns how many kills there were."""
    for number in range(1_000):
        try:
            run(folder, texts, killing_at(number), prune=prune)
        except KilledError:
            continue
        return number
    raise AssertionError("the run never comes to its end")


def unchanged_once(folder: Path, *, is_whole: bool) -> None:
    """A reader of what a kill left meets no row twice but those whose text has changed.

    While shards make way for another rows may be missing, else (`is_whole`) none is.
    """
    times = Counter(row["id"] for row in stored(folder))
    changed = {"id3", "id13", "id14"}
    assert {row_id for row_id, count in times.items() if count > 1} <= changed
    if is_whole:
        assert times.keys() >= FIRST.keys() - changed - {"id7"}


def test_killed_at_any_step_and_run_again_there_is_one_row_an_id(tmp_path: Path) -> None:
    steps: list[str] = []
    run(tmp_path / "whole", FIRST, steps.append)
    first = len(steps)
    copytree(tmp_path / "whole", tmp_path / "first")
    run(tmp_path / "whole", SECOND, steps.append, prune=True)
    assert set(steps) == {"number", "write", "record", "replace", "remove", "rename"}
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        is_later = number >= first
        if is_later:
            copytree(tmp_path / "first", folder)
        step = killing_at(number - first if is_later else number)
        with pytest.raises(KilledError):
            run(folder, SECOND if is_later else FIRST, step, prune=is_later)
        unchanged_once(folder, is_whole=is_later and steps[number] not in {"remove", "rename"})
        run(folder, SECOND, ignore, prune=True)
        assert texts_in(folder) == shas(SECOND), f"killed before step {number}"
        assert run(folder, SECOND, ignore) == 0


def test_killed_again_and_again_it_comes_to_the_same(tmp_path: Path) -> None:
    assert kills(tmp_path, FIRST, prune=False) > 3
    assert texts_in(tmp_path) == shas(FIRST)
    assert kills(tmp_path, SECOND, prune=True) > 3
    assert texts_in(tmp_path) == shas(SECOND)


def test_rows_that_left_the_source_stay_unless_they_are_pruned(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    run(tmp_path, SECOND, ignore)
    assert texts_in(tmp_path) == shas({"id7": FIRST["id7"], **SECOND})
    run(tmp_path, SECOND, ignore, prune=True)
    assert texts_in(tmp_path) == shas(SECOND)


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.parquet")}
    steps: list[str] = []
    assert run(tmp_path, FIRST, steps.append) == 0
    assert steps == []
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.parquet")} == before


def test_small_shards_become_one(tmp_path: Path) -> None:
    for number in range(1, 6):
        run(tmp_path, {f"id{n}": "t" for n in range(number)}, ignore)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert len(stored(tmp_path)) == 5


def test_a_shard_holds_vectors_of_one_size_and_what_they_are_of(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    row = by_id(tmp_path)["id3"]
    assert row == {
        "id": "id3",
        "tenant": "acme",
        "vector": [6.0, 1.0],
        "model": "m",
        "model_sha256": "f" * 64,
        "text_sha256": digest("text 3").hex(),
    }


def test_an_old_shard_is_written_before_it_is_full(tmp_path: Path) -> None:
    now_s = [0.0]
    ledger = Ledger(tmp_path)
    sink = Sink(ledger, has_tenant=True, now_s=lambda: now_s[0])
    sink.add([embedding("a", "t")])
    assert stored(tmp_path) == []
    now_s[0] = SHARD_S
    sink.add([embedding("b", "t")])
    assert len(stored(tmp_path)) == 2
    ledger.close()


def test_a_shard_that_is_gone_is_embedded_again(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    (tmp_path / "shard-000001.parquet").unlink()
    assert run(tmp_path, FIRST, ignore) == 10
    assert texts_in(tmp_path) == shas(FIRST)


def test_a_shard_that_was_changed_is_told_and_kept(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    path = tmp_path / "shard-000001.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FairlaneError, match=r"shard-000001\.parquet: has \d+ bytes"):
        run(tmp_path, FIRST, ignore)
    assert path.exists()


def test_files_that_nobody_recorded_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    for name in ("shard-000099.parquet", ".shard-000098.parquet.tmp", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    run(tmp_path, FIRST, ignore)
    names = {path.name for path in tmp_path.iterdir()}
    assert "notes.txt" in names
    assert not names & {"shard-000099.parquet", ".shard-000098.parquet.tmp"}


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.docx").write_bytes(b"x")
    with pytest.raises(FairlaneError, match="not ours"):
        Ledger(tmp_path)
    with pytest.raises(FairlaneError, match="is a file"):
        Ledger(tmp_path / "thesis.docx")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.docx"]


def test_a_ledger_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(FairlaneError, match="broken"):
        Ledger(tmp_path)
    (tmp_path / FILE).unlink()
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("CREATE TABLE t (a)")
    other.close()
    with pytest.raises(FairlaneError, match="no ledger"):
        Ledger(tmp_path)


@pytest.mark.parametrize("version", [1, 99])
def test_a_ledger_of_another_release_is_told(tmp_path: Path, version: int) -> None:
    run(tmp_path, FIRST, ignore)
    other = sqlite3.connect(tmp_path / FILE)
    other.execute(f"PRAGMA user_version={version}")
    other.close()
    with pytest.raises(FairlaneError, match=f"of version {version}.* use the release"):
        Ledger(tmp_path)


def test_two_runs_at_once_are_one_too_many(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(FairlaneError, match="another run"):
        Ledger(tmp_path)
    ledger.close()
    Ledger(tmp_path).close()
    assert not (tmp_path / SEEN_FILE).exists()


def test_another_shape_is_refused(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    ledger = Ledger(tmp_path)
    with pytest.raises(FairlaneError, match="dimensions"):
        ledger.fix_shape(has_tenant=True, dimensions=3)
    with pytest.raises(FairlaneError, match="tenant"):
        ledger.fix_shape(has_tenant=False, dimensions=2)
    ledger.close()


def test_rows_met_twice_are_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    many = keys([f"id{n}" for n in range(2_000)])
    assert ledger.meet(many) == set()
    assert ledger.meet(keys(["new", "id5", "id1999"])) == set(keys(["id5", "id1999"]))
    assert ledger.meet(keys(["id5", "id6"], "other")) == set()
    ledger.close()
    ledger = Ledger(tmp_path)
    assert ledger.meet(many) == set()
    ledger.close()


def test_rows_of_two_tenants_with_one_id_are_two_rows(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    assert run(tmp_path, FIRST, ignore, tenant="other") == 25
    run(tmp_path, {**FIRST, "id3": "changed"}, ignore)
    found = by_key(tmp_path)
    assert len(found) == 50
    assert found["acme", "id3"]["text_sha256"] == digest("changed").hex()
    assert found["other", "id3"]["text_sha256"] == digest("text 3").hex()


def test_a_row_that_went_over_to_another_tenant_is_new_there(tmp_path: Path) -> None:
    run(tmp_path, FIRST, ignore)
    assert run(tmp_path, {"id3": FIRST["id3"]}, ignore, tenant="other", prune=True) == 1
    assert by_key(tmp_path).keys() == {("other", "id3")}


def test_shards_closed_by_their_bytes_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again they would all be in memory at once, whatever the size of a vector."""
    monkeypatch.setattr("fairlane.embed_sink.SHARD_BYTES", 80)  # ten vectors of two floats
    texts = {f"id{n}": "t" for n in range(60)}
    run(tmp_path, texts, ignore, shard_rows=1_000)
    sizes = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.glob("*.parquet"))]
    assert sizes == [10] * 6
    run(tmp_path, {f"id{n}": "t" for n in range(0, 60, 2)}, ignore, prune=True, shard_rows=1_000)
    sizes = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.glob("*.parquet"))]
    assert sizes == [10] * 3
    steps: list[str] = []
    assert run(tmp_path, {"id0": "t"}, steps.append, shard_rows=1_000) == 0
    assert steps == []


def test_a_small_shard_that_nothing_fits_to_stays(tmp_path: Path) -> None:
    run(tmp_path, {f"a{n}": "t" for n in range(4)}, ignore)
    name = next(tmp_path.glob("*.parquet")).name
    ten = {f"b{n}": "t" for n in range(10)}
    run(tmp_path, ten, ignore)
    run(tmp_path, {"b0": "changed"}, ignore)
    assert (tmp_path / name).exists()
    assert len(by_id(tmp_path)) == 14


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.fix_shape(has_tenant=True, dimensions=2),
        lambda ledger: ledger.model_number(Model("new", "", 2)),
        lambda ledger: ledger.known(keys(["a"])),
        lambda ledger: ledger.meet(keys(["a"])),
        lambda ledger: ledger.count(),
        lambda ledger: ledger.prune(),
        lambda ledger: ledger.end_run(),
        lambda ledger: ledger.shards(),
        lambda ledger: ledger.next_shard(),
        lambda ledger: ledger.add(1, 1, 1, [(Key("", "a"), b"")]),
        lambda ledger: ledger.in_shard(1, keys(["a"])),
        lambda ledger: ledger.replace([1], 2, 1, keys(["a"])),
        lambda ledger: ledger.forget_shard(1),
    ],
)
def test_a_ledger_that_breaks_says_where_and_what_to_do(
    tmp_path: Path, call: Callable[[Ledger], object]
) -> None:
    ledger = Ledger(tmp_path)
    for table in ("facts", "models", "shards", "rows", "passing.seen"):
        ledger._db.execute(f"DROP TABLE {table}")
    with pytest.raises(LedgerError, match=rf"{FILE}: no such table.*is the folder writable"):
        call(ledger)
    assert not ledger._db.in_transaction
    ledger.close()


def test_a_full_disk_and_a_corrupt_ledger_are_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger._db.execute("PRAGMA max_page_count=1")
    rows = [(Key("", f"id{n}"), digest(str(n))) for n in range(10_000)]
    with pytest.raises(LedgerError, match=rf"{FILE}: .*full; make room"):
        ledger.add(1, 1, 1, rows)
    assert ledger.count() == 0
    ledger.close()
    ledger = Ledger(tmp_path)
    ledger.add(1, 1, 1, rows)
    ledger.close()
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:8_192] + b"\xff" * (path.stat().st_size - 8_192))
    ledger = Ledger(tmp_path)
    with pytest.raises(LedgerError, match=rf"{FILE}: broken.*remove the folder"):
        ledger.known([key for key, _ in rows])
    ledger.close()


def test_rows_are_looked_up_and_not_searched_for(tmp_path: Path) -> None:
    """The cost of a row must not grow with the rows that stand in DEST."""
    ledger = Ledger(tmp_path)
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    ledger.known(keys(["a", "b"]))
    ledger.meet(keys(["a", "b"]))
    ledger.in_shard(1, keys(["a", "b"]))
    ledger._db.set_trace_callback(None)
    queries = [query for query in asked if "SELECT" in query]
    assert len(queries) == 3
    for query in queries:
        plan = ledger._db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        told = [str(line[3]) for line in plan]
        assert any("USING PRIMARY KEY (tenant=? AND id=?)" in line for line in told), told
    ledger.close()
