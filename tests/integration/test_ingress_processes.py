"""Several ingress processes behind one port, on a real Kafka and a real Redis."""

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.policy_file import load
from fairlane.publish import publish_policy
from fairlane.stack import free_ports
from schemas.topics import Topics
from tests.support.processes import FairlaneProcess, Processes, until

POLICY = load(Path("examples/policy.toml"))
COUNT = 2


@pytest.fixture
def key(kafka_bootstrap: str, topics: Topics) -> str:
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, POLICY)
    made = create(log, topics, "acme", 0)
    log.close()
    return made


class Door:
    """Several processes behind one port."""

    def __init__(self, processes: Processes) -> None:
        (self.port,) = free_ports(1)
        self.parent: FairlaneProcess = processes.start(
            *("ingress", "--port", str(self.port), "--processes", str(COUNT)),
            *("--instance", "box"),
        )

    def get(self, path: str, key: str = "") -> httpx.Response | None:
        """One call on a connection of its own; None while nobody listens."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        except httpx.TransportError:
            return None

    def pids(self) -> dict[int, int]:
        """The processes that serve by their numbers, as each noted last."""
        noted = [n for n in self.parent.notes() if "Started server process" in n["event"]]
        return {n["process"]: int(re.findall(r"\d+", n["event"])[-1]) for n in noted}

    def heard(self) -> set[str]:
        """Numbers of the processes that a few scrapes meet."""
        answers = [self.get("/metrics") for _ in range(20)]
        texts = [answer.text for answer in answers if answer is not None]
        found = [set(re.findall(r'process="(\d+)"', text)) for text in texts]
        assert all(len(numbers) == 1 for numbers in found), "a scrape is of one process"
        return set().union(*found)

    def is_ready(self) -> bool:
        answers = [self.get("/readyz") for _ in range(20)]
        return all(answer is not None and answer.status_code == 200 for answer in answers)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_serve_one_that_dies_comes_back_and_a_stop_stops_all(
    processes: Processes, key: str
) -> None:
    door = Door(processes)
    until(lambda: len(door.pids()) == COUNT and door.is_ready(), "all are ready")
    until(lambda: door.heard() == {"0", "1"}, "both are met")
    names = {n.get("instance") for n in door.parent.notes() if "process" in n}
    assert names == {"box-0", "box-1"}

    # What one took in the other finds, and both list it.
    answers = [
        httpx.post(
            f"http://127.0.0.1:{door.port}/v1/requests",
            json={"endpoint": "chat", "input": number},
            headers={"Authorization": f"Bearer {key}"},
        )
        for number in range(10)
    ]
    taken = {answer.json()["id"] for answer in answers}
    for _ in range(6):
        listed = door.get("/v1/requests?limit=100", key)
        assert listed is not None
        assert {request["id"] for request in listed.json()["data"]} == taken

    before = door.pids()
    os.kill(before[0], signal.SIGKILL)
    until(lambda: door.pids()[0] != before[0], "another takes its place")
    until(lambda: door.is_ready() and door.heard() == {"0", "1"}, "both are met again")

    assert door.parent.stop() == 0
    assert [pid for pid in {*before.values(), *door.pids().values()} if is_alive(pid)] == []
    assert door.parent.text().count('"event":"stopped"') == COUNT + 1
    assert "Fatal" not in door.parent.text()


def test_without_the_process_that_started_them_they_stop(processes: Processes, key: str) -> None:
    door = Door(processes)
    until(lambda: len(door.pids()) == COUNT and door.is_ready(), "all are ready")
    door.parent.stop(signal.SIGKILL)
    until(lambda: not any(map(is_alive, door.pids().values())), "all have stopped")


def test_a_port_that_another_listens_on_is_told(processes: Processes) -> None:
    first = Door(processes)
    until(lambda: first.get("/healthz"), "it listens")
    second = processes.start("ingress", "--port", str(first.port), "--processes", "2")
    assert second.process.wait(60) != 0
    assert "can't listen on" in second.text()
