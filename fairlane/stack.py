"""A real Kafka and a real Redis on this machine, without containers.

What belongs here: one broker (KRaft, its own controller) and one Redis in a folder of their
own: started, stopped, found again. What does not: topics, keys, or anything of Fairlane.

    folder/stack.json            the addresses, only while the stack is up
    folder/settings.json         ports and cluster id, kept across restarts
    folder/kafka, folder/redis   data;  folder/logs, folder/*.pid   what their names say

Everything listens on 127.0.0.1 alone. Ports are picked below the range that the system hands
out to clients: a client that reconnects to a dead broker could otherwise get the broker's own
port as its source, meet itself, and keep the broker from coming back.
"""

import base64
import fcntl
import json
import os
import random
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairlane import stack_probe, stack_process
from fairlane.stack_kafka import format_storage, server_command, server_properties
from fairlane.stack_tools import StackError, Tools, prepare

__all__ = [
    "Addresses",
    "ServiceStatus",
    "Stack",
    "StackError",
    "Status",
    "free_ports",
    "read_addresses",
]

FOLDER = Path(".fairlane")
HOST = "127.0.0.1"
#: Below Linux's and macOS's ephemeral ranges, above the well-known ones.
PORT_MIN, PORT_MAX = 20_000, 32_000
#: A broker answers after 3 s on an idle machine; a loaded one may need ten times that.
KAFKA_START_SECONDS_MAX = 90.0
#: Redis answers at once, unless it has a long append-only file to read.
REDIS_START_SECONDS_MAX = 60.0
#: After this a service that was asked to stop is killed; both survive that by design.
STOP_SECONDS_MAX = 20.0
#: What of a log goes into an error.
LOG_TAIL_CHARS = 2_000


class Addresses(NamedTuple):
    """Where the services are: `host:port` for Kafka, a URL for Redis."""

    kafka: str
    redis_url: str


class ServiceStatus(NamedTuple):
    """One service: its pid while it runs, and whether it answers a real request."""

    name: str
    address: str
    pid: int | None
    answers: bool
    log: Path


class Status(NamedTuple):
    """Both services of a stack."""

    kafka: ServiceStatus
    redis: ServiceStatus

    @property
    def is_up(self) -> bool:
        """Whether both answer."""
        return self.kafka.answers and self.redis.answers


class _Settings(NamedTuple):
    kafka_port: int
    controller_port: int
    redis_port: int
    cluster_id: str


