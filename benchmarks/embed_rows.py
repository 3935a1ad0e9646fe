"""A million synthetic rows through `fairlane embed` with the simulated engine.

One operation: the command as its own process, from a JSONL source to the last shard. Its peak
memory is what the kernel says when it has ended (ru_maxrss); ids in DEST are counted by code
of this file alone. The model takes 1 ms a batch: what is measured is everything around it.

    python -m benchmarks.embed_rows [--json] [--quick] [--mode embedded|real] [--rows N]

`embedded`: the process holds the whole deployment. `real`: it is the client of an ingress, a
scheduler and a worker on a Kafka and a Redis that are started for it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from adapters.clock import SystemClock
from benchmarks.deployment import Deployment
from fairlane.embedded import one_endpoint
from fairlane.keys import create

ROWS = 1_000_000
ROWS_QUICK = 50_000
DIMENSIONS = 384
ENGINE = (
    *("--engine", "simulated", "--dimensions", str(DIMENSIONS)),
    *("--fixed-ms", "1", "--per-token-us", "0"),
)
#: The figure to stay below.
RSS_MB_MAX = 300


def write_source(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for number in range(rows):
            text = f"row {number} of a corpus that nobody wrote, about subject {number % 997}"
            file.write(f'{{"id": "doc-{number}", "text": "{text}"}}\n')


def count(folder: Path, rows: int) -> dict[str, int]:
    """How many of doc-0..doc-(rows-1) are missing, and how many rows are too many."""
    seen = bytearray(rows)
    found = doubled = 0
    for path in folder.glob("*.parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["id"]):
                for row_id in batch.column("id").to_pylist():
                    number = int(row_id.removeprefix("doc-"))
                    found += 1
                    doubled += seen[number]
                    seen[number] = 1
    return {"rows": found, "missing": rows - sum(seen), "doubled": doubled}


def measure(folder: Path, rows: int, *arguments: str) -> dict[str, Any]:
    source, out = folder / "corpus.jsonl", folder / "vectors"
    write_source(source, rows)
    command = [sys.executable, "-m", "fairlane", "embed", str(source), "--out", str(out)]
    began = time.monotonic()
    process = subprocess.Popen([*command, *arguments], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"fairlane embed ended with {process.returncode}")
    return {
        **count(out, rows),
        "peak_rss_mb": round(usage.ru_maxrss / 1024, 1),
        "rows_per_s": round(rows / seconds),
        "duration_s": round(seconds, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "dimensions": DIMENSIONS,
    }


def real(folder: Path, rows: int) -> dict[str, Any]:
    with Deployment(one_endpoint("embed", ["acme"])) as deployment:
        key = create(deployment.log, deployment.topics, "acme", SystemClock().now_ms())
        port = str(deployment.http_port)
        deployment.define("ingress-0", "ingress", "--port", port, "--instance", "ingress-0")
        deployment.define("scheduler-0", "scheduler", "--instance", "scheduler-0")
        worker = ("worker", "--pool", "embed", "--slots", "2", "--instance", "worker-0")
        deployment.define("worker-0", *worker, *ENGINE)
        for name in ("ingress-0", "scheduler-0", "worker-0"):
            deployment.start(name)
        deployment.wait_ready()
        return measure(folder, rows, "--url", deployment.url, "--key", key)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embed_rows")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help=f"{ROWS_QUICK:,} rows")
    parser.add_argument("--rows", type=int, help=f"default: {ROWS:,}")
    parser.add_argument("--mode", choices=("embedded", "real"), default="embedded")
    given = parser.parse_args()
    rows = given.rows or (ROWS_QUICK if given.quick else ROWS)
    with tempfile.TemporaryDirectory(prefix="fairlane-embed-") as name:
        folder = Path(name)
        found = real(folder, rows) if given.mode == "real" else measure(folder, rows, *ENGINE)
    report = {"mode": given.mode, **found}
    if given.quick:
        report["quick"] = True
    print(json.dumps(report) if given.json else text(report))


def text(report: dict[str, Any]) -> str:
    return (
        f"{report['mode']}: {report['rows']:,} rows in {report['duration_s']} s, "
        f"{report['rows_per_s']:,} a second; {report['missing']} missing, {report['doubled']} "
        f"doubled; at most {report['peak_rss_mb']} MB of memory (wanted: below {RSS_MB_MAX})"
    )


if __name__ == "__main__":
    main()
