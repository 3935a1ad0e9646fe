"""`fairlane embed` as a user runs it: killed twice, run again, changed, wrong from the start."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fairlane.__main__ import run as fairlane
from fairlane.embed_doors import tenant_keys
from fairlane.embed_ledger import LedgerError
from fairlane.embed_run import FAILED_FILE
from fairlane.embed_show import LINE_S, PlainShow, TerminalShow
from fairlane.errors import FairlaneError
from tests.support.processes import DEADLINE_S
from tests.support.vectors import by_id
from workers.engines.simulated import SimulatedEngine

ENGINE = ["--engine", "simulated", "--dimensions", "8", "--fixed-ms", "1", "--per-token-us", "0"]

#: Many shards of a small corpus.
SMALL = ["--tenant-column", "who", "--shard-rows", "300"]


def corpus(path: Path, rows: int, **changed: str) -> Path:
    with path.open("w") as file:
        for number in range(rows):
            text = changed.get(f"doc{number}", f"text {number}")
            row = {"id": f"doc{number}", "text": text, "who": f"t{number % 3}"}
            file.write(json.dumps(row) + "\n")
    return path


def embed(source: Path, out: Path, *options: str) -> int:
    return fairlane(["embed", str(source), "--out", str(out), *ENGINE, *options])


def stop_when_a_shard_is_there(
    source: Path, out: Path, shards: int, number: int = signal.SIGKILL
) -> int:
    """Run the command in a process of its own and stop it in the middle; returns its exit code."""
    command = [sys.executable, "-m", "fairlane", "embed", str(source), "--out", str(out), *ENGINE]
    env = {**os.environ, "PYTHONWARNINGS": "default"}
    process = subprocess.Popen([*command, *SMALL], env=env)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while len(list(out.glob("shard-*.parquet"))) < shards:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline, "no shard comes"
            time.sleep(0.002)
        process.send_signal(number)
        return process.wait(DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)


def test_killed_twice_and_run_again_each_row_is_there_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = 3_000
    source, out = corpus(tmp_path / "c.jsonl", rows), tmp_path / "out"
    assert stop_when_a_shard_is_there(source, out, 1) == -signal.SIGKILL
    assert stop_when_a_shard_is_there(source, out, 2) == -signal.SIGKILL
    assert embed(source, out, *SMALL) == 0
    found = by_id(out)
    assert found.keys() == {f"doc{number}" for number in range(rows)}
    assert all(row["tenant"] == f"t{int(row_id[3:]) % 3}" for row_id, row in found.items())
    said = capsys.readouterr().err
    assert "unchanged" in said
    assert f"{rows:,} embedded" not in said  # what the killed runs wrote was kept


def test_stopped_by_hand_it_keeps_what_it_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 3_000), tmp_path / "out"
    assert stop_when_a_shard_is_there(source, out, 1, signal.SIGINT) == 3
    said = capfd.readouterr().err
    assert "run the same command again" in said
    assert "Traceback" not in said
    kept = len(by_id(out))
    assert 0 < kept < 3_000
    assert embed(source, out, *SMALL) == 0
    assert len(by_id(out)) == 3_000
    assert f"{3_000 - kept:,} embedded, {kept:,} unchanged" in capfd.readouterr().err


def test_a_disk_that_takes_no_more_is_told_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 200), tmp_path / "out"

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("fairlane.embed_sink.write_shard", full)
        assert embed(source, out, "--shard-rows", "50") == 3
    assert "No space left" in capsys.readouterr().err
    assert embed(source, out) == 0
    assert len(by_id(out)) == 200


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("fix_shape", LedgerError("the ledger is broken"), "the ledger is broken"),
        ("add", LedgerError("the ledger is broken"), "the ledger is broken"),
        ("add", KeyError("x"), "Traceback"),
    ],
)
def test_no_error_in_the_middle_looks_as_if_some_rows_failed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: Exception,
    said: str,
) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 200), tmp_path / "out"

    def broken(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(f"fairlane.embed_ledger.Ledger.{call}", broken)
        assert embed(source, out, "--shard-rows", "50") == 3
    told = capsys.readouterr().err
    assert said in told
    assert "again to go on" in told
    assert "failed: see" not in told
    assert embed(source, out) == 0
    assert len(by_id(out)) == 200


def test_rows_of_a_tenant_that_is_no_name_fail_alone(tmp_path: Path) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 20), tmp_path / "out"
    with source.open("a") as file:
        file.write('{"id": "a", "text": "a", "who": "Not A Name"}\n')
        file.write('{"id": "b", "text": "b", "who": ""}\n')
    assert embed(source, out, "--tenant-column", "who") == 1
    lines = [json.loads(line) for line in (out / FAILED_FILE).read_text().splitlines()]
    assert [(line["id"], line["reason"]) for line in lines] == [
        ("a", "no_tenant"),
        ("b", "no_tenant"),
    ]
    assert len(by_id(out)) == 20


def test_texts_that_were_cut_are_counted_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says how many texts of a request were longer than its model reads."""
    run = SimulatedEngine.run

    def cutting(*given: Any) -> list[Any]:
        outcomes = run(*given)
        return [
            outcome._replace(
                output=json.dumps({**json.loads(outcome.output), "truncated": 2}).encode()
            )
            for outcome in outcomes
        ]

    monkeypatch.setattr(SimulatedEngine, "run", cutting)
    source, out = corpus(tmp_path / "c.jsonl", 20), tmp_path / "out"
    assert embed(source, out, "--rows-per-request", "5") == 0
    assert "8 texts were longer than the model reads" in capsys.readouterr().err


