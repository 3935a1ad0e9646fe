"""Where tests find their services, and that CI never calls a skipped suite good."""

import pytest

from tests.support.ci import forbid_skip
from tests.support.containers import node_settings
from tests.support.services import (
    KAFKA_VARIABLE,
    REDIS_VARIABLE,
    Needs,
    Source,
    absence,
    choose,
    choose_own,
    is_ci,
)

ABLE = Needs((), has_docker=False)
DOCKER_ONLY = Needs(("Java",), has_docker=True)
BARE = Needs(("Java", "redis-server"), has_docker=False)
GIVEN = {KAFKA_VARIABLE: "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("env", "needs", "source"),
    [
        (GIVEN, ABLE, Source.GIVEN),
        (GIVEN, BARE, Source.GIVEN),
        ({**GIVEN, "CI": "1"}, BARE, Source.GIVEN),
        ({KAFKA_VARIABLE: ""}, ABLE, Source.LOCAL),
        ({}, ABLE, Source.LOCAL),
        ({"CI": "true"}, ABLE, Source.LOCAL),
        ({}, Needs((), has_docker=True), Source.LOCAL),
        ({}, DOCKER_ONLY, Source.CONTAINERS),
        ({"CI": "true"}, DOCKER_ONLY, Source.CONTAINERS),
        ({}, BARE, Source.SKIP),
        ({"CI": ""}, BARE, Source.SKIP),
        ({"CI": "true"}, BARE, Source.FAIL),
    ],
)
def test_an_address_comes_first_then_the_local_stack_then_containers(
    env: dict[str, str], needs: Needs, source: Source
) -> None:
    assert choose(env, KAFKA_VARIABLE, needs) is source


def test_each_service_has_an_address_of_its_own() -> None:
    assert choose(GIVEN, REDIS_VARIABLE, ABLE) is Source.LOCAL


@pytest.mark.parametrize(
    ("env", "needs", "source"),
    [
        (GIVEN, ABLE, Source.LOCAL),
        ({}, DOCKER_ONLY, Source.SKIP),
        ({"CI": "1", **GIVEN}, DOCKER_ONLY, Source.FAIL),
    ],
)
def test_a_stack_to_kill_is_never_somebody_elses(
    env: dict[str, str], needs: Needs, source: Source
) -> None:
    assert choose_own(env, needs) is source


@pytest.mark.parametrize(
    ("value", "is_on"), [("", False), ("0", False), ("False", False), ("1", True), ("true", True)]
)
def test_ci_is_what_the_variable_says(value: str, is_on: bool) -> None:
    assert is_ci({"CI": value}) is is_on


def test_the_reason_names_the_variable_and_each_missing_part() -> None:
    reason = absence(KAFKA_VARIABLE, BARE)
    assert all(word in reason for word in (KAFKA_VARIABLE, "Docker", "Java", "redis-server"))


def skipped() -> pytest.TestReport:
    place = ("tests/unit/test_x.py", 1, "Skipped: no broker")
    return pytest.TestReport("x", (*place[:2], ""), {}, "skipped", place, "setup")


def test_ci_turns_a_skip_into_a_failure_that_keeps_the_reason() -> None:
    report = skipped()
    forbid_skip(report, {"CI": "true"})
    assert report.failed
    assert "no broker" in str(report.longrepr)


def test_a_developers_skip_stays_a_skip() -> None:
    report = skipped()
    forbid_skip(report, {})
    assert report.skipped


def test_ci_lets_an_expected_failure_be() -> None:
    report = skipped()
    report.wasxfail = "known"
    forbid_skip(report, {"CI": "true"})
    assert report.skipped


def test_a_node_in_a_container_has_one_replica_of_all_and_its_address_on_the_host() -> None:
    settings = node_settings(23_456)
    replicas = {
        name: value
        for name, value in settings.items()
        if name.endswith(("REPLICATION_FACTOR", "_ISR", "INSYNC_REPLICAS"))
    }
    assert set(replicas.values()) == {"1"}
    assert "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR" in replicas
    assert "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR" in replicas
    assert "PLAINTEXT://127.0.0.1:23456" in settings["KAFKA_ADVERTISED_LISTENERS"].split(",")
