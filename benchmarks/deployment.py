"""A whole deployment on this machine for benchmarks: stack, policy, keys, processes.

Everything lives in a temporary folder and ends with it; processes are killed by their id.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from adapters.kafka import KafkaLog
from fairlane.publish import publish_policy
from fairlane.stack import Addresses, Stack, free_ports
from schemas.policy import Policy
from schemas.topics import Topics

#: How long a part may take to answer at the beginning.
START_S = 60.0


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
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fairlane", *self._arguments[name]],
                env=env,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
            )

    def kill(self, name: str) -> None:
        """Kill -9, and reap."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def notes(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

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
