"""The doctor: rules by a table of findings, what it prints, and that it never waits for long."""

import json
import socket
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement

from fairlane import doctor, models
from fairlane.doctor_checks import (
    Check,
    Findings,
    GroupFound,
    KafkaFound,
    Machine,
    PublishedFound,
    RedisFound,
    State,
    Where,
    judge,
)
from fairlane.doctor_probes import (
    EXTRAS,
    Pending,
    absent,
    look,
    look_at_models,
    names_of_groups,
    scrubbed,
    unreachable,
)
from fairlane.doctor_topics import FRAMING_BYTES, TopicFound
from fairlane.policy_file import load
from fairlane.settings import Settings
from schemas.log import RECORD_BYTES_MAX
from schemas.policy import Inbox
from schemas.topics import COMPACTION_LAG_MS, RETENTION_MS, Topics
from workers.engines.weights import MODEL

ROOT = Path(__file__).parents[2]
POLICY = load(ROOT / "examples" / "policy.toml")
TOPICS = Topics("fairlane")
GROUPS = names_of_groups("fairlane", POLICY)
DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


def topics() -> dict[str, TopicFound]:
    return {
        spec.name: TopicFound(spec.partitions, 3, 0, {**DEFAULTS, **spec.config})
        for spec in TOPICS.of(POLICY)
    }


def all_is_well() -> Findings:
    lanes = {GROUPS.workers[pool.name]: GroupFound(2, pool.lanes) for pool in POLICY.pools}
    once = (GROUPS.ingress, GROUPS.scheduler, GROUPS.accounting)
    members = {**dict.fromkeys(once, GroupFound(1, 1)), **lanes}
    return Findings(
        Machine((3, 11, 7), {"accounting": (), "embed": ()}, (), {"minilm": ""}),
        Where("the environment", "kafka:9092", "redis://redis:6379/0", "fairlane", 3),
        KafkaFound("cluster", 3, topics(), members),
        RedisFound("7.2.4", "noeviction", is_appending=True, saves="", rtt_us=300),
        PublishedFound(POLICY, 1),
        GROUPS,
    )


def kafka(found: Findings, **changes: Any) -> Findings:
    assert found.kafka is not None
    return found._replace(kafka=found.kafka._replace(**changes))


def redis(found: Findings, **changes: Any) -> Findings:
    assert found.redis is not None
    return found._replace(redis=found.redis._replace(**changes))


def topic(name: str, **settings: str) -> Callable[[Findings], Findings]:
    """One topic with other settings (dots written as double underscores)."""
    new = {key.replace("__", "."): value for key, value in settings.items()}

    def change(found: Findings) -> Findings:
        had = topics()
        had[name] = had[name]._replace(settings={**had[name].settings, **new})
        return kafka(found, topics=had)

    return change


def shaped(name: str, **changes: Any) -> Callable[[Findings], Findings]:
    def change(found: Findings) -> Findings:
        had = topics()
        had[name] = had[name]._replace(**changes)
        return kafka(found, topics=had)

    return change


def group(name: str, found_group: GroupFound) -> Callable[[Findings], Findings]:
    def change(found: Findings) -> Findings:
        assert found.kafka is not None
        assert found.kafka.groups is not None
        return kafka(found, groups={**found.kafka.groups, name: found_group})

    return change


def machine(**changes: Any) -> Callable[[Findings], Findings]:
    return lambda found: found._replace(machine=found.machine._replace(**changes))


def without(names: set[str]) -> Mapping[str, TopicFound]:
    return {name: found for name, found in topics().items() if name not in names}


def broken_policy() -> PublishedFound:
    pools = [msgspec.structs.replace(pool, lanes=0) for pool in POLICY.pools]
    return PublishedFound(msgspec.structs.replace(POLICY, pools=pools), 1)


