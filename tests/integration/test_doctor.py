"""`fairlane doctor` on a real Kafka and a real Redis: all well, one thing wrong, nobody there."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fairlane import __main__
from fairlane.doctor_checks import State, judge
from fairlane.doctor_probes import look
from fairlane.stack import free_ports
from tests.support.processes import Processes, until

POLICY = """
[[tiers]]
name = "standard"

[[pools]]
name = "embed"
lanes = 2

[[endpoints]]
name = "embed"
pool = "embed"

[[tenants]]
name = "acme"
tiers = ["standard"]
"""
#: Far longer than the doctor's own limits: only a doctor that hangs runs into it.
HANGS_S = 60


def without_own(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with these settings of Fairlane and no others."""
    rest = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLANE_")}
    return {**rest, **env}


def examine(env: Mapping[str, str], folder: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and all that was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "fairlane", "doctor", "--json"],
        env=without_own(env),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    return done.returncode, json.loads(done.stdout), done.stdout + done.stderr


def states(found: dict[str, Any]) -> dict[str, str]:
    """State by name of the check."""
    return {check["name"]: check["state"] for check in found["checks"]}


@pytest.fixture
def env(kafka_bootstrap: str, redis_url: str) -> dict[str, str]:
    return {
        "FAIRLANE_KAFKA": kafka_bootstrap,
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_PREFIX": f"doctor-{uuid.uuid4().hex[:12]}",
        "FAIRLANE_REPLICATION": "1",
    }


def set_up(env: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish a policy and a key."""
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    file = folder / "policy.toml"
    file.write_text(POLICY)
    assert __main__.run(["policy", "apply", "--yes", str(file)]) == 0
    assert __main__.run(["keys", "create", "--tenant", "acme"]) == 0


@contextmanager
def evicting(url: str) -> Iterator[None]:
    """The Redis with a policy that may evict what it must not."""
    with Redis.from_url(url, decode_responses=True) as client:
        before = client.config_get("maxmemory-policy")["maxmemory-policy"]
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            yield
        finally:
            client.config_set("maxmemory-policy", before)


def test_a_deployment_that_runs_is_well(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(env, tmp_path, monkeypatch)
    services = Processes(tmp_path, env)
    started = [
        services.start(*arguments, "--instance", f"{arguments[0]}-0")
        for arguments in (
            ("ingress", "--port", "0"),
            ("scheduler",),
            ("accounting",),
            ("worker", "--pool", "embed"),
        )
    ]

    def is_well() -> bool:
        ended = [one.text() for one in started if one.process.poll() is not None]
        assert ended == []
        checks = judge(look(without_own(env), tmp_path))
        return {check.state for check in checks if check.group != "this machine"} == {State.OK}

    try:
        until(is_well, "a doctor with nothing to say")
        with evicting(env["FAIRLANE_REDIS"]):
            code, found, _ = examine(env, tmp_path)
        assert code == 0
        assert found["ok"] is True
        assert states(found)["pool embed"] == "ok"
        assert states(found)["eviction"] == "warn"
    finally:
        services.close()


def test_a_deployment_without_services_is_told_which_to_start(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found, _ = examine(env, tmp_path)
    assert code == 1
    assert states(found)["policy"] == states(found)["topics"] == "missing"
    set_up(env, tmp_path, monkeypatch)
    code, found, _ = examine(env, tmp_path)
    assert code == 1
    wanting = {check["name"]: check for check in found["checks"] if check["state"] != "ok"}
    assert wanting.keys() >= {"ingress", "scheduler", "accounting", "pool embed"}
    assert wanting["scheduler"]["advice"] == "fairlane scheduler"
    assert states(found)["topics"] == states(found)["retention"] == "ok"


def test_without_kafka_it_says_so_and_looks_at_the_rest(redis_url: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    env = {
        "FAIRLANE_KAFKA": f"127.0.0.1:{port}",
        "FAIRLANE_REDIS": redis_url,
        "FAIRLANE_KAFKA_OPTIONS": '{"sasl.password": "do-not-print"}',
    }
    code, found, printed = examine(env, tmp_path)
    assert code == 1
    assert found["ok"] is False
    assert states(found)["cluster"] == "missing"
    assert states(found)["server"] == "ok"
    assert states(found)["policy"] == "unknown"
    assert "do-not-print" not in printed
