"""The operator's commands on a real broker: policy, keys, tail; errors say what to do."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.kafka import KafkaLog
from fairlane import __main__
from schemas.topics import Topics

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = (REPOSITORY / "examples" / "policy.toml").read_text()
TIMEOUT_S = 60


class Done(NamedTuple):
    """What a command printed."""

    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def prefix() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("FAIRLANE_KAFKA", kafka_bootstrap)
    monkeypatch.setenv("FAIRLANE_PREFIX", prefix)
    monkeypatch.setenv("FAIRLANE_REPLICATION", "1")
    monkeypatch.chdir(tmp_path)

    def fairlane(*arguments: str, code: int = 0) -> Done:
        capsys.readouterr()
        exit_code = __main__.run(list(arguments))
        done = Done(*capsys.readouterr())
        assert exit_code == code, (arguments, done)
        return done

    return fairlane


def write(folder: Path, text: str) -> str:
    path = folder / "policy.toml"
    path.write_text(text)
    return str(path)


def test_a_policy_is_published_once_and_its_topics_are_there(
    run: Run, prefix: str, tmp_path: Path, kafka_bootstrap: str
) -> None:
    file = write(tmp_path, EXAMPLE)
    assert "no policy is published yet" in run("policy", "show", code=2).stderr

    asked = run("policy", "apply", file, code=2)
    assert "the first policy:" in asked.stdout
    assert "give --yes" in asked.stderr

    applied = run("policy", "apply", file, "--yes").stdout
    assert '+ tenant "wonka"' in applied
    assert "published as version 1" in applied
    log = KafkaLog(kafka_bootstrap)
    topics = Topics(prefix)
    assert log.partitions(topics.requests("premium")) == 1
    assert log.partitions(topics.batches("chat")) == 4
    log.close()

    again = run("policy", "apply", file, "--yes").stdout
    assert again.startswith("unchanged")
    shown = run("policy", "show").stdout
    assert "# version 1" in shown
    assert run("policy", "apply", write(tmp_path, shown), "--yes").stdout.startswith("unchanged")

    changed = EXAMPLE.replace('name = "tyrell"', 'name = "cyberdyne"')
    second = run("policy", "apply", write(tmp_path, changed), "--yes").stdout
    assert '+ tenant "cyberdyne"' in second
    assert '- tenant "tyrell"' in second
    assert "version 1 -> 2:" in second
    published = run("tail", "policy", "--from-beginning", "--no-follow", "--json").stdout
    versions = [json.loads(line)["record"]["version"] for line in published.splitlines()]
    assert versions == [1, 2]


def test_what_the_topics_can_not_follow_is_refused_and_changes_nothing(
    run: Run, tmp_path: Path
) -> None:
    run("policy", "apply", write(tmp_path, EXAMPLE), "--yes")
    wrong = EXAMPLE.replace("shards = 1 ", "shards = 2 ").replace("lanes = 2", "lanes = 1")
    refused = run("policy", "apply", write(tmp_path, wrong), "--yes", code=2).stderr
    assert "2 faults:" in refused
    assert "topology: shards 1 -> 2" in refused
    assert 'pool "rerank-xl": lanes 2 -> 1' in refused
    assert "# version 1" in run("policy", "show").stdout


def test_a_faulty_file_is_told_whole_and_reaches_no_broker(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, EXAMPLE.replace('pool = "embed"', 'pool = "x"\nqantum = 1'))
    for command in (("check", file), ("apply", file, "--yes")):
        told = run("policy", *command, code=2).stderr
        assert 'unknown field "qantum"; did you mean "quantum"?' in told
        assert 'pool "x" is not defined' in told
    assert "none; run `fairlane policy apply FILE` first" in run("tail", "policy", code=2).stderr


def test_keys_are_printed_once_and_kept_as_digests(run: Run, tmp_path: Path) -> None:
    assert "no policy is published" in run("keys", "create", "--tenant", "acme", code=2).stderr
    run("policy", "apply", write(tmp_path, EXAMPLE), "--yes")
    key = run("keys", "create", "--tenant", "acme", "--note", "laptop").stdout.strip()
    found = re.fullmatch(r"fl_([0-9a-f]{16})_([0-9a-f]{64})", key)
    assert found
    listed = run("keys", "list").stdout
    assert re.search(rf"{found[1]} +acme +\S+ \S+Z +- +laptop", listed)
    assert f'revoked: {found[1]} of tenant "acme"' in run("keys", "revoke", found[1]).stdout
    kept = run("tail", "keys", "--from-beginning", "--no-follow").stdout
    assert kept.count(f"id={found[1]}") == 2
    assert found[2] not in kept + listed
    assert "no key has the id" in run("keys", "revoke", "beef", code=2).stderr
    unknown = run("keys", "create", "--tenant", "acmee", code=2).stderr
    assert 'tenant "acmee" is not defined; defined are: acme, ' in unknown


def test_pauses_are_told_to_every_shard(run: Run, tmp_path: Path) -> None:
    assert "no policy is published" in run("pause", "acme", code=2).stderr
    run("policy", "apply", write(tmp_path, EXAMPLE.replace("shards = 1", "shards = 2")), "--yes")
    paused = run("pause", "acme", "--endpoint", "embed", "--for", "1h").stdout
    assert re.match(r'paused until \S+ \S+Z: tenant "acme" at endpoint "embed"\n', paused)
    assert 'resumed: tenant "acme"' in run("resume", "acme", "--endpoint", "embed").stdout
    told = run("tail", "control", "--from-beginning", "--no-follow").stdout.splitlines()
    assert len(told) == 4
    for shard in "01":
        (first, second) = (line for line in told if f".control[{shard}]" in line)
        assert "pause" in first
        assert "resume" in second
        assert all("tenant=acme endpoint=embed" in line for line in (first, second))
    unknown = run("pause", "--endpoint", "embd", code=2).stderr
    assert 'endpoint "embd" is not defined; defined are: chat, embed, rerank-xl' in unknown
    assert "everything at once is not paused" in run("pause", code=2).stderr
    assert "no duration: 90s, 10m" in run("pause", "acme", "--for", "10", code=2).stderr


def test_tail_goes_on_after_what_it_can_not_read(
    run: Run, prefix: str, tmp_path: Path, kafka_bootstrap: str
) -> None:
    run("policy", "apply", write(tmp_path, EXAMPLE), "--yes")
    run("keys", "create", "--tenant", "acme")
    log = KafkaLog(kafka_bootstrap)
    producer = log.producer()
    producer.send(f"{prefix}.keys", 0, b"\xc1\x02\x03", key=b"broken")
    assert producer.flush(TIMEOUT_S) == 0
    producer.close()
    log.close()
    run("keys", "create", "--tenant", "globex")
    lines = run("tail", f"{prefix}.keys", "--from-beginning", "--limit", "3").stdout.splitlines()
    assert "tenant=acme" in lines[0]
    assert re.match(rf"{prefix}\.keys\[0\]@1 \S+Z ! unreadable: .*; bytes: c10203$", lines[1])
    assert "tenant=globex" in lines[2]


def test_a_process_of_its_own_says_what_to_do_and_exits_2(run: Run, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlane", "keys", "revoke", "beef"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fairlane: no key has the id 'beef'")
    assert "Traceback" not in done.stderr
