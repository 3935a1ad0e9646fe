"""A real deployment for the length of a demo: Kafka, Redis, policy, keys, three services.

Kafka and Redis are those of the settings; without any, a local stack in a temporary folder.
Every start has its own topic prefix, so that nothing meets what is there already. All that
was started here is ended here, by its id, whatever happens in between.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from adapters.clock import SystemClock
from fairlane.demo_scene import Scene
from fairlane.errors import FairlaneError
from fairlane.publish import publish_key, publish_policy
from fairlane.run import open_log
from fairlane.settings import ENV_PREFIX, STACK_FILE, Settings, load
from fairlane.stack import Stack, free_ports
from schemas.keys import key_record, new_key
from schemas.log import Log
from schemas.topics import Topics
from simulation.world import Workers

HOST = "127.0.0.1"
#: A service starts in a second or two; a loaded machine may need ten times that.
READY_S_MAX = 60.0
#: A worker may finish what it runs; who needs longer is killed.
STOP_S_MAX = 15.0
_POLL_S = 0.1
_LOG_TAIL_CHARS = 2_000
_HTTP_OK = 200
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Deployment(NamedTuple):
    """What a demo talks to: the API's address, a key for each tenant, and the log.

    `check` raises FairlaneError when a service has ended.
    """

    url: str
    keys: dict[str, str]
    log: Log
    topics: Topics
    check: Callable[[], None]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Deaf to another Ctrl-C: what was started is ended first. For the main thread."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def machine(say: Callable[[str], None]) -> Iterator[Settings]:
    """Kafka and Redis: those of the settings, else a local stack for as long as this lasts.

    Raises:
        SettingsError: the settings are wrong, or name no Redis.
        StackError: the local stack can't start; the message names the way out.
    """
    if STACK_FILE.exists() or any(os.environ.get(ENV_PREFIX + n) for n in ("KAFKA", "REDIS")):
        found = load(os.environ, Path.cwd())
        found.need_redis()
        say(f"on {found.kafka}; the demo's topics stay there")
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="fairlane-demo-") as folder:
        stack = Stack(Path(folder), say)
        try:
            addresses = stack.up()
            yield Settings(kafka=addresses.kafka, redis=addresses.redis_url, replication=1)
        finally:
            with undisturbed():
                stack.down()


@contextmanager
def deployed(scene: Scene, given: Settings, say: Callable[[str], None]) -> Iterator[Deployment]:
    """Publish the scene's policy and keys under a new prefix, start the services, end them.

    Raises:
        FairlaneError: a service did not start.
        LogError: Kafka does not answer.
    """
    settings = msgspec.structs.replace(given, prefix=f"demo-{secrets.token_hex(4)}")
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-demo-")))
        log = open_log(settings)
        ends.callback(log.close)
        topics = Topics(settings.prefix)
        publish_policy(log, topics, scene.policy)
        keys = {tenant.name: _key(log, topics, tenant.name) for tenant in scene.policy.tenants}
        (port,) = free_ports(1)
        url = f"http://{HOST}:{port}"
        say(f"starting ingress, scheduler and workers; topics are {settings.prefix}.*")
        processes = _Processes(folder, settings)
        ends.callback(processes.stop)
        processes.start("ingress", "--host", HOST, "--port", str(port))
        processes.start("scheduler")
        for spec in scene.workers:
            processes.start("worker", *worker_arguments(spec))
        processes.await_ready(url)
        yield Deployment(url, keys, log, topics, processes.check)


def worker_arguments(spec: Workers) -> list[str]:
    """Command line of a worker with this engine."""
    engine = spec.engine
    return [
        *("--pool", spec.pool, "--slots", str(spec.slots), "--engine", "simulated"),
        *("--fixed-ms", str(engine.fixed_ms), "--per-token-us", str(engine.per_token_us)),
        *("--together", engine.together.value, "--seed", str(engine.seed)),
    ]


def _key(log: Log, topics: Topics, tenant: str) -> str:
    key = new_key(secrets.token_bytes)
    publish_key(log, topics, key_record(key, tenant, SystemClock().now_ms(), "demo"))
    return key


class _Processes:
    """The services, each a process in a session of its own: Ctrl-C reaches the demo alone."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._env = {
            **os.environ,
            f"{ENV_PREFIX}KAFKA": settings.kafka,
            f"{ENV_PREFIX}REDIS": settings.redis,
            f"{ENV_PREFIX}PREFIX": settings.prefix,
            f"{ENV_PREFIX}REPLICATION": str(settings.replication),
            f"{ENV_PREFIX}KAFKA_OPTIONS": json.dumps(settings.kafka_options),
        }
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, *arguments: str) -> None:
        """Start `fairlane ARGUMENTS`."""
        log = self._folder / f"{arguments[0]}-{len(self._running)}.log"
        with log.open("wb") as out:
            self._running[log] = subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-m", "fairlane", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def await_ready(self, url: str) -> None:
        """Wait until the API takes requests. Raises FairlaneError with the log of who ended."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            self.check()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/readyz", timeout=2.0).status_code == _HTTP_OK:
                    return
            if time.monotonic() > deadline:
                raise FairlaneError(f"{url}/readyz is not ready after {READY_S_MAX:.0f} s")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise FairlaneError with the end of its log when a service has ended."""
        for log, process in self._running.items():
            if process.poll() is not None:
                tail = log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
                raise FairlaneError(f"{log.stem} ended with {process.returncode}:\n{tail}")

    def stop(self) -> None:
        """SIGTERM to all at once, SIGKILL to who does not go."""
        with undisturbed():
            self._stop()

    def _stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S_MAX
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