def test_a_second_run_does_nothing_and_a_change_is_embedded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 200), tmp_path / "out"
    assert embed(source, out) == 0
    before = by_id(out)
    assert embed(source, out) == 0
    assert "0 embedded, 200 unchanged" in capsys.readouterr().err
    assert by_id(out) == before
    assert embed(corpus(source, 200, doc7="changed"), out) == 0
    assert "1 embedded, 199 unchanged" in capsys.readouterr().err
    after = by_id(out)
    assert after.pop("doc7") != before.pop("doc7")
    assert after == before


def test_failed_rows_stand_in_a_file_and_in_the_exit_code(tmp_path: Path) -> None:
    source, out = corpus(tmp_path / "c.jsonl", 20), tmp_path / "out"
    with source.open("a") as file:
        file.write('{broken\n{"id": "doc3", "text": "again"}\n')
    assert embed(source, out) == 1
    lines = [json.loads(line) for line in (out / FAILED_FILE).read_text().splitlines()]
    assert [(line["id"], line["row"], line["reason"]) for line in lines] == [
        ("21", 21, "unreadable"),
        ("doc3", 22, "duplicate_id"),
    ]
    assert len(by_id(out)) == 20
    assert pyarrow.dataset.dataset(out).count_rows() == 20  # readers see nothing but shards


def test_parquet_and_text_go_the_same_way(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [5, 6], "words": ["a", "b"]}), tmp_path / "c.parquet")
    columns = ["--id-column", "n", "--text-column", "words"]
    assert embed(tmp_path / "c.parquet", tmp_path / "p", *columns) == 0
    (tmp_path / "c.txt").write_text("a\n\nb\n")
    assert embed(tmp_path / "c.txt", tmp_path / "t") == 0
    rows, lines = by_id(tmp_path / "p"), by_id(tmp_path / "t")
    assert (sorted(rows), sorted(lines)) == (["5", "6"], ["1", "3"])
    assert rows["6"]["vector"] == lines["3"]["vector"]


def test_an_empty_source_is_done_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"")
    assert embed(tmp_path / "c.jsonl", tmp_path / "out") == 0
    assert by_id(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dimensions", "0"], "--dimensions"),
        (["--key", "k"], "need --url"),
        (["--url", "http://127.0.0.1:1", "--tenant-column", "who"], "no key of any tenant"),
        (["--url", "nowhere", "--key", "k"], "must begin with http"),
        (["--text-column", "body"], "--text-column"),
        (["--endpoint", "Not A Name"], "is not valid"),
    ],
)
def test_what_can_not_begin_says_why(
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAIRLANE_KEY", raising=False)
    source = corpus(tmp_path / "c.jsonl", 3)
    assert embed(source, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_options_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed(tmp_path / "c.jsonl", tmp_path / "out", "--outstanding", "0") == 2
    assert "1..1000" in capsys.readouterr().err


def test_keys_of_tenants_come_by_hand_or_from_the_environment() -> None:
    environ = {"FAIRLANE_KEY": "a", "FAIRLANE_KEY_BIG_CO": "b", "FAIRLANE_KEY_C": "", "OTHER": "x"}
    assert tenant_keys(["acme=c=d"], environ) == {"BIG_CO": "b", "acme": "c=d"}
    for wrong in ("acme", "=k", "acme="):
        with pytest.raises(FairlaneError, match="NAME=KEY"):
            tenant_keys([wrong], {})


def test_a_pipe_gets_a_line_now_and_then() -> None:
    now_s = [0.0]
    lines: list[str] = []
    show = PlainShow(lines.append, lambda: now_s[0])
    show.begin(1_000)
    facts: list[Any] = [(1.0, 0, 0), (LINE_S, 40, 0), (LINE_S + 1, 50, 0), (2 * LINE_S, 180, 3)]
    for at_s, done, failed in facts:
        now_s[0] = at_s
        show.rows(done, failed, done - failed, "")
    assert lines == [
        "40 of 1,000 rows, 10/s, 1:36 left",
        "180 of 1,000 rows, 20/s, 0:42 left, 3 failed",
    ]


def test_rows_that_are_passed_over_are_no_pace() -> None:
    now_s = [0.0]
    lines: list[str] = []
    show = PlainShow(lines.append, lambda: now_s[0])
    show.begin(100_000)
    for at_s in range(1, 200):
        now_s[0] = float(at_s)
        show.rows(90_000 + 10 * at_s, 0, 10 * at_s, "")
    assert lines[-1] == "91,950 of 100,000 rows, 10/s, 13:25 left"
    for at_s in range(200, 400):  # of late it is slower
        now_s[0] = float(at_s)
        show.rows(92_000 + at_s - 200, 0, 2_000 + at_s - 200, "")
    assert ", 1/s, " in lines[-1]


def test_when_nothing_ends_it_is_said_and_why() -> None:
    now_s = [0.0]
    lines: list[str] = []
    show = PlainShow(lines.append, lambda: now_s[0])
    show.begin(100)
    for at_s in range(1, 35):
        now_s[0] = float(at_s)
        show.rows(0, 0, 0, "the limit of tenant acme" if at_s > 25 else "")
    assert lines == [
        "0 of 100 rows, waiting for answers",
        "0 of 100 rows, waiting for answers",
        "0 of 100 rows, waiting for the limit of tenant acme",
    ]


def test_a_terminal_gets_a_bar_with_rate_and_what_failed() -> None:
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=120, color_system=None)
    with TerminalShow(console, "c.jsonl") as show:
        show.begin(1_000)
        show.rows(400, 2, 398, "the limit of tenant acme")
        show.say("a [word] for you")
    assert "c.jsonl, 2 failed, waiting for the limit of tenant acme" in drawn.getvalue()
    assert "400/1000" in drawn.getvalue()
    assert "a [word] for you" in drawn.getvalue()
