"""`fairlane scheduler` as processes: stopped, overtaken, continued; a zombie commits nothing."""

import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.lanes import Holder
from tests.support.processes import DEADLINE_S, FairlaneProcess, Processes
from tests.support.schedulers import Deployment

TAKEN = "shard taken over"


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    found = Deployment(kafka_bootstrap, f"zombie-{uuid4().hex[:8]}")
    yield found
    found.close()


@pytest.fixture
def processes(deployment: Deployment, tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, deployment.env)
    yield found
    found.close()


class Requests:
    """Requests that come one after the other, and their ends, each exactly one."""

    def __init__(self, deployment: Deployment, holder: Holder) -> None:
        self._deployment = deployment
        self._holder = holder
        self.ids: list[str] = []

    def come(self, count: int = 5) -> None:
        for _ in range(count):
            self.ids.append(f"r{len(self.ids)}")
            self._deployment.submit(self.ids[-1])

    def end(self) -> None:
        self._deployment.serve_all(self.ids, self._holder)


def taken(process: FairlaneProcess) -> int:
    """How often a process took the shard over."""
    return sum(note["event"] == TAKEN for note in process.notes())


def test_a_zombie_of_the_same_instance_commits_nothing_and_ends_as_fenced(
    deployment: Deployment, processes: Processes
) -> None:
    requests = Requests(deployment, deployment.serving())
    zombie = processes.start("scheduler", "--instance", "same")
    zombie.wait_for(TAKEN)
    requests.come()
    requests.end()
    zombie.process.send_signal(signal.SIGSTOP)
    requests.come()
    owner = processes.start("scheduler", "--instance", "same")
    owner.wait_for(TAKEN)
    requests.end()
    requests.come()
    zombie.process.send_signal(signal.SIGCONT)
    assert zombie.process.wait(DEADLINE_S) == 3, zombie.text()
    requests.come()
    requests.end()
    assert owner.stop() == 0, owner.text()
    assert (taken(zombie), taken(owner)) == (1, 1)
    assert deployment.dispatched() == requests.ids
    assert not deployment.recovered().state.ids


def test_a_zombie_of_another_instance_rejoins_and_leaves_the_owner_alone(
    deployment: Deployment, processes: Processes
) -> None:
    requests = Requests(deployment, deployment.serving())
    zombie = processes.start("scheduler", "--instance", "a")
    zombie.wait_for(TAKEN)
    owner = processes.start("scheduler")  # of no name: its shard is free when it leaves
    requests.come()
    requests.end()
    zombie.process.send_signal(signal.SIGSTOP)
    requests.come()
    owner.wait_for(TAKEN)  # when the zombie's session has timed out
    requests.end()
    requests.come()
    zombie.process.send_signal(signal.SIGCONT)
    requests.come()
    requests.end()
    assert owner.stop() == 0, owner.text()
    requests.come()
    requests.end()
    assert zombie.stop() == 0, zombie.text()
    assert (taken(zombie), taken(owner)) == (2, 1)
    assert deployment.dispatched() == requests.ids