Change = Callable[[Findings], Findings]
#: What is changed, which check notices, its state, and a word that it says.
TABLE: list[tuple[str, Change, str, str, str]] = [
    ("old Python", machine(python=(3, 10, 1)), "Python", "missing", "3.11"),
    ("no extra", machine(extras={"embed": ("onnx",)}), "extra embed", "warn", "fairlane[embed]"),
    ("weights", machine(models={"minilm": "no file"}), "model minilm", "warn", "make models"),
    ("no Java, not needed", machine(stack_missing=("Java 17: x",)), "local stack", "ok", "Java 17"),
    (
        "no Redis URL",
        lambda f: f._replace(where=f.where._replace(redis="")),
        "Redis",
        "missing",
        "FAIRLANE_REDIS",
    ),
    ("Kafka is down", lambda f: kafka(f, error="no broker"), "cluster", "missing", "fairlane up"),
    ("too few brokers", lambda f: kafka(f, brokers=1), "cluster", "missing", "REPLICATION to 1"),
    (
        "topics are absent",
        lambda f: kafka(f, topics=without({TOPICS.results, TOPICS.dead})),
        "topics",
        "missing",
        "fairlane.results, fairlane.dead",
    ),
    ("no topic at all", lambda f: kafka(f, topics={}), "topics", "missing", "and"),
    ("another shape", shaped(TOPICS.decisions, partitions=9), "topics", "missing", "instead of 1"),
    ("no leader", shaped(TOPICS.decisions, leaderless=1), "topics", "missing", "leader"),
    ("one copy", shaped(TOPICS.results, copies=1), "copies", "warn", "fairlane.results has 1"),
    (
        "one copy, two wanted in sync",
        shaped(TOPICS.results, copies=1),
        "copies in sync",
        "missing",
        "fairlane.results",
    ),
    (
        "one in sync is enough",
        topic(TOPICS.results, min__insync__replicas="1"),
        "copies in sync",
        "warn",
        "below 2",
    ),
    (
        "unclean",
        topic(TOPICS.dead, unclean__leader__election__enable="true"),
        "unclean elections",
        "warn",
        "fairlane.dead",
    ),
    (
        "small",
        topic(TOPICS.results, max__message__bytes="1000000"),
        "record size",
        "warn",
        "fairlane.results",
    ),
    (
        "short",
        topic(TOPICS.decisions, retention__ms=str(RETENTION_MS)),
        "retention",
        "warn",
        "fairlane.decisions",
    ),
    ("kept for ever", topic(TOPICS.decisions, retention__ms="-1"), "retention", "ok", "as long"),
    ("longer", topic(TOPICS.control, retention__ms=str(2 * RETENTION_MS)), "retention", "ok", ""),
    (
        "keys are dropped",
        topic(TOPICS.keys, cleanup__policy="delete"),
        "compaction",
        "warn",
        "fairlane.keys",
    ),
    (
        "results are merged",
        topic(TOPICS.results, cleanup__policy="compact"),
        "compaction",
        "warn",
        "fairlane.results",
    ),
    (
        "sums are dropped",
        topic(TOPICS.usage("embed"), cleanup__policy="delete"),
        "compaction",
        "warn",
        "cleanup.policy=compact for fairlane.usage.embed",
    ),
    (
        "costs are dropped",
        topic(TOPICS.costs, cleanup__policy="delete"),
        "compaction",
        "warn",
        "cleanup.policy=compact for fairlane.costs",
    ),
    (
        "sums are merged at once",
        topic(TOPICS.usage("embed"), min__compaction__lag__ms="0"),
        "compaction",
        "warn",
        f"min.compaction.lag.ms={COMPACTION_LAG_MS} for fairlane.usage.embed",
    ),
    (
        "sender's time",
        topic(TOPICS.requests("trial"), message__timestamp__type="CreateTime"),
        "timestamps",
        "warn",
        "fairlane.requests.trial",
    ),
    (
        "settings are not told",
        lambda f: kafka(
            f, topics={name: found._replace(settings={}) for name, found in topics().items()}
        ),
        "settings of topics",
        "unknown",
        "DescribeConfigs",
    ),
    ("Redis is down", lambda f: redis(f, error="refused"), "server", "missing", "refused"),
    ("old Redis", lambda f: redis(f, version="6.2.1"), "server", "missing", "7 or newer"),
    ("no version", lambda f: redis(f, version=""), "server", "missing", "unknown"),
    ("evicts", lambda f: redis(f, eviction="allkeys-lru"), "eviction", "warn", "allkeys-lru"),
    ("keeps nothing", lambda f: redis(f, is_appending=False), "persistence", "warn", "appendonly"),
    (
        "snapshots",
        lambda f: redis(f, is_appending=False, saves="60 1"),
        "persistence",
        "ok",
        "60 1",
    ),
    (
        "doesn't tell",
        lambda f: redis(f, is_appending=False, saves=None),
        "persistence",
        "unknown",
        "CONFIG",
    ),
    ("far away", lambda f: redis(f, rtt_us=40_000), "distance", "warn", "40.0 ms"),
    (
        "no policy",
        lambda f: f._replace(published=PublishedFound()),
        "policy",
        "missing",
        "policy apply",
    ),
    (
        "broken policy",
        lambda f: f._replace(published=broken_policy()),
        "policy",
        "missing",
        "lanes",
    ),
    (
        "policy unreadable",
        lambda f: f._replace(published=PublishedFound(error="place")),
        "policy",
        "unknown",
        "place",
    ),
    (
        "no key",
        lambda f: f._replace(published=PublishedFound(POLICY, 0)),
        "keys",
        "missing",
        "keys create",
    ),
    (
        "no scheduler",
        group(GROUPS.scheduler, GroupFound(0, 0)),
        "scheduler",
        "missing",
        "fairlane scheduler",
    ),
    (
        "no ingress",
        group(GROUPS.ingress, GroupFound(0, 0)),
        "ingress",
        "missing",
        "fairlane ingress",
    ),
    (
        "no accounting",
        group(GROUPS.accounting, GroupFound(0, 0)),
        "accounting",
        "warn",
        "fairlane accounting",
    ),
    (
        "no worker",
        group(GROUPS.workers["chat"], GroupFound(0, 0)),
        "pool chat",
        "warn",
        "fairlane worker --pool chat",
    ),
    (
        "lanes are free",
        group(GROUPS.workers["chat"], GroupFound(1, 3)),
        "pool chat",
        "warn",
        "3 of 4",
    ),
    ("members are not told", lambda f: kafka(f, groups=None), "members", "unknown", "tell"),
]


