"""`fairlane worker` as a process: stopped, continued, killed, ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from adapters.clock import SystemClock
from adapters.kafka import KafkaLog
from schemas.records import End, Finished, HandedBack, Seen
from schemas.topics import Topics
from tests.support.lanes import POOL, Lanes, numbers

GIVE_UP_S = 60


class Processes:
    """Workers of one pool as processes; what they say goes to files."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.log = KafkaLog(bootstrap)
        self.lanes = Lanes(self.log, Topics(f"proc-{uuid4().hex[:8]}"), SystemClock(), 1)

    def start(self, fixed_ms: int, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fairlane", "worker", "--pool", POOL]
        command += ["--fixed-ms", str(fixed_ms), *more]
        env = {
            **os.environ,
            "FAIRLANE_KAFKA": self._bootstrap,
            "FAIRLANE_PREFIX": self.lanes.topics.prefix,
        }
        name = self._folder / f"worker-{len(self._started)}.log"
        with name.open("wb") as output:
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        self._started.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> str:
        return (self._folder / f"worker-{self._started.index(process)}.log").read_text()

    def until(self, is_so: Callable[[], bool]) -> None:
        give_up = time.monotonic() + GIVE_UP_S
        while not is_so():
            if time.monotonic() > give_up:
                raise AssertionError("\n".join(self.output(p) for p in self._started))
            time.sleep(0.05)

    def holders(self) -> int:
        """How many times the lane was taken."""
        return sum(isinstance(said, Seen) and said.slots > 0 for said in self.lanes.said())

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.lanes.close()
        self.log.close()


@pytest.fixture
def processes(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Processes]:
    found = Processes(kafka_bootstrap, tmp_path)
    yield found
    found.close()


def test_a_stopped_worker_that_goes_on_after_its_successor_commits_nothing(
    processes: Processes,
) -> None:
    lanes = processes.lanes
    zombie = processes.start(1_000)
    processes.until(lambda: processes.holders() == 1)
    lanes.dispatch("a")
    processes.until(lambda: lanes.advised() == [1])
    zombie.send_signal(signal.SIGSTOP)
    processes.start(10)
    processes.until(lambda: processes.holders() == 2)
    assert numbers(lanes.said(), HandedBack) == [1]
    zombie.send_signal(signal.SIGCONT)
    processes.until(
        lambda: any(event in processes.output(zombie) for event in ("lane_fenced", "lane_lost"))
    )
    lanes.dispatch("a", attempt=1)
    processes.until(lambda: bool(lanes.results()))
    zombie.send_signal(signal.SIGTERM)
    assert zombie.wait(GIVE_UP_S) == 0
    ((result, _),) = lanes.results()
    assert (result.id, result.attempt, result.end) == ("a", 1, End.SUCCEEDED)
    processes.until(lambda: numbers(lanes.said(), Finished) == [2])
    assert numbers(lanes.said(), HandedBack) == [1]


def test_a_killed_worker_comes_back_and_hands_its_batch_back_once(processes: Processes) -> None:
    lanes = processes.lanes
    killed = processes.start(600_000, "--instance", "one")
    processes.until(lambda: processes.holders() == 1)
    lanes.dispatch("a")
    processes.until(lambda: lanes.advised() == [1])
    killed.kill()
    killed.wait()
    lanes.dispatch("b")
    again = processes.start(600_000, "--instance", "one")
    processes.until(lambda: processes.holders() == 2)
    assert numbers(lanes.said(), HandedBack) == [1, 2]
    again.kill()
    again.wait()
    processes.start(10, "--instance", "one")
    processes.until(lambda: processes.holders() == 3)
    lanes.dispatch("a", attempt=1)
    lanes.dispatch("b", attempt=1)
    processes.until(lambda: len(lanes.results()) == 2)
    assert lanes.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED}
    processes.until(lambda: numbers(lanes.said(), Finished) == [3, 4])
    assert numbers(lanes.said(), HandedBack) == [1, 2]


def test_a_worker_that_is_told_to_stop_finishes_what_runs(processes: Processes) -> None:
    lanes = processes.lanes
    worker = processes.start(700)
    processes.until(lambda: processes.holders() == 1)
    lanes.dispatch("a")
    lanes.dispatch("b")
    processes.until(lambda: lanes.advised() == [1])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(GIVE_UP_S) == 0
    processes.until(lambda: lanes.ends() == {"a": End.SUCCEEDED})
    processes.start(10)
    processes.until(lambda: processes.holders() == 2)
    assert numbers(lanes.said(), HandedBack) == [2]
