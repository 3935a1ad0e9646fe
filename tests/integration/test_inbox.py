"""Inboxes on a real Kafka and Redis, as processes: killed in the midst, then counted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from adapters.kafka import KafkaLog
from fairlane.policy_file import load
from fairlane.publish import publish_policy
from schemas.log import LogError
from schemas.policy import Inbox, Policy, Predict
from schemas.topics import Topics
from tests.support.oracle_inbox import answers, faults, requests
from tests.support.processes import DEADLINE_S, Processes, until

EXAMPLE = load(Path("examples/policy.toml"))


class Bus(NamedTuple):
    """A deployment's log and names, as an admin of it."""

    log: KafkaLog
    topics: Topics

    def write(self, tenant: str, first: int, stop: int) -> None:
        """Requests of an inbox, every tenth of them none."""
        producer = self.log.producer()
        for number in range(first, stop):
            body = {"endpoint": "chat", "input": number} if number % 10 else {"endpoint": "no"}
            name = [("x-request-id", b"%d" % number)]
            value = json.dumps(body).encode()
            producer.send(self.topics.inbox(tenant), 0, value, headers=name)
        assert producer.flush(DEADLINE_S) == 0
        producer.close()


@pytest.fixture
def bus(kafka_bootstrap: str, topics: Topics) -> Iterator[Bus]:
    log = KafkaLog(kafka_bootstrap, replication=1)
    yield Bus(log, topics)
    log.close()


def policy(**limits: int) -> Policy:
    """Requests a minute are the only limit, and nobody has to wait for workers to be let in."""
    inboxes = {"acme": Inbox.REFUSE, "globex": Inbox.HOLD}
    tenants = tuple(
        replace(tenant, inbox=inboxes.get(tenant.name, Inbox.OFF), requests_per_minute=limits)
        for tenant in EXAMPLE.tenants
    )
    endpoints = tuple(
        replace(endpoint, predict=Predict.OFF, tokens_per_minute=None)
        for endpoint in EXAMPLE.endpoints
    )
    return replace(EXAMPLE, tenants=tenants, endpoints=endpoints)


def start_workers(processes: Processes) -> None:
    processes.start("scheduler", "--instance", "s")
    processes.start(
        "worker", "--pool", "chat", "--instance", "w", "--fixed-ms", "1", "--slots", "16"
    )


def test_killed_in_the_midst_every_record_is_in_once_and_answered_once(
    processes: Processes, bus: Bus
) -> None:
    publish_policy(bus.log, bus.topics, policy(chat=1_000_000))
    start_workers(processes)
    written = 0
    for wave in range(5):
        inbox = processes.start("inbox", "--instance", "i")
        bus.write("acme", written, written + 400)
        bus.write("globex", written, written + 40)
        before, written = written, written + 400
        if wave < 4:
            enough = (before + 50 * wave) * 11 // 10
            until(lambda: sum(map(len, requests(bus).values())) >= enough, "some are in")  # noqa: B023
            assert inbox.stop(signal.SIGKILL) == -signal.SIGKILL

    until(lambda: len(answers(bus, "acme")) >= 2_000, "an answer to each of acme's")
    until(lambda: len(answers(bus, "globex")) >= 200, "an answer to each of globex's")
    assert faults(bus, ("acme", "globex")) == []
    told = answers(bus, "acme")
    assert sorted(int(answer["x_request_id"]) for answer in told) == list(range(2_000))
    refused = {int(a["x_request_id"]) for a in told if a["kind"] == "refused"}
    assert refused == set(range(0, 2_000, 10))
    assert inbox.stop() == 0


def test_another_of_the_same_name_takes_over_and_the_first_one_ends(
    processes: Processes, bus: Bus
) -> None:
    publish_policy(bus.log, bus.topics, policy())
    start_workers(processes)
    first = processes.start("inbox", "--instance", "same")
    bus.write("acme", 1, 10)
    until(lambda: len(answers(bus, "acme")) == 9, "nine answers")
    second = processes.start("inbox", "--instance", "same")
    assert first.process.wait(DEADLINE_S) == 3, first.text()
    bus.write("acme", 11, 20)
    until(lambda: len(answers(bus, "acme")) == 18, "nine more answers")
    assert faults(bus, ("acme",)) == []
    assert second.stop() == 0


def test_the_example_submits_and_prints_what_comes(
    processes: Processes, bus: Bus, kafka_bootstrap: str
) -> None:
    publish_policy(bus.log, bus.topics, policy())
    start_workers(processes)
    processes.start("inbox", "--instance", "i")
    command = [sys.executable, "examples/bus_submit.py", "--kafka", kafka_bootstrap]
    command += ["--tenant", "acme", "--prefix", bus.topics.prefix]
    done = subprocess.run(
        [*command, "--endpoint", "chat", "one", "two"],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"state": "succeeded"') == 2
    refused = subprocess.run(
        [*command, "--endpoint", "none", "three"],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert refused.returncode == 0, refused.stderr
    assert '"refused": "unknown_endpoint"' in refused.stdout


def test_a_tenant_s_topic_that_is_gone_holds_up_nobody_else(processes: Processes, bus: Bus) -> None:
    one_bucket = replace(EXAMPLE.topology, buckets=1)
    publish_policy(bus.log, bus.topics, replace(policy(), topology=one_bucket))
    start_workers(processes)
    inbox = processes.start("inbox", "--instance", "i")
    bus.write("acme", 0, 10)
    bus.write("globex", 0, 10)
    until(lambda: len(answers(bus, "acme")) == 10, "acme's answers")
    until(lambda: len(answers(bus, "globex")) == 10, "globex's answers")
    bus.log.delete_topic(bus.topics.results_of("acme"))
    bus.write("acme", 10, 20)
    bus.write("globex", 10, 20)
    until(lambda: len(answers(bus, "globex")) == 20, "globex's answers, without acme's topic")
    assert faults(bus, ("globex",)) == []
    publish_policy(bus.log, bus.topics, replace(policy(), topology=one_bucket))
    bus.write("acme", 20, 30)
    until(lambda: 20 in told(bus, "acme"), "acme's answers, since its topic is back")
    assert inbox.stop() == 0


def told(bus: Bus, tenant: str) -> set[int]:
    """Offsets of an inbox's records that have an answer; none while its topic is being made."""
    with suppress(LogError):
        return {answer["inbox"]["offset"] for answer in answers(bus, tenant)}
    return set()
