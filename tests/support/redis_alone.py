"""A Redis of a test's own, which it may start anew; or a cluster of one node."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from fairlane.stack import free_ports
from fairlane.stack_tools import find_redis
from tests.support.services import choose_own, machine, refuse

#: A server answers within milliseconds; a busy machine may need seconds.
PATIENCE_S = 60.0
SLOTS = 16_384


class RedisAlone:
    """One server in a folder; nothing it holds survives its end."""

    def __init__(self, folder: Path, *, is_cluster: bool) -> None:
        self._folder, self._is_cluster = folder, is_cluster
        self._port, self._bus = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        server = find_redis(os.environ)
        assert server is not None
        command = [str(server), "--bind", "127.0.0.1", "--port", str(self._port), "--save", ""]
        if self._is_cluster:
            command += ["--cluster-enabled", "yes", "--cluster-port", str(self._bus)]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log)
        with Redis.from_url(self.url) as client:
            _until(lambda: bool(client.ping()))
            if self._is_cluster:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
                _until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def redis_alone(folder: Path, *, is_cluster: bool = False) -> Iterator[RedisAlone]:
    """A server that runs until the end of the block."""
    refuse(choose_own(os.environ, machine()), None)
    alone = RedisAlone(folder, is_cluster=is_cluster)
    try:
        alone.start()
        yield alone
    finally:
        alone.stop()


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except (RedisError, OSError):
            pass
        assert time.monotonic() < end_s, "the server does not answer"
        time.sleep(0.01)
