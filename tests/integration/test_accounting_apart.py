"""The accounting's death holds nobody up: requests go on, and are counted afterwards."""

import signal
import uuid
from pathlib import Path

import httpx

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.publish import publish_policy
from fairlane.usage_read import read
from schemas.topics import Topics
from schemas.usage import Window
from tests.support.accounting import policy
from tests.support.processes import DEADLINE_S, Processes, until


def submitted(http: httpx.Client) -> str:
    """Submit one request and wait for its end; returns how it ended."""
    answer = http.post("/v1/requests", json={"endpoint": "gpu", "input": "hello"})
    assert answer.status_code == 202, answer.text
    found: dict[str, str] = {}

    def has_ended() -> bool:
        found.update(http.get(f"/v1/requests/{answer.json()['id']}?wait=5").json())
        return "ended_ms" in found

    until(has_ended, "the request has ended")
    return found["state"]


def test_requests_go_on_while_the_accounting_is_dead(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    topics = Topics(f"apart-{uuid.uuid4().hex[:12]}")
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, policy(gpu=2))
    key = create(log, topics, "acme", 0)
    env = {
        "FAIRLANE_KAFKA": kafka_bootstrap,
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_PREFIX": topics.prefix,
        "FAIRLANE_REPLICATION": "1",
    }
    processes = Processes(tmp_path, env)
    try:
        processes.start("scheduler", "--instance", "s")
        processes.start("worker", "--pool", "gpu", "--instance", "w", "--fixed-ms", "1")
        ingress = processes.start("ingress", "--port", "0", "--instance", "i")
        accounting = processes.start("accounting", "--instance", "a")
        accounting.wait_for("counting")
        port = ingress.wait_for("listening")["port"]
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=DEADLINE_S,
        ) as http:
            until(lambda: http.get("/readyz").status_code == 200, "the ingress is ready")
            assert submitted(http) == "succeeded"
            accounting.stop(signal.SIGKILL)
            assert [submitted(http) for _ in range(3)] == ["succeeded"] * 3
        processes.start("accounting", "--instance", "a")
        until(lambda: not read(log, topics).behind, "the accounting has caught up")
        totals = [total for total in read(log, topics).sums if total.window is Window.ALL]
        assert sum(total.used.succeeded for total in totals) == 4
    finally:
        processes.close()
        log.close()