def read_addresses(folder: Path = FOLDER) -> Addresses | None:
    """The addresses of the stack that is up in a folder; None when none is.

    Raises:
        StackError: `stack.json` is there but unreadable.
    """
    path = folder / "stack.json"
    try:
        found = json.loads(path.read_text())
        return Addresses(str(found["kafka"]), str(found["redis_url"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(
            f"{path} is unreadable ({error}): run `fairlane down` and `fairlane up`"
        ) from error


class Stack:
    """The local Kafka and Redis of one folder."""

    def __init__(
        self,
        folder: Path = FOLDER,
        say: Callable[[str], None] = lambda _: None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        #: Where all of it lies.
        self.folder = folder.absolute()
        self._say = say
        self._env = env
        self._logs = self.folder / "logs"
        self._kafka_pid = self.folder / "kafka.pid"
        self._redis_pid = self.folder / "redis.pid"

    def up(self, benchmark: bool = False) -> Addresses:
        """Start what isn't running and wait until it answers; do nothing when all does.

        Args:
            benchmark: G1, the full JIT and a larger heap for the broker. A broker that runs
                the other way is started again.

        Raises:
            StackError: something is missing or didn't start; the message names the way out.
        """
        with self._alone():
            is_right = self._mode() == benchmark
            if self.status().is_up and is_right:
                return self._write_addresses(self._settings(), benchmark)
            tools = prepare(self._env, self._say)
            if stack_process.running(self._kafka_pid) and not is_right:
                self._say("stopping Kafka to start it with other Java options")
                stack_process.stop(self._kafka_pid, STOP_SECONDS_MAX)
            settings = self._settings(renew=True)
            self._start_redis(tools, settings)
            self._start_kafka(tools, settings, benchmark)
            return self._write_addresses(settings, benchmark)

    def down(self) -> None:
        """Stop both services, cleanly if they let it be; data, logs and ports are kept."""
        if not self.folder.is_dir():
            return
        with self._alone():
            for name, pid_path in (("Kafka", self._kafka_pid), ("Redis", self._redis_pid)):
                if stack_process.running(pid_path) is not None:
                    self._say(f"stopping {name}")
                if not stack_process.stop(pid_path, STOP_SECONDS_MAX):
                    self._say(f"{name} didn't stop within {STOP_SECONDS_MAX:.0f} s; killed")
            (self.folder / "stack.json").unlink(missing_ok=True)

    def status(self) -> Status:
        """Which services run, and whether each answers."""
        settings = self._kept_settings()
        kafka, redis = (
            (f"{HOST}:{settings.kafka_port}", f"{HOST}:{settings.redis_port}")
            if settings
            else ("", "")
        )
        kafka_pid = stack_process.running(self._kafka_pid)
        redis_pid = stack_process.running(self._redis_pid)
        return Status(
            ServiceStatus(
                "kafka",
                kafka,
                kafka_pid,
                kafka_pid is not None and stack_probe.kafka_answers(kafka),
                self._logs / "kafka.log",
            ),
            ServiceStatus(
                "redis",
                redis,
                redis_pid,
                redis_pid is not None and stack_probe.redis_answers(redis),
                self._logs / "redis.log",
            ),
        )

    def kill_broker(self) -> None:
        """Kill Kafka without warning, as a power cut would."""
        stack_process.stop(self._kafka_pid, 0)

    def start_broker(self) -> None:
        """Start Kafka again on the same data and the same port, and wait until it answers."""
        with self._alone():
            tools = prepare(self._env, self._say)
            self._start_kafka(tools, self._settings(), self._mode() is True)

    def kill_redis(self) -> None:
        """Kill Redis without warning; up to a second of its writes may be lost."""
        stack_process.stop(self._redis_pid, 0)

    def start_redis(self) -> None:
        """Start Redis again on the same data and the same port, and wait until it answers."""
        with self._alone():
            self._start_redis(prepare(self._env, self._say), self._settings())

    def _start_kafka(self, tools: Tools, settings: _Settings, benchmark: bool) -> None:
        data = self.folder / "kafka"
        properties = self.folder / "server.properties"
        properties.write_text(
            server_properties(data, HOST, settings.kafka_port, settings.controller_port)
        )
        log = self._logs / "kafka.log"
        if not (data / "meta.properties").exists():
            self._say("formatting Kafka's data folder")
            format_storage(tools, properties, settings.cluster_id, log)
        if stack_process.running(self._kafka_pid) is None:
            self._say(f"starting Kafka on {HOST}:{settings.kafka_port}")
            command = server_command(tools, properties, benchmark)
            stack_process.spawn(command, self._env, log, self._kafka_pid)
        address = f"{HOST}:{settings.kafka_port}"
        self._await(
            "Kafka",
            self._kafka_pid,
            log,
            lambda: stack_probe.kafka_answers(address),
            KAFKA_START_SECONDS_MAX,
        )

    def _start_redis(self, tools: Tools, settings: _Settings) -> None:
        data = self.folder / "redis"
        data.mkdir(exist_ok=True)
        log = self._logs / "redis.log"
        if stack_process.running(self._redis_pid) is None:
            self._say(f"starting Redis on {HOST}:{settings.redis_port}")
            command = [
                *(str(tools.redis_server), "--bind", HOST, "--port", str(settings.redis_port)),
                # Appended and synced each second: a restart keeps the tenants' limits.
                *("--dir", str(data), "--appendonly", "yes", "--appendfsync", "everysec"),
                *("--save", "", "--daemonize", "no"),
            ]
            stack_process.spawn(command, self._env, log, self._redis_pid)
        address = f"{HOST}:{settings.redis_port}"
        self._await(
            "Redis",
            self._redis_pid,
            log,
            lambda: stack_probe.redis_answers(address),
            REDIS_START_SECONDS_MAX,
        )

    def _await(
        self,
        name: str,
        pid_path: Path,
        log: Path,
        answers: Callable[[], bool],
        seconds_max: float,
    ) -> None:
        """Wait for an answer, but no longer than the process lives."""
        is_dead = False

        def settled() -> bool:
            nonlocal is_dead
            is_dead = stack_process.running(pid_path) is None
            return is_dead or answers()

        if not stack_process.until(settled, seconds_max):
            raise StackError(f"{name} gave no answer in {seconds_max:.0f} s; {_tail(log)}")
        if is_dead:
            raise StackError(f"{name} ended while starting; {_tail(log)}")

    def _write_addresses(self, settings: _Settings, benchmark: bool) -> Addresses:
        addresses = Addresses(
            f"{HOST}:{settings.kafka_port}", f"redis://{HOST}:{settings.redis_port}/0"
        )
        found = {**addresses._asdict(), "benchmark": benchmark}
        _write_json(self.folder / "stack.json", found)
        return addresses

    def _mode(self) -> bool | None:
        """Whether the broker was started for benchmarks; None when no stack is up."""
        try:
            found = json.loads((self.folder / "stack.json").read_text())
            return bool(found["benchmark"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _kept_settings(self) -> _Settings | None:
        try:
            return _Settings(**json.loads((self.folder / "settings.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _settings(self, renew: bool = False) -> _Settings:
        """Ports and cluster id as kept; what isn't ours any more is picked anew on renewal."""
        kept = self._kept_settings()
        if kept is None:
            kafka, controller, redis = free_ports(3)
            kept = _Settings(kafka, controller, redis, _cluster_id())
        elif renew:
            kept = kept._replace(
                kafka_port=self._still(kept.kafka_port, self._kafka_pid),
                controller_port=self._still(kept.controller_port, self._kafka_pid),
                redis_port=self._still(kept.redis_port, self._redis_pid),
            )
        _write_json(self.folder / "settings.json", kept._asdict())
        return kept

    @staticmethod
    def _still(port: int, pid_path: Path) -> int:
        """The port if its service has it or can have it, else another."""
        if stack_process.running(pid_path) is not None or _is_free(port):
            return port
        return free_ports(1)[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second `up` or `down` of the same folder waiting."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def free_ports(count: int) -> list[int]:
    """Different ports that nobody on this machine listens on."""
    # Two stacks that start at once must not try the same ports in the same order.
    candidates = random.sample(range(PORT_MIN, PORT_MAX), k=PORT_MAX - PORT_MIN)
    free = (port for port in candidates if _is_free(port))
    try:
        return [next(free) for _ in range(count)]
    except StopIteration:
        raise StackError(f"no free port between {PORT_MIN} and {PORT_MAX}") from None


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True


def _cluster_id() -> str:
    """A Kafka cluster id: 16 random bytes in URL-safe base64, not led by a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _write_json(path: Path, found: Mapping[str, object]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found, indent=1) + "\n")
    fresh.replace(path)


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if log.exists() else ""
    return f"the end of {log}:\n{text}"
