"""`fairlane embed` through ingress, Kafka, scheduler and worker: killed twice, nothing twice."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adapters.kafka import KafkaLog
from fairlane.embedded import one_endpoint
from fairlane.keys import create
from fairlane.publish import publish_policy
from fairlane.stack import free_ports
from schemas.codec import decode_header
from schemas.log import Log
from schemas.records import End, Result
from schemas.topics import Topics
from tests.support.processes import DEADLINE_S, Processes, until
from tests.support.vectors import by_id

ROWS = 1_500
TENANTS = ["acme", "big-co", "c3"]
ENGINE = ["--engine", "simulated", "--dimensions", "8", "--fixed-ms", "20", "--per-token-us", "0"]


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[Log]:
    opened = KafkaLog(kafka_bootstrap, replication=1)
    yield opened
    opened.close()


@pytest.fixture
def keys(log: Log, topics: Topics) -> dict[str, str]:
    publish_policy(log, topics, one_endpoint("embed", TENANTS, batch_requests=4))
    return {tenant: create(log, topics, tenant, 0) for tenant in TENANTS}


@pytest.fixture
def url(
    kafka_bootstrap: str, redis_url: str, topics: Topics, keys: dict[str, str], tmp_path: Path
) -> Iterator[str]:
    """A deployment that serves the policy."""
    env = {
        "FAIRLANE_KAFKA": kafka_bootstrap,
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_PREFIX": topics.prefix,
        "FAIRLANE_REPLICATION": "1",
    }
    processes = Processes(tmp_path, env)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    try:
        processes.start("ingress", "--port", str(port))
        processes.start("scheduler")
        processes.start("worker", "--pool", "embed", *ENGINE)

        def is_ready() -> bool:
            try:
                return httpx.get(f"{address}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(is_ready, "the ingress is ready")
        yield address
    finally:
        processes.close()


def results(log: Log, topics: Topics) -> list[Result]:
    """Every result that there is."""
    part = (topics.results, 0)
    reader = log.reader()
    low, end = reader.bounds(part)
    reader.assign({part: low})
    found: list[Result] = []
    while not reader.reached(part, end):
        found += [decode_header(record, Result) for record in reader.poll(1_000, 0.1)]
    reader.close()
    return found


def test_killed_twice_nothing_is_lost_doubled_or_computed_twice(
    tmp_path: Path, log: Log, topics: Topics, keys: dict[str, str], url: str
) -> None:
    source, out = tmp_path / "corpus.jsonl", tmp_path / "out"
    rows = [{"id": f"r{n}", "text": f"text {n}", "who": TENANTS[n % 3]} for n in range(ROWS)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "fairlane", "embed", str(source), "--out", str(out)]
    command += ["--url", url, "--tenant-column", "who", "--rows-per-request", "10"]
    command += ["--shard-rows", "150", "--outstanding", "8", "--tenant-key", f"acme={keys['acme']}"]
    env = {**os.environ, "FAIRLANE_KEY_BIG_CO": keys["big-co"], "FAIRLANE_KEY_C3": keys["c3"]}
    for shards in (2, 5):
        process = subprocess.Popen(command, env=env)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while len(list(out.glob("shard-*.parquet"))) < shards:
                assert process.poll() is None, "it ended before it was killed"
                assert time.monotonic() < deadline, "no shard comes"
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait(DEADLINE_S)
    assert subprocess.run(command, env=env, timeout=DEADLINE_S, check=False).returncode == 0
    found = by_id(out)
    assert {row_id: row["tenant"] for row_id, row in found.items()} == {
        row["id"]: row["who"] for row in rows
    }
    ended = results(log, topics)
    assert {result.end for result in ended} == {End.SUCCEEDED}
    # Each tenant's rows in requests of ten, and one question about the model a call.
    assert len({result.id for result in ended}) == len(ended) == ROWS // 10 + 3