def test_nothing_is_said_against_what_is_well() -> None:
    checks = judge(all_is_well())
    assert {check for check in checks if check.state is not State.OK} == set()
    assert {check.group for check in checks} == {
        "this machine",
        "settings",
        "Kafka",
        "Redis",
        "policy",
        "services",
    }
    assert doctor.is_well(checks)


@pytest.mark.parametrize(
    ("change", "name", "state", "word"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_fault_is_noticed(change: Change, name: str, state: str, word: str) -> None:
    before, after = judge(all_is_well()), judge(change(all_is_well()))
    (check,) = [found for found in after if found.name == name]
    assert check.state == state
    assert word in f"{check.found} {check.advice}"
    assert bool(check.advice) == (state != "ok")
    assert state == "ok" or check not in before
    if state in ("warn", "ok"):
        others = {c for c in after if c.state is not State.OK} - {check}
        allowed = {"copies in sync"} if name == "copies" else set()
        assert {c.name for c in others} <= allowed


def test_a_machine_without_addresses_is_told_all_its_ways() -> None:
    lines = ("Java 17 or newer: apt install java", "redis-server: apt install redis-server")
    found = Findings(
        Machine((3, 11, 7), {}, lines, {}),
        Where(error="no Kafka is known: set FAIRLANE_KAFKA, or run `fairlane up`"),
    )
    checks = judge(found)
    wanting = {check.name: check.advice for check in checks if check.state is State.MISSING}
    assert wanting["Java 17 or newer"] == "apt install java"
    assert wanting["redis-server"] == "apt install redis-server"
    assert "fairlane up" in wanting["addresses"]
    later = [check for check in checks if check.group in ("Kafka", "Redis", "policy", "services")]
    assert {check.state for check in later} == {State.UNKNOWN}
    assert not doctor.is_well(checks)


def test_topics_of_the_base_are_asked_for_before_there_is_a_policy() -> None:
    base = {spec.name for spec in TOPICS.base()}
    found = kafka(all_is_well(), topics=without(set(topics()) - base))
    checks = judge(found._replace(published=PublishedFound()))
    (topics_check,) = [check for check in checks if check.name == "topics"]
    assert topics_check.state is State.OK


def test_the_largest_record_fits_where_the_brokers_default_is() -> None:
    assert int(DEFAULTS["max.message.bytes"]) >= RECORD_BYTES_MAX + FRAMING_BYTES


def test_the_text_says_what_to_do_below_what_is_wrong() -> None:
    checks = [
        Check("Kafka", "cluster", State.OK, "3 brokers"),
        Check("Kafka", "topics", State.MISSING, "not there: a", "make them"),
        Check("Redis", "eviction", State.WARN, "evicts", "stop it"),
    ]
    assert [" ".join(line.split()) for line in doctor.as_text(checks).splitlines()] == [
        "Kafka",
        "ok cluster 3 brokers",
        "missing topics not there: a",
        "-> make them",
        "Redis",
        "warn eviction evicts",
        "-> stop it",
        "",
        "something is missing: 1 ok, 1 warn, 1 missing",
    ]
    found = json.loads(doctor.as_object(checks))
    assert found["ok"] is False
    assert found["checks"][1] == {
        "group": "Kafka",
        "name": "topics",
        "state": "missing",
        "found": "not there: a",
        "advice": "make them",
    }
    assert json.loads(doctor.as_object(checks[:1]))["ok"] is True


def test_warnings_alone_are_no_failure() -> None:
    assert doctor.is_well([Check("Redis", "eviction", State.WARN, "evicts", "stop it")])
    assert doctor.is_well([Check("Redis", "persistence", State.UNKNOWN, "?", "look")])


def test_a_probe_that_hangs_or_fails_is_an_answer() -> None:
    release = threading.Event()
    hanging = Pending(lambda: str(release.wait()), lambda why: f"none: {why}")
    assert hanging.get(0.01) == "none: no answer within 0.01 s"
    release.set()

    def fail() -> str:
        raise ValueError("boom")

    assert Pending(fail, lambda why: f"none: {why}").get(10) == "none: ValueError: boom"
    assert Pending(lambda: "there", lambda why: why).get(10) == "there"


def test_an_address_that_takes_no_connection_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = server.getsockname()[1]
        assert unreachable(f"127.0.0.1:{open_port}", 5) == ""
        assert unreachable(f"127.0.0.1:1, 127.0.0.1:{open_port}", 5) == ""
    found = unreachable("127.0.0.1:1,nonsense", 5)
    assert "127.0.0.1:1: " in found
    assert "nonsense: " in found


def test_secrets_are_taken_out_of_messages() -> None:
    settings = Settings(
        kafka="kafka:9092",
        redis="redis://user:pass/word@host:6379/0",
        kafka_options={"sasl.password": "s3cret", "security.protocol": "SASL_SSL"},
    )
    text = "SASL_SSL: s3cret is wrong; can't reach pass/word@host:6379"
    assert scrubbed(text, settings) == "SASL_SSL: *** is wrong; can't reach ***@host:6379"


def test_no_secret_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {
        "FAIRLANE_KAFKA": "127.0.0.1:1",
        "FAIRLANE_REDIS": "redis://:pa#ss/hush@127.0.0.1:1/0",
        "FAIRLANE_KAFKA_OPTIONS": '{"sasl.password": "hush", "sasl.nonsense": "hush"}',
        "PATH": "",
    }
    checks = judge(look(environ, tmp_path))
    assert "hush" not in doctor.as_text(checks)
    assert "hush" not in doctor.as_object(checks)
    states = {check.name: check.state for check in checks if check.group in ("Kafka", "Redis")}
    assert states == {"cluster": State.MISSING, "server": State.MISSING}
    assert "hush" not in "".join(capsys.readouterr())


def test_without_addresses_nothing_is_asked(tmp_path: Path) -> None:
    found = look({"PATH": "", "FAIRLANE_KAFKA_JARS": str(tmp_path)}, tmp_path)
    assert "fairlane up" in found.where.error
    assert (found.kafka, found.redis, found.published) == (None, None, None)
    assert any("FAIRLANE_KAFKA_JARS" in line for line in found.machine.stack_missing)


def test_a_module_that_hides_its_description_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = ModuleType("nameless")
    nameless.__spec__ = None
    monkeypatch.setitem(sys.modules, "nameless", nameless)
    assert absent(["nameless", "json", "no_such_module"]) == ("no_such_module",)


def test_extras_are_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in EXTRAS.items():
        names = {Requirement(line).name for line in project["optional-dependencies"][extra]}
        assert {name.removesuffix("-streaming") for name in names} == set(modules)


def test_weights_are_looked_at_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "installed", lambda: None)
    assert look_at_models() == {MODEL: "its files are not installed"}
    monkeypatch.setattr(models, "installed", lambda: tmp_path)
    assert str(tmp_path) in look_at_models()[MODEL]


def test_modules_are_looked_for_and_not_imported() -> None:
    assert absent(("json", "no_such_module_anywhere")) == ("no_such_module_anywhere",)


@pytest.mark.parametrize(("members", "state"), [(0, "warn"), (1, "ok")])
def test_who_has_an_inbox_needs_somebody_who_takes_it_in(members: int, state: str) -> None:
    tenants = tuple(msgspec.structs.replace(t, inbox=Inbox.HOLD) for t in POLICY.tenants)
    policy = msgspec.structs.replace(POLICY, tenants=tenants)
    change = group(GROUPS.inbox, GroupFound(members, members))
    found = change(all_is_well())._replace(published=PublishedFound(policy, 1))
    [check] = [check for check in judge(found) if check.name == "inbox"]
    assert check.state == state
    assert "inbox" not in {check.name for check in judge(all_is_well())}, "nobody has one"
