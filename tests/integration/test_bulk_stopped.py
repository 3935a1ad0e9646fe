"""A real ingress that is told to stop while it answers a bulk call."""

import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.publish import publish_policy
from fairlane.run import EXIT_CLEAN
from producers.bulk import WAVE_LINES
from schemas import codec
from schemas.log import Log
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import Request
from schemas.topics import Topics
from tests.support.processes import DEADLINE_S, Processes, until

LINES = 3_000
TOPICS = Topics(f"stop-{uuid.uuid4().hex[:12]}")
POLICY = Policy(
    tiers=(Tier(name="gold"),),
    pools=(Pool(name="chat"),),
    endpoints=(Endpoint(name="chat", pool="chat"),),
    tenants=(Tenant(name="acme", tiers=("gold",)),),
)


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[Log]:
    opened = KafkaLog(kafka_bootstrap, replication=1)
    yield opened
    opened.close()


@pytest.fixture
def processes(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> Iterator[Processes]:
    env = {
        "FAIRLANE_KAFKA": kafka_bootstrap,
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_PREFIX": TOPICS.prefix,
        "FAIRLANE_REPLICATION": "1",
    }
    found = Processes(tmp_path, env)
    yield found
    found.close()


def published(log: Log) -> list[str]:
    """Ids of the requests in the log, in its order."""
    reader, part = log.reader(), (TOPICS.requests("gold"), 0)
    low, end = reader.bounds(part)
    reader.assign({part: low})
    ids: list[str] = []
    while not reader.reached(part, end):
        ids += [codec.decode_header(r, Request).id for r in reader.poll(1_000, 0.1)]
    reader.close()
    return ids


def test_a_stop_during_a_bulk_call_cuts_no_verdict_and_accepts_what_is_in_the_log(
    log: Log, processes: Processes
) -> None:
    publish_policy(log, TOPICS, POLICY)
    key = create(log, TOPICS, "acme", 0)
    ingress = processes.start("ingress", "--port", "0")
    port = ingress.wait_for("listening")["port"]
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(url + "/readyz").status_code == 200
        return False

    until(is_ready, "the ingress is ready")
    body = b"".join(b'{"endpoint": "chat", "input": %d}\n' % n for n in range(LINES))
    headers = {"Authorization": f"Bearer {key}"}
    answer = b""
    with httpx.stream(
        "POST", url + "/v1/requests:bulk", content=body, headers=headers, timeout=DEADLINE_S
    ) as call:
        assert call.status_code == 200
        with suppress(httpx.RemoteProtocolError):  # the connection ended before the answer did
            for chunk in call.iter_raw():
                if not answer:
                    ingress.process.send_signal(signal.SIGTERM)
                answer += chunk
    assert ingress.process.wait(DEADLINE_S) == EXIT_CLEAN, ingress.text()
    assert answer.endswith(b"\n")
    verdicts = [json.loads(line) for line in answer.splitlines()]
    # Whole verdicts in the order of the lines: all of them, or as many as there was time for.
    assert [verdict["line"] for verdict in verdicts] == list(range(1, len(verdicts) + 1))
    accepted = [verdict["id"] for verdict in verdicts if verdict["status"] == 202]
    in_log = published(log)
    assert len(accepted) == len(verdicts) > 0
    assert in_log[: len(accepted)] == accepted
    # Beyond them at most the wave whose verdicts were on their way.
    assert len(in_log) - len(accepted) <= (WAVE_LINES if len(verdicts) < LINES else 0)
