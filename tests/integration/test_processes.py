"""Each service as a process of its own: starts alone, stops on SIGTERM, returns after kill -9."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.policy_file import load
from fairlane.publish import publish_policy
from schemas.topics import Topics
from tests.support.processes import DEADLINE_S, Processes, until

POLICY = load(Path("examples/policy.toml"))


@pytest.fixture
def key(kafka_bootstrap: str, topics: Topics) -> str:
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, POLICY)
    made = create(log, topics, "acme", 0)
    log.close()
    return made


class Caller:
    """A tenant at the door."""

    def __init__(self, port: int, key: str) -> None:
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=DEADLINE_S,
        )
        until(self._is_ready, "the ingress is ready")

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def submit(self, text: str) -> str:
        answer = self.http.post("/v1/requests", json={"endpoint": "chat", "input": text})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def result(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def has_ended() -> bool:
            found.update(self.http.get(f"/v1/requests/{request_id}?wait=5").json())
            return "ended_ms" in found

        until(has_ended, f"the end of {request_id}")
        return found


def test_one_request_goes_all_the_way_and_all_stop_on_sigterm(
    processes: Processes, key: str
) -> None:
    scheduler = processes.start("scheduler", "--instance", "s", "--metrics-port", "0")
    worker = processes.start("worker", "--pool", "chat", "--instance", "w", "--fixed-ms", "1")
    ingress = processes.start("ingress", "--port", "0", "--instance", "i")
    caller = Caller(ingress.wait_for("listening")["port"], key)
    done = caller.result(caller.submit("hello"))
    assert (done["state"], done["attempts"]) == ("succeeded", 0)
    caller.http.close()
    for process in (ingress, worker, scheduler):
        assert process.stop() == 0
        assert process.noted("stopped")


def test_each_comes_back_after_kill_9(processes: Processes, key: str) -> None:
    commands = {
        "scheduler": ("scheduler", "--instance", "s"),
        "worker": ("worker", "--pool", "chat", "--instance", "w", "--fixed-ms", "1"),
    }
    running = {name: processes.start(*command) for name, command in commands.items()}
    ingress = processes.start("ingress", "--port", "0", "--instance", "i")
    port = ingress.wait_for("listening")["port"]
    caller = Caller(port, key)
    assert caller.result(caller.submit("before"))["state"] == "succeeded"
    for name, command in commands.items():
        assert running[name].stop(signal.SIGKILL) == -signal.SIGKILL
        waiting = caller.submit(f"while the {name} is gone")
        running[name] = processes.start(*command)
        assert caller.result(waiting)["state"] == "succeeded"
    waiting = caller.submit("over the ingress's death")
    caller.http.close()
    ingress.stop(signal.SIGKILL)
    processes.start("ingress", "--port", str(port), "--instance", "i")
    again = Caller(port, key)
    assert again.result(waiting)["state"] == "succeeded"
    again.http.close()


def test_who_runs_under_a_name_that_is_taken_over_ends_as_fenced(
    processes: Processes, key: str
) -> None:
    first = processes.start("scheduler", "--instance", "same")
    first.wait_for("shard taken over")
    processes.start("scheduler", "--instance", "same").wait_for("shard taken over")
    assert first.process.wait(DEADLINE_S) == 3, first.text()
    assert first.noted("fenced")


def test_services_wait_for_a_policy_and_then_go_on(
    processes: Processes, kafka_bootstrap: str, topics: Topics
) -> None:
    scheduler = processes.start("scheduler", "--instance", "s")
    scheduler.wait_for("no policy is published yet: run 'fairlane policy apply FILE'")
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, POLICY)
    log.close()
    scheduler.wait_for("shard taken over")
    assert scheduler.stop() == 0


def test_what_a_user_can_mend_is_one_line_and_exit_2(processes: Processes) -> None:
    taken = processes.start("ingress", "--port", "0")
    port = str(taken.wait_for("listening")["port"])
    second = processes.start("ingress", "--port", port)
    assert second.process.wait(DEADLINE_S) == 2
