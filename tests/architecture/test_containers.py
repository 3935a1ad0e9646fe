"""The containers as far as files can tell: no engine runs here.

`docker-compose.yml` is held against the specification's own schema and against this code: what
it starts must parse, what it probes must be served, what it names must exist. The Dockerfile is
held against the packages, the locked requirements and a few rules of its own.
"""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft7Validator
from packaging.requirements import Requirement

from fairlane import run, run_accounting, run_ingress, settings
from fairlane.__main__ import SERVICES
from fairlane.cli import app
from fairlane.cli_services import parser
from fairlane.policy_file import load as load_policy
from fairlane.stack_kafka import SINGLE_NODE
from tests.support.calls import served
from tests.support.containers import KAFKA_IMAGE, REDIS_IMAGE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
VERSION = PROJECT["project"]["version"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OWN_IMAGE = f"fairlane:{VERSION}"
#: Every image of the file: ours, and the ones that the tests' own containers run.
IMAGES = {OWN_IMAGE, KAFKA_IMAGE, REDIS_IMAGE}
NAMES = sorted(COMPOSE["services"])
OURS = [name for name in NAMES if COMPOSE["services"][name]["image"] == OWN_IMAGE]
#: What health checks run, and what brings it: the images' own programs.
PROBES = {
    "python": {OWN_IMAGE},
    "/opt/kafka/bin/kafka-broker-api-versions.sh": {KAFKA_IMAGE},
    "redis-cli": {REDIS_IMAGE},
}
#: What Kafka's image reads beside server properties.
KAFKA_IMAGE_VARIABLES = {"CLUSTER_ID"}
#: Properties that say where the one node stands; all others come from the local stack's.
KAFKA_PLACE = {
    "node.id",
    "process.roles",
    "log.dirs",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "controller.listener.names",
    "controller.quorum.voters",
}


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = COMPOSE["services"][name]
    return found


def schema_faults(document: Any) -> list[str]:
    schema = json.loads((ROOT / "tests" / "support" / "compose-spec.json").read_text())
    return [
        f"{fault.json_path}: {fault.message}"
        for fault in Draft7Validator(schema).iter_errors(document)
    ]


def options(name: str) -> dict[str, Any]:
    """The options of a service's command as its own parser reads them; refuses what it refuses."""
    command = service(name)["command"]
    assert all(isinstance(word, str) for word in command), command
    if command[0] in SERVICES:
        return vars(parser().parse_args(command))
    found: Any = typer.main.get_command(app)
    words, context = list(command), None
    while isinstance(found, typer.core.TyperGroup):
        context = found.make_context("fairlane", [], parent=context, resilient_parsing=True)
        _, found, words = found.resolve_command(context, words)
    assert not found.ignore_unknown_options, f"{command}: parsed elsewhere, proves nothing here"
    return dict(found.make_context("fairlane", words, parent=context).params)


def seconds(text: str) -> int:
    """A duration of the file; only seconds are used in it."""
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return int(found[1])


def published(name: str) -> dict[int, str]:
    """Ports inside of a service's container that are published, by the address outside."""
    found = {}
    for port in service(name).get("ports", []):
        outside, _, inside = port.rpartition(":")
        found[int(inside)] = outside
    return found


def listeners(text: str) -> dict[str, tuple[str, int]]:
    """Kafka's listeners by name: host (empty: all interfaces) and port."""
    found = {}
    for item in text.split(","):
        name, _, address = item.partition("://")
        host, _, port = address.rpartition(":")
        found[name] = host, int(port)
    return found


def properties() -> dict[str, str]:
    """Server properties as Kafka's image makes them of its variables."""
    environment = service("kafka")["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name not in KAFKA_IMAGE_VARIABLES
    }


def test_the_file_is_what_the_specification_says() -> None:
    assert schema_faults(COMPOSE) == []


def test_the_schema_sees_a_wrong_file() -> None:
    assert schema_faults({"services": {"a": {"image": "x", "prots": ["1:1"]}}}) != []
    assert schema_faults({"services": {"a": {"depends_on": {"b": {"condition": "ready"}}}}}) != []


def test_every_part_is_there() -> None:
    started = {service(name)["command"][0] for name in OURS}
    assert set(SERVICES) <= started
    assert {"kafka", "redis", "setup"} <= set(NAMES)
    assert len([name for name in OURS if service(name)["command"][0] == "worker"]) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_images_are_the_ones_that_are_tested_and_pinned(name: str) -> None:
    image = service(name)["image"]
    assert image in IMAGES
    assert re.search(r":\d+\.\d+", image)


@pytest.mark.parametrize("name", OURS)
def test_commands_parse(name: str) -> None:
    assert options(name)


def test_a_wrong_command_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(service("worker-0"), "command", ["worker", "--instance", "worker-0"])
    with pytest.raises(SystemExit):
        options("worker-0")
    monkeypatch.setitem(service("setup"), "command", ["policy", "apply", "--sure", "f"])
    with pytest.raises(Exception, match="No such option"):
        options("setup")


def test_every_service_has_a_name_of_its_own_that_survives_a_restart() -> None:
    names = [options(name)["instance"] for name in OURS if name != "setup"]
    assert all(names)
    assert len(set(names)) == len(names)


def test_workers_serve_pools_of_the_policy_that_is_set_up() -> None:
    pools = {pool.name for pool in load_policy(ROOT / "examples" / "policy.toml").pools}
    served = {options(name)["pool"] for name in OURS if service(name)["command"][0] == "worker"}
    assert served <= pools


def test_setup_applies_a_policy_that_is_there() -> None:
    (mount,) = service("setup")["volumes"]
    source, target, mode = mount.split(":")
    assert load_policy(ROOT / source).tenants
    assert str(options("setup")["file"]) == target
    assert options("setup")["yes"] is True  # nobody is there to ask
    assert mode == "ro"
    assert service("setup")["restart"] == "no"


@pytest.mark.parametrize("name", OURS)
def test_settings_are_known_and_valid(name: str, tmp_path: Path) -> None:
    environment = service(name)["environment"]
    assert all(isinstance(value, str) for value in environment.values())
    read = re.findall(r'"([A-Z_]+)"', re.search(r"for key in \(([^)]*)\)", _source(settings))[1])  # type: ignore[index]
    assert set(environment) <= {settings.ENV_PREFIX + key for key in read}
    found = settings.load(environment, tmp_path)
    assert found.replication == 1  # there is one broker
    host, _, port = found.kafka.partition(":")
    inner = listeners(properties()["advertised.listeners"])["INNER"]
    assert (host, int(port)) == inner
    redis = re.fullmatch(r"redis://([a-z]+):(\d+)/0", found.need_redis())
    assert redis
    assert redis[1] in NAMES
    assert int(redis[2]) in published(redis[1])


def _source(module: Any) -> str:
    return Path(module.__file__).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_ports_are_published_on_this_machine_alone(name: str) -> None:
    for inside, outside in published(name).items():
        assert outside == f"127.0.0.1:{inside}"


def test_the_ingress_listens_where_its_port_is_published() -> None:
    given = options("ingress")
    assert given["host"] == "0.0.0.0"
    assert set(published("ingress")) == {given["port"]}
    assert str(given["port"]) in re.findall(r"^EXPOSE (\d+)$", dockerfile(), re.MULTILINE)


def test_kafka_is_the_single_node_that_the_tests_run() -> None:
    found = properties()
    assert {name: found.get(name) for name in SINGLE_NODE} == dict(SINGLE_NODE)
    assert set(found) - set(SINGLE_NODE) == KAFKA_PLACE
    assert all(isinstance(value, str) for value in service("kafka")["environment"].values())


def test_kafka_is_reached_from_inside_and_outside() -> None:
    found = properties()
    bound, told = listeners(found["listeners"]), listeners(found["advertised.listeners"])
    assert found["inter.broker.listener.name"] == "INNER"
    assert told["INNER"] == ("kafka", bound["INNER"][1])
    assert service("kafka")["hostname"] == "kafka"
    assert told["OUTER"] == ("127.0.0.1", bound["OUTER"][1])
    assert set(published("kafka")) == {bound["OUTER"][1]}
    assert found["controller.listener.names"] == "CONTROLLER"
    assert "CONTROLLER" not in told  # the broker refuses to start otherwise
    controller = f"{found['node.id']}@kafka:{bound['CONTROLLER'][1]}"
    assert found["controller.quorum.voters"] == controller
    assert {host for host, _ in bound.values()} == {""}  # all interfaces of the container
    protocols = dict(item.split(":") for item in found["listener.security.protocol.map"].split(","))
    assert protocols == dict.fromkeys(bound, "PLAINTEXT")


def test_kafkas_data_and_redis_data_outlive_their_containers() -> None:
    assert service("kafka")["volumes"] == [f"kafka-data:{properties()['log.dirs']}"]
    assert service("redis")["volumes"] == ["redis-data:/data"]  # the image's working directory


def test_redis_forgets_nothing() -> None:
    words = service("redis")["command"]
    assert words[0] == "redis-server"
    given = dict(zip(words[1::2], words[2::2], strict=True))
    assert given["--maxmemory-policy"] == "noeviction"
    assert given["--appendonly"] == "yes"


def test_volumes_are_declared_and_used() -> None:
    used = {
        mount.split(":")[0]
        for name in NAMES
        for mount in service(name).get("volumes", [])
        if not mount.startswith(".")
    }
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_waited_for_can_come(name: str) -> None:
    for needed, wait in service(name).get("depends_on", {}).items():
        assert needed in NAMES
        other = service(needed)
        if wait["condition"] == "service_healthy":
            assert "healthcheck" in other
        if wait["condition"] == "service_completed_successfully":
            assert other["restart"] == "no"
    if name in OURS:
        waits = service(name)["depends_on"]
        assert waits["kafka"]["condition"] == "service_healthy"
        if name != "setup":
            assert waits["setup"]["condition"] == "service_completed_successfully"


def test_nobody_waits_in_a_circle() -> None:
    waits = {name: set(service(name).get("depends_on", {})) for name in NAMES}
    while free := {name for name, needed in waits.items() if not needed}:
        waits = {name: needed - free for name, needed in waits.items() if name not in free}
    assert waits == {}


@pytest.mark.parametrize("name", [name for name in NAMES if "healthcheck" in service(name)])
def test_health_checks_ask_what_is_there(name: str) -> None:
    check = service(name)["healthcheck"]
    kind, *words = check["test"]
    if kind == "CMD-SHELL":
        words = shlex.split(words[0])
    else:
        assert kind == "CMD"
    assert service(name)["image"] in PROBES[words[0]]
    assert seconds(check["timeout"]) < seconds(check["interval"])
    match words[0]:
        case "python":
            assert words[1] == "-c"
            compile(words[2], "healthcheck", "exec")
            _asks_what_is_served(name, words[2])
        case "redis-cli":
            assert words[1:] == ["ping", "|", "grep", "-q", "PONG"]
        case _:
            host, port = listeners(properties()["advertised.listeners"])["INNER"]
            assert words[1:] == ["--bootstrap-server", f"{host}:{port}"]


def _asks_what_is_served(name: str, code: str) -> None:
    found = re.search(r"'http://127\.0\.0\.1:(\d+)(/[a-z]+)', timeout=(\d+)\)", code)
    assert found, code
    given = options(name)
    if given.get("metrics_port"):
        assert (int(found[1]), found[2]) == (given["metrics_port"], "/metrics")
    else:
        assert int(found[1]) == given["port"]
        assert found[2] in routes()
    assert int(found[3]) < seconds(service(name)["healthcheck"]["timeout"])


def routes() -> set[str]:
    """Paths that the ingress serves."""
    return {path for _, path in served()}


@pytest.mark.parametrize("name", OURS)
def test_a_stop_is_given_the_time_that_the_services_take(name: str) -> None:
    grace_s = max(run_accounting.GRACE_S, run_ingress.GRACE_S, run.GRACE_MS / 1_000)
    assert seconds(service(name)["stop_grace_period"]) >= 2 * grace_s


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_do_little(name: str) -> None:
    found = service(name)
    assert found["cap_drop"] == ["ALL"]
    assert found["read_only"] is True
    assert "no-new-privileges:true" in found["security_opt"]
    assert "privileged" not in found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "setup"])
