"""A whole deployment on this machine for benchmarks: stack, policy, keys, processes.

Everything lives in a temporary folder and ends with it; processes are killed by their id.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from adapters.kafka import KafkaLog
from fairlane.publish import publish_policy
from fairlane.stack import Addresses, Stack, free_ports
from schemas.policy import Policy
from schemas.topics import Topics

#: How long a part may take to answer at the beginning.
START_S = 60.0
#: How often a supervisor looks after its processes.
LOOK_S = 0.2


class Deployment:
    """Stack and processes; `start`, `kill` and `stop` one by its name."""

    def __init__(self, policy: Policy, *, benchmark: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fairlane-bench-")
        self.folder = Path(self._folder.name)
        self._benchmark = benchmark
        self.policy = policy
        self.topics = Topics("bench")
        self._arguments: dict[str, tuple[str, ...]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ended: Counter[str] = Counter()  #: by themselves, as "NAME: exit code"
        self._lock = threading.RLock()  # of `processes`
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise)
        (self.http_port,) = free_ports(1)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
        self.stack = Stack(self.folder / "stack")
        self.addresses: Addresses = self.stack.up(benchmark=self._benchmark)
        self.log = KafkaLog(self.addresses.kafka)
        publish_policy(self.log, self.topics, self.policy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()
        self.stack.down()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def define(self, name: str, *arguments: str) -> None:
        """Name a process: `fairlane ARGUMENTS`, started by `start(name)`."""
        self._arguments[name] = arguments

    def start(self, name: str) -> None:
        env = {
            **os.environ,
            "FAIRLANE_KAFKA": self.addresses.kafka,
            "FAIRLANE_REDIS": self.addresses.redis_url,
            "FAIRLANE_PREFIX": self.topics.prefix,
        }
        with (self.folder / f"{name}.log").open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "fairlane", *self._arguments[name]],
                env=env,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
            )
        with self._lock:
            self.processes[name] = process

    def kill(self, name: str) -> None:
        """Kill -9, and reap."""
        with self._lock:
            process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """Stop cleanly, and reap; returns the exit code."""
        with self._lock:
            process = self.processes.pop(name)
        process.terminate()
        return process.wait(START_S)

    def supervise(self) -> None:
        """From now on start again what ends by itself, as compose or systemd would."""
        self._supervisor.start()

    def _supervise(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._lock:
                ended = {name: process.poll() for name, process in self.processes.items()}
                for name in [name for name, code in ended.items() if code is not None]:
                    self.ended[f"{name}: {ended[name]}"] += 1
                    self.start(name)

    def notes(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def told(self, name: str, event: str) -> list[dict[str, Any]]:
        """A process's notes of one kind."""
        lines = [
            json.loads(x) for x in self.notes(name).splitlines() if x[:1] == "{" and x[-1:] == "}"
        ]
        return [line for line in lines if line["event"] == event]

    def wait_ready(self) -> None:
        """Until the ingress lets requests in."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2.0).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"the ingress is not ready: {self.notes('ingress-0')}")
            time.sleep(0.1)
