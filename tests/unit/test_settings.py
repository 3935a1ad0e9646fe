"""Settings: two ways in, never mixed; faults name the variable; secrets stay inside."""

import json
from pathlib import Path

import pytest

from fairlane.settings import Settings, SettingsError, load


def stack(folder: Path, text: str) -> None:
    (folder / ".fairlane").mkdir()
    (folder / ".fairlane" / "stack.json").write_text(text)


def test_without_either_both_ways_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        load({}, tmp_path)
    for word in ("FAIRLANE_KAFKA", "FAIRLANE_REDIS", "fairlane up", "stack.json"):
        assert word in str(raised.value)


def test_the_local_stack_is_the_fallback(tmp_path: Path) -> None:
    stack(tmp_path, json.dumps({"kafka": "127.0.0.1:1", "redis_url": "redis://127.0.0.1:2/0"}))
    found = load({"FAIRLANE_PREFIX": "other"}, tmp_path)
    expected = Settings(
        kafka="127.0.0.1:1", redis="redis://127.0.0.1:2/0", prefix="other", replication=1
    )
    assert found == expected


def test_the_environment_wins_and_is_not_mixed_with_the_stack(tmp_path: Path) -> None:
    stack(tmp_path, json.dumps({"kafka": "127.0.0.1:1", "redis_url": "redis://127.0.0.1:2/0"}))
    found = load({"FAIRLANE_KAFKA": "a:1,b:2"}, tmp_path)
    assert found == Settings(kafka="a:1,b:2", redis="", replication=3)
    with pytest.raises(SettingsError, match="FAIRLANE_REDIS is not set"):
        found.need_redis()


def test_half_an_environment_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="set both, or neither"):
        load({"FAIRLANE_REDIS": "redis://h:1"}, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kafka": "x"}'])
def test_an_unreadable_stack_file_is_named(tmp_path: Path, text: str) -> None:
    stack(tmp_path, text)
    with pytest.raises(SettingsError, match=r"stack\.json is unreadable .*fairlane down"):
        load({}, tmp_path)


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    environment = {
        "FAIRLANE_KAFKA": "a:1",
        "FAIRLANE_REDIS": "localhost",
        "FAIRLANE_PREFIX": "a.b",
        "FAIRLANE_KAFKA_OPTIONS": '{"acks": 0, "x": [], "enable.idempotence": false}',
        "FAIRLANE_REPLICATION": "many",
    }
    with pytest.raises(SettingsError) as raised:
        load(environment, tmp_path)
    lines = str(raised.value).split("\n")
    assert [line.split(":")[0] for line in lines] == [
        "FAIRLANE_REDIS is no URL",
        "FAIRLANE_PREFIX 'a.b' is not valid",
        "FAIRLANE_KAFKA_OPTIONS",
        "FAIRLANE_KAFKA_OPTIONS",
        "FAIRLANE_KAFKA_OPTIONS",
        "FAIRLANE_REPLICATION is 'many'; allowed is 1..15",
    ]


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_options_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="FAIRLANE_KAFKA_OPTIONS is no JSON"):
        load({"FAIRLANE_KAFKA": "a:1", "FAIRLANE_KAFKA_OPTIONS": text}, tmp_path)


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.password": "hush", "debug": True}
    found = load(
        {
            "FAIRLANE_KAFKA": "a:1",
            "FAIRLANE_REDIS": "redis://me:hu@sh/@h:1/0",
            "FAIRLANE_KAFKA_OPTIONS": json.dumps(options),
        },
        tmp_path,
    )
    assert found.kafka_options["sasl.password"] == "hush"
    assert found.kafka_options["debug"] == "true"
    for shown in (repr(found), str(found), json.dumps(found.redacted())):
        assert "hu" not in shown
        assert "SASL_SSL" in shown
        assert "h:1/0" in shown


def test_a_schedulers_memory_is_bounded_by_numbers(tmp_path: Path) -> None:
    given = {"FAIRLANE_KAFKA": "a:1", "FAIRLANE_BODIES_MB": "64", "FAIRLANE_WAITING_MAX": "1000"}
    found = load(given, tmp_path)
    assert (found.bodies_mb, found.waiting_max) == (64, 1_000)
    assert load({"FAIRLANE_KAFKA": "a:1"}, tmp_path).bodies_mb == 1_024
    wrong = given | {"FAIRLANE_BODIES_MB": "0", "FAIRLANE_WAITING_MAX": "-1"}
    with pytest.raises(SettingsError) as raised:
        load(wrong, tmp_path)
    for name, text in (("BODIES_MB", "0"), ("WAITING_MAX", "-1")):
        assert f"FAIRLANE_{name} is {text!r}; allowed is 1.." in str(raised.value)