def test_what_ends_is_started_again(name: str) -> None:
    assert service(name)["restart"] == "unless-stopped"


# --- the Dockerfile


def dockerfile() -> str:
    """The file with continued lines joined."""
    return (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(word: str) -> list[str]:
    return re.findall(rf"^{word} +(.*)$", dockerfile(), re.MULTILINE)


def copied() -> list[str]:
    """Sources that are copied from this folder."""
    return [
        source
        for line in instructions("COPY")
        if not line.startswith("--from=")
        for source in line.split()[:-1]
    ]


def ignored(path: str) -> bool:
    """Whether the build doesn't see a path: the last pattern that fits decides."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        parts = [path, *(parent.as_posix() for parent in Path(path).parents if parent.name)]
        if any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts):
            verdict = not line.startswith("!")
    return verdict


def test_bases_are_pinned_and_known() -> None:
    stages: set[str] = set()
    for line in instructions("FROM"):
        source, _, stage = line.partition(" AS ")
        if source not in stages:
            assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", source), source
            floor = re.search(r"\d+\.\d+", PROJECT["project"]["requires-python"])
            assert floor
            assert source.startswith(f"python:{floor[0]}-")  # what requirements/ is made for
        stages.add(stage)
    assert set(re.findall(r"--from=(\S+)", dockerfile())) <= stages


def test_what_is_copied_is_there_and_seen_by_the_build() -> None:
    missing = [source for source in copied() if not (ROOT / source).exists()]
    assert missing == []
    assert [source for source in copied() if ignored(source)] == []
    assert ignored("tests")
    assert ignored(".fairlane")
    assert ignored("docs/benchmarks.md")


def test_all_packages_of_the_wheel_are_in_the_image() -> None:
    assert {source for source in copied() if (ROOT / source).is_dir()} == set(PACKAGES)
    assert PROJECT["project"]["readme"] in copied()
    assert set(PROJECT["project"]["license-files"]) <= set(copied())


def test_the_wheel_builds_from_what_is_copied_alone(tmp_path: Path) -> None:
    source, dist = tmp_path / "source", tmp_path / "dist"
    source.mkdir()
    for item in copied():
        if (ROOT / item).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / item, source / item, ignore=leave)
        elif "/" not in item:
            shutil.copy(ROOT / item, source)
    (build,) = [line for line in instructions("RUN") if "hatchling" in line]
    words = [str(dist) if word == "/wheel" else word for word in shlex.split(build)]
    assert words[0] == "python"
    words[0] = sys.executable
    subprocess.run(words, cwd=source, check=True, capture_output=True, timeout=100)
    (wheel,) = dist.glob("*.whl")
    assert wheel.name.startswith(f"fairlane-{VERSION}-")


def locked(name: str) -> set[str]:
    """Packages of a file of requirements; each must have a version and a hash."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    found = set()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            assert "==" in line, line
            assert "--hash=sha256:" in line, line
            found.add(Requirement(line.partition(" --hash")[0]).name.lower())
    return found


def test_all_that_the_services_import_is_installed_by_hash() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["accounting"], *extras["embed"]]
    assert {Requirement(line).name.lower() for line in wanted} <= locked("container.txt")
    builders = {Requirement(line).name.lower() for line in PROJECT["build-system"]["requires"]}
    assert builders <= locked("build.txt")
    for line in instructions("RUN"):
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-index" in line, line


def test_the_image_runs_one_program_without_root() -> None:
    final = dockerfile().rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\S+)$", final, re.MULTILINE)
    assert user.isdecimal()
    assert int(user) > 0
    assert f"--uid {user}" in final
    (entry,) = instructions("ENTRYPOINT")
    assert json.loads(entry) == ["fairlane"]
    assert "fairlane" in PROJECT["project"]["scripts"]
    assert all(json.loads(line) for line in instructions("CMD"))
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("ADD") == []
    home = re.search(r"--home-dir (\S+)", final)
    assert home
    assert re.findall(r"^WORKDIR (\S+)$", final, re.MULTILINE) == [home[1]]
