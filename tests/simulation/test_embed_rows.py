"""`fairlane embed` and what a row is known by; sources that are read once too often; a bad row."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlane.__main__ import run as fairlane
from fairlane.embed_ledger import FILE, Ledger
from fairlane.embed_run import FAILED_FILE
from fairlane.embed_source import TEXT_BYTES_MAX
from tests.support.vectors import by_id, by_key

ENGINE = ["--engine", "simulated", "--dimensions", "8", "--fixed-ms", "1", "--per-token-us", "0"]
BY_TENANT = ["--tenant-column", "who"]


def embed(source: Path, out: Path, *options: str) -> int:
    return fairlane(["embed", str(source), "--out", str(out), *ENGINE, *options])


def corpus(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(row_id: str, who: str, text: str = "text") -> dict[str, str]:
    return {"id": row_id, "who": who, "text": text}


def failures(out: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (out / FAILED_FILE).read_text().splitlines()]
    return [(line["id"], line["reason"]) for line in lines]


def test_two_tenants_may_each_have_a_row_of_one_id(tmp_path: Path) -> None:
    source, out = tmp_path / "c.jsonl", tmp_path / "out"
    corpus(source, row("1", "acme", "of acme"), row("1", "beta", "of beta"), row("1", "beta"))
    assert embed(source, out, *BY_TENANT) == 1
    assert by_key(out).keys() == {("acme", "1"), ("beta", "1")}
    assert failures(out) == [("1", "duplicate_id")]
    corpus(source, row("1", "acme", "of acme"), row("1", "beta", "of beta"))
    assert embed(source, out, *BY_TENANT) == 0


def test_a_row_that_goes_over_to_another_tenant_stands_under_its_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = corpus(tmp_path / "c.jsonl", row("1", "acme")), tmp_path / "out"
    assert embed(source, out, *BY_TENANT) == 0
    assert embed(corpus(source, row("1", "beta")), out, *BY_TENANT, "--prune") == 0
    assert "1 embedded, 0 unchanged, 1 pruned" in capsys.readouterr().err
    assert by_key(out).keys() == {("beta", "1")}


def test_a_row_whose_tenant_is_not_known_prunes_nothing(tmp_path: Path) -> None:
    source, out = corpus(tmp_path / "c.jsonl", row("1", "a"), row("2", "a")), tmp_path / "out"
    assert embed(source, out, *BY_TENANT) == 0
    corpus(source, row("1", "a"), {"id": "2", "who": None, "text": "text"})
    assert embed(source, out, *BY_TENANT, "--prune") == 1
    assert by_key(out).keys() == {("a", "1"), ("a", "2")}
    corpus(source, row("1", "a", " "), row("3", "a"))
    assert embed(source, out, *BY_TENANT, "--prune") == 1  # known by its name, text or not
    assert by_key(out).keys() == {("a", "1"), ("a", "3")}


def test_a_pipe_is_refused_and_nothing_of_dest_is_touched(tmp_path: Path) -> None:
    source, out = tmp_path / "c.txt", tmp_path / "out"
    source.write_text("a\nb\nc\n")
    assert embed(source, out) == 0
    before = by_id(out)
    reading, writing = os.pipe()
    os.write(writing, b"a\nb\nc\n")
    os.close(writing)
    command = [sys.executable, "-m", "fairlane", "embed", f"/dev/fd/{reading}", "--format", "text"]
    ended = subprocess.run(
        [*command, "--out", str(out), "--prune", *ENGINE],
        pass_fds=[reading],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reading)
    assert ended.returncode == 2
    assert "into a file first" in ended.stderr
    assert by_id(out) == before


def test_lines_in_gzip_go_the_same_way(tmp_path: Path) -> None:
    source, out = tmp_path / "c.jsonl.gz", tmp_path / "out"
    source.write_bytes(gzip.compress(b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n'))
    assert embed(source, out) == 0
    assert by_id(out).keys() == {"a", "b"}
    source.write_bytes(source.read_bytes()[:-12])
    assert embed(source, out) in {2, 3}
    assert by_id(out).keys() == {"a", "b"}


def test_bad_values_of_parquet_fail_alone(tmp_path: Path) -> None:
    ids = ["a", "b", "c", "d"]
    texts = [b"x", b"\xff", b"y" * (TEXT_BYTES_MAX + 1), b"z"]
    given = {"id": ids, "text": pa.array(texts, pa.binary())}
    pq.write_table(pa.table(given), tmp_path / "c.parquet")
    assert embed(tmp_path / "c.parquet", tmp_path / "out") == 1
    assert by_id(tmp_path / "out").keys() == {"a", "d"}
    assert failures(tmp_path / "out") == [("2", "unreadable"), ("c", "body_too_large")]


def test_a_disk_that_has_no_room_for_the_ledger_is_told_and_the_run_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(f"doc{number}", "acme", f"text {number}") for number in range(400)]
    source, out = corpus(tmp_path / "c.jsonl", *rows), tmp_path / "out"
    add = Ledger.add

    def full(self: Ledger, *given: Any) -> None:
        self._db.execute("PRAGMA max_page_count=1")  # as many as there are
        add(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "add", full)
        assert embed(source, out) == 3
    assert f"{FILE}: database or disk is full; make room" in capsys.readouterr().err
    assert embed(source, out) == 0
    assert len(by_id(out)) == 400
