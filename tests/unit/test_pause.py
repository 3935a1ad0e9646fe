"""Pause and resume as an operator gives them: names, times, what every shard is told."""

from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from adapters.memory import MemoryLog
from fairlane import cli_connect
from fairlane.cli import app
from fairlane.pause import PAUSE_MS_MAX, PauseError, end_ms, pause, resume, shown_time
from fairlane.publish import publish_policy
from schemas.codec import decode_value
from schemas.log import LogError, OnDelivery, UnavailableError
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier, Topology
from schemas.records import ControlRecord, Pause, Resume
from schemas.topics import Topics

POLICY = Policy(
    tiers=(Tier(name="only"),),
    pools=(Pool(name="chat"), Pool(name="embed")),
    endpoints=(Endpoint(name="chat", pool="chat"), Endpoint(name="embed", pool="embed")),
    tenants=(
        Tenant(name="acme", tiers=("only",)),
        Tenant(name="lab", tiers=("only",), parent="acme"),
        Tenant(name="shop", tiers=("only",), parent="acme"),
    ),
    topology=Topology(shards=3),
)
TOPICS = Topics("t")
NOW_MS = 1_796_000_000_000  # 2026-11-30 00:53 UTC


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(Clock())
    publish_policy(log, TOPICS, POLICY)
    return log


def told(log: MemoryLog, shard: int) -> list[ControlRecord]:
    reader = log.reader()
    reader.assign({(TOPICS.control, shard): 0})
    return [decode_value(record, ControlRecord) for record in reader.poll(100, 0)]


def test_every_shard_is_told_the_same_in_order(log: MemoryLog) -> None:
    pause(log, TOPICS, "acme", "embed", NOW_MS + 5)
    pause(log, TOPICS, "", "chat")
    pause(log, TOPICS, "lab", "")
    resume(log, TOPICS, "acme", "embed")
    expected = [
        Pause(1, "acme", "embed", NOW_MS + 5),
        Pause(1, "", "chat"),
        Pause(1, "lab", ""),
        Resume(1, "acme", "embed"),
    ]
    assert [told(log, shard) for shard in range(3)] == [expected] * 3


@pytest.mark.parametrize(
    ("tenant", "endpoint", "shown"),
    [
        ("lab", "embed", 'tenant "lab" at endpoint "embed"'),
        ("acme", "", 'tenant "acme" with its children (lab, shop) at every endpoint'),
        ("", "chat", 'every tenant at endpoint "chat"'),
    ],
)
def test_who_is_paused_is_said_in_full(
    log: MemoryLog, tenant: str, endpoint: str, shown: str
) -> None:
    assert str(pause(log, TOPICS, tenant, endpoint)) == shown
    assert str(resume(log, TOPICS, tenant, endpoint)) == shown


@pytest.mark.parametrize(
    ("tenant", "endpoint", "message"),
    [
        ("", "", r"name a tenant, an endpoint \(--endpoint\), or both"),
        ("acmee", "", 'tenant "acmee" is not defined; defined are: acme, lab, shop'),
        ("acme", "embd", 'endpoint "embd" is not defined; defined are: chat, embed'),
    ],
)
def test_what_the_policy_does_not_know_is_not_told(
    log: MemoryLog, tenant: str, endpoint: str, message: str
) -> None:
    for ask in (pause, resume):
        with pytest.raises(PauseError, match=message):
            ask(log, TOPICS, tenant, endpoint)
    assert [told(log, shard) for shard in range(3)] == [[]] * 3


def test_without_a_policy_there_is_nobody_to_pause(log: MemoryLog) -> None:
    with pytest.raises(PauseError, match="no policy is published under 'u'"):
        pause(log, Topics("u"), "acme", "")


