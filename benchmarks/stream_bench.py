"""One deployment with a stream through it (benchmarks.stream), for `pipeline` and `latency`.

The scheduler is the product's own process, `fairlane scheduler`, with its usual settings.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from benchmarks.chaos import read_all
from benchmarks.deployment import Deployment
from benchmarks.stream import (
    HAND_BACK_EVERY,
    PATIENCE_S,
    SLOTS,
    Append,
    Count,
    append,
    policy,
    stub,
)
from fairlane.publish import publish_policy
from fairlane.stack import free_ports
from schemas.codec import decode_header
from schemas.policy import Policy
from schemas.records import Dead
from schemas.topics import Topics

spawned = multiprocessing.get_context("spawn")


class Bench:
    """One deployment on a stack that is up: its scheduler, its stub, its requests."""

    def __init__(
        self, deployment: Deployment, name: str, tenants: int, made: Policy | None = None
    ) -> None:
        """`made` is applied instead of the stream's policy for so many tenants."""
        self.deployment, self.tenants = deployment, tenants
        self.kafka = deployment.addresses.kafka
        self.topics = deployment.topics = Topics(name)
        publish_policy(deployment.log, self.topics, made or policy(tenants))
        self.counts: Any = spawned.Array("Q", len(Count), lock=False)
        self.pipe, self.far_end = spawned.Pipe()
        self._spawned: list[Any] = []
        self.appended = 0
        (self._port,) = free_ports(1)
        self._name = ""  #: of the scheduler's process, once it was started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.counts[Count.STOP] = 1
        for process in self._spawned:
            process.join(PATIENCE_S)
            if process.exitcode is None:
                process.kill()

    def spawn(self, target: Callable[..., None], *arguments: Any) -> Any:
        process = spawned.Process(target=target, args=arguments, daemon=True)
        process.start()
        self._spawned.append(process)
        return process

    def start_append(self, count: int, **how: Any) -> Any:
        """Append the next requests; returns the process."""
        order = Append(self.kafka, self.topics.prefix, self.tenants, self.appended, count, **how)
        self.appended += count
        return self.spawn(append, order, self.counts)

    def append(self, count: int) -> None:
        """Append the next requests, as fast as it goes, and wait."""
        joined(self.start_append(count))

    def start_stub(self, slots: int = SLOTS, hand_back_every: int = HAND_BACK_EVERY) -> None:
        prefix = self.topics.prefix
        self.spawn(stub, self.kafka, prefix, slots, hand_back_every, self.counts, self.far_end)

    def start_scheduler(self) -> None:
        name = f"scheduler-{self.topics.prefix}"
        port = str(self._port)
        self.deployment.topics = self.topics  # there may be a bench beside this one
        self.deployment.define(name, "scheduler", "--instance", name, "--metrics-port", port)
        self.deployment.start(name)
        self._name = name

    @property
    def pid(self) -> int:
        return self.deployment.processes[self._name].pid

    def stop_scheduler(self) -> None:
        process = self.deployment.processes[self._name]
        process.terminate()
        process.wait(PATIENCE_S)

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels, 0 while it is not there yet."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self._port}/metrics", timeout=30.0).text
        except httpx.HTTPError:
            return 0.0
        lines = [line for line in text.splitlines() if line.startswith(f"fairlane_{name}")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_for(self, what: str, figure: Callable[[], float], least: float) -> None:
        """Until a figure is reached; gives up when it stands still for long."""
        highest, moved = figure(), time.monotonic()
        while highest < least:
            time.sleep(0.01)
            now = figure()
            if now > highest:
                highest, moved = now, time.monotonic()
            self.check()
            is_dead = self.deployment.processes[self._name].poll() is not None
            if is_dead or time.monotonic() - moved > PATIENCE_S:
                raise self.still(f"{what} stands still at {highest} of {least}")

    def still(self, what: str) -> RuntimeError:
        """What is known when nothing moves: the scheduler's end, its figures, ends, notes."""
        log, prefix = self.deployment.log, self.topics.prefix
        reader = log.reader()
        ends = {
            topic: [reader.bounds((topic, n)).end for n in range(log.partitions(topic))]
            for topic in log.topics()
            if topic.startswith(prefix)
        }
        reader.close()
        told = f"{what}; counts {list(self.counts)}; ends of the log {ends}"
        if self._name:
            code = self.deployment.processes[self._name].poll()
            names = ("scheduler_waiting", "scheduler_picks")
            figures = {name: self.metric(name) for name in names}
            notes = self.deployment.notes(self._name)[-2_000:]
            told += f"; the scheduler's exit code is {code}, its figures {figures}; notes: {notes}"
        return RuntimeError(told)

    def check(self) -> None:
        """Raise if one of the processes has failed."""
        for process in self._spawned:
            if process.exitcode:
                raise RuntimeError(f"a process of the benchmark ended with {process.exitcode}")

    def seen(self) -> int:
        return int(self.counts[Count.SEEN])

    def through(self) -> int:
        """Requests that are over with: seen in a batch, or ended by the scheduler itself."""
        log, topics = self.deployment.log, self.topics
        results = len(read_all(log, topics.results))
        dead = [decode_header(record, Dead) for record in read_all(log, topics.dead)]
        return self.seen() + results + sum(not one.id for one in dead)

    def waits_ms(self) -> list[float]:
        """Waits of what the stub has seen since the last time, in their order."""
        self.pipe.send("waits")
        while not self.pipe.poll(1.0):
            self.check()
        return [wait / 1e6 for wait in self.pipe.recv()]


def joined(process: Any) -> None:
    """Wait for a process; raise if it failed."""
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a process of the benchmark ended with {process.exitcode}")


def cpu_s(pid: int) -> float:
    """CPU time of a process and all its threads so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
