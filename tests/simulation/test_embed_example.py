"""The example of the Python client, run as it is told to be run."""

import json
import math
import subprocess
import sys
from pathlib import Path

from tests.support.processes import DEADLINE_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed_corpus.py"


def test_every_row_has_its_vector(tmp_path: Path) -> None:
    corpus, vectors = tmp_path / "corpus.jsonl", tmp_path / "vectors.jsonl"
    rows = [{"id": f"doc{n}", "text": f"text {n % 50}"} for n in range(200)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, str(EXAMPLE), str(corpus), str(vectors)]
    subprocess.run(command, check=True, timeout=DEADLINE_S, cwd=EXAMPLE.parents[1])
    found = [json.loads(line) for line in vectors.read_text().splitlines()]
    by_id = {row["id"]: row["vector"] for row in found}
    assert len(found) == len(by_id) == 200
    assert by_id["doc3"] == by_id["doc53"] != by_id["doc4"]
    assert all(math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-6) for vector in by_id.values())


def test_rows_that_fail_are_told_and_counted(tmp_path: Path) -> None:
    corpus, vectors = tmp_path / "corpus.jsonl", tmp_path / "vectors.jsonl"
    corpus.write_text('{"id": "doc1", "text": 5}\n')
    command = [sys.executable, str(EXAMPLE), str(corpus), str(vectors)]
    ended = subprocess.run(
        command, check=False, timeout=DEADLINE_S, cwd=EXAMPLE.parents[1], capture_output=True
    )
    assert ended.returncode == 1
    assert b"doc1..doc1: engine_refused" in ended.stderr
