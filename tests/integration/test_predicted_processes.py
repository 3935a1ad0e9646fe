"""What waits, published by a scheduler's process and read by an ingress's, on a real Redis."""

from pathlib import Path

import httpx
from msgspec.structs import replace

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.policy_file import load
from fairlane.publish import publish_policy
from schemas.policy import Predict
from schemas.topics import Topics
from tests.support.processes import DEADLINE_S, Processes, until

EXAMPLE = load(Path("examples/policy.toml"))
POLICY = replace(
    EXAMPLE,
    endpoints=tuple(replace(endpoint, predict=Predict.ON) for endpoint in EXAMPLE.endpoints),
)


def test_an_endpoint_is_refused_while_nobody_works_there(
    processes: Processes, kafka_bootstrap: str, topics: Topics
) -> None:
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, POLICY)
    key = create(log, topics, "acme", 0)
    log.close()
    scheduler = processes.start("scheduler", "--instance", "s")
    scheduler.wait_for("shard taken over")
    port = processes.start("ingress", "--port", "0", "--instance", "i").wait_for("listening")[
        "port"
    ]
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {key}"},
        timeout=DEADLINE_S,
    ) as caller:

        def answer() -> str:
            told = caller.post("/v1/requests", json={"endpoint": "chat", "input": "hello"})
            return "in" if told.status_code == 202 else str(told.json().get("reason"))

        until(lambda: answer() == "no_workers", "the ingress knows that nobody works there")
        worker = processes.start("worker", "--pool", "chat", "--instance", "w", "--fixed-ms", "1")
        until(lambda: answer() == "in", "the ingress knows that somebody does")
        assert worker.stop() == 0
        until(lambda: answer() == "no_workers", "the worker's farewell is known")
    assert scheduler.stop() == 0