class HalfDeaf:
    """A log whose producer delivers to one partition and loses, or keeps silent, elsewhere."""

    def __init__(self, inner: MemoryLog, error: LogError | None) -> None:
        self.inner, self.error = inner, error

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def producer(self, *, linger_ms: int = 0) -> "HalfDeaf":
        return self

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        on_delivery: OnDelivery,
    ) -> None:
        if partition == 0:
            on_delivery(0, None)
        elif self.error is not None:
            on_delivery(None, self.error)

    def flush(self, _timeout_s: float) -> int:
        return 0 if self.error else 2

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [UnavailableError("broker 3 is gone"), None])
def test_what_not_all_shards_confirm_is_to_be_said_again(
    log: MemoryLog, error: LogError | None
) -> None:
    deaf = HalfDeaf(log, error)
    why = "broker 3 is gone" if error else r"t\.control: not confirmed within 30 s"
    with pytest.raises(PauseError, match=f"{why}: some of 3 shards may not know; run the same"):
        pause(deaf, TOPICS, "acme", "")  # type: ignore[arg-type]


# --- times


@pytest.mark.parametrize(
    ("lasts", "lasts_ms"),
    [
        ("90s", 90_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        (" 1d2h3m4s ", 93_784_000),
        ("366d", PAUSE_MS_MAX),
    ],
)
def test_a_pause_lasts_as_long_as_it_says(lasts: str, lasts_ms: int) -> None:
    assert end_ms(NOW_MS, lasts, None) == NOW_MS + lasts_ms


@pytest.mark.parametrize("until", ["2026-12-01T09:30Z", "2026-12-01T10:30:00+01:00"])
def test_a_pause_lasts_until_its_time_in_its_zone(until: str) -> None:
    end = end_ms(NOW_MS, None, until)
    assert datetime.fromtimestamp(end / 1000, UTC) == datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
    assert shown_time(end) == "2026-12-01 09:30:00Z"


def test_without_a_time_it_lasts_until_resumed() -> None:
    assert end_ms(NOW_MS, None, None) == 0


@pytest.mark.parametrize(
    ("lasts", "until", "message"),
    [
        ("10", None, "--for '10' is no duration: 90s, 10m"),
        ("", None, "--for '' is no duration"),
        ("-5m", None, "--for '-5m' is no duration"),
        ("5m1h", None, "is no duration"),
        ("1.5h", None, "is no duration"),
        (f"{'9' * 5_000}s", None, "is no duration"),
        ("0s", None, "'0s' is over already"),
        ("367d", None, "is more than 366 days away: leave --for and --until out"),
        ("999999999d", None, "is more than 366 days away"),
        (None, "tomorrow", "--until 'tomorrow' is no time of ISO 8601"),
        (None, "2026-12-01T09:30", "has no time zone: append Z"),
        (None, "2001-01-01T00:00Z", "is over already: nothing would be paused"),
        (None, "9999-12-31T23:59Z", "is more than 366 days away"),
        ("1h", "2026-12-01T09:30Z", "give one of them"),
    ],
)
def test_other_times_are_refused_with_what_is_right(
    lasts: str | None, until: str | None, message: str
) -> None:
    with pytest.raises(PauseError, match=message):
        end_ms(NOW_MS, lasts, until)


# --- the commands


@pytest.fixture
def run(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> "Run":
    monkeypatch.setattr("fairlane.run.open_log", lambda _: log)
    monkeypatch.setattr(cli_connect, "settings", Settings)
    return Run()


class Settings:
    prefix = "t"
    kafka = "nowhere"


class Run:
    def __call__(self, *arguments: str) -> list[str]:
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()


def test_the_commands_say_what_they_did_and_how_to_take_it_back(log: MemoryLog, run: Run) -> None:
    first, second, third = run("pause", "lab", "--endpoint", "embed")
    assert first == 'paused until it is resumed: tenant "lab" at endpoint "embed"'
    assert second.startswith("what waits goes on waiting")
    assert third == "to end it: fairlane resume lab --endpoint embed"
    assert run(*third.partition("fairlane ")[2].split())[0] == (
        'resumed: tenant "lab" at endpoint "embed"'
    )
    assert told(log, 2) == [Pause(1, "lab", "embed"), Resume(1, "lab", "embed")]


def test_everybody_at_an_endpoint_for_a_while(log: MemoryLog, run: Run) -> None:
    first, _, third = run("pause", "--endpoint", "chat", "--for", "10m")
    (record,) = told(log, 0)
    assert isinstance(record, Pause)
    assert record == Pause(1, "", "chat", record.until_ms)
    shown = shown_time(record.until_ms)
    assert first == f'paused until {shown}: every tenant at endpoint "chat"'
    assert third == "to end it sooner: fairlane resume --endpoint chat"
