"""Pauses of the engine `upstream`: the gate of a 429, back-off, deadlines, cancels."""

import threading
import time
from collections.abc import Iterator

import pytest

from schemas.records import End
from tests.support.openai_server import OpenAiServer
from tests.support.upstreams import PATIENCE_S, Upstream, WaitedTime, chat, until, upstream
from workers.engine import EngineBatch, EngineOutcome
from workers.engines.upstream import BARRED, PAUSED_S_MAX, Pace, UpstreamEngine, UpstreamSettings
from workers.engines.upstream_gate import BARRED_PAUSE_S, PAUSE_S, PAUSE_S_MAX, PAUSE_S_MIN, Gate
from workers.engines.upstream_transport import LOOK_S


@pytest.fixture
def up() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


class SystemTime:
    def now_ms(self) -> int:
        return int(time.time() * 1000)


# --- 429


@pytest.mark.parametrize(
    ("act", "pause_s"),
    [
        ("429=7", 7.0),
        ("429=0.5", 0.5),
        ("429", PAUSE_S),
        ("429=0", PAUSE_S_MIN),
        ("429=86400", PAUSE_S_MAX),
    ],
)
def test_a_429_waits_as_long_as_it_says_within_limits(
    up: Upstream, act: str, pause_s: float
) -> None:
    assert up.run(chat(f"script:{act},ok")).end is End.SUCCEEDED
    assert up.clock.waited_s == pytest.approx(pause_s)


def test_a_retry_after_may_be_a_date() -> None:
    with OpenAiServer() as server:
        clock = WaitedTime(SystemTime().now_ms())
        pace = Pace(clock.monotonic, clock.wait, lambda: 0.0)
        engine = UpstreamEngine(UpstreamSettings(server.url, model="m"), clock, "", pace)
        made = Upstream(server, engine, clock)
        assert made.run(chat("script:429=date,ok")).end is End.SUCCEEDED
        engine.close()
    assert PAUSE_S_MIN <= clock.waited_s <= 2.0


def test_a_429_is_no_failed_try(up: Upstream) -> None:
    acts = "429=1,500,429=1,429=1,500,429=1,ok"
    assert up.run(chat(f"script:{acts}")).end is End.SUCCEEDED
    assert up.acts == acts.split(",")


def test_a_server_that_stays_busy_is_given_up_by_name(up: Upstream) -> None:
    outcome = up.run(chat("script:429=50"))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_failed")
    assert "busy (429)" in outcome.detail
    assert PAUSED_S_MAX <= up.clock.waited_s <= PAUSED_S_MAX + PAUSE_S_MAX


# --- a worker that is not let in


@pytest.mark.parametrize("act", ["401", "403", "lost", "moved"])
def test_who_is_not_let_in_waits_until_the_operator_has_mended_it(
    up: Upstream, act: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert up.run(chat(f"script:{act},{act},ok")).end is End.SUCCEEDED
    assert up.clock.waited_s == pytest.approx(2 * BARRED_PAUSE_S)
    alarms = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(alarms) == 2
    assert all(up.server.url in alarm and "--upstream-url" in alarm for alarm in alarms)


def test_a_key_that_is_refused_is_in_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    with upstream(key="scripted") as up:
        up.run(chat("script:401,ok"))
    assert "401: [key] 401" in caplog.text
    assert "scripted" not in caplog.text


@pytest.mark.parametrize("act", ["401", "403", "lost", "moved"])
def test_a_worker_that_is_never_let_in_ends_by_name_and_tells_tenants_nothing_of_it(
    up: Upstream, act: str
) -> None:
    outcome = up.run(chat(f"script:{act}"))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_failed")
    assert outcome.detail == f"{BARRED} for {PAUSED_S_MAX:.0f} s"
    assert PAUSED_S_MAX <= up.clock.waited_s <= PAUSED_S_MAX + PAUSE_S_MAX


@pytest.mark.parametrize(("act", "said"), [("403", "scripted 403"), ("lost", "Not Found")])
def test_a_request_that_alone_is_not_let_in_is_refused(up: Upstream, act: str, said: str) -> None:
    """Others that are called later are answered: neither key nor address is wrong."""
    others: list[EngineOutcome] = []

    def ask_meanwhile() -> None:
        up.clock.on_wait = lambda: None
        up.clock.waited_s += BARRED_PAUSE_S
        others.append(up.run(chat("hi")))

    up.clock.on_wait = ask_meanwhile
    outcome = up.run(chat(f"script:{act}"))
    assert [other.end for other in others] == [End.SUCCEEDED]
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_refused")
    assert said in outcome.detail
    assert len(up.acts) == 3


def test_nobody_calls_before_the_gate_opens(up: Upstream) -> None:
    """The server says 429 once; then four slots have requests, and none calls until it may."""
    waiting = threading.Semaphore(0)
    may_pass = threading.Event()

    def hold() -> None:
        waiting.release()
        assert may_pass.wait(PATIENCE_S)

    up.clock.on_wait = hold
    bodies = [chat("script:429=5,ok"), *[chat(f"hi {n}") for n in range(4)]]
    outcomes: list[EngineOutcome] = []
    threads = [
        threading.Thread(target=lambda b=body: outcomes.append(up.run(b))) for body in bodies
    ]
    threads[0].start()
    assert waiting.acquire(timeout=PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert waiting.acquire(timeout=PATIENCE_S)
    assert up.acts == ["429=5"]
    up.clock.on_wait = lambda: None
    may_pass.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [outcome.end for outcome in outcomes] == [End.SUCCEEDED] * 5
    assert up.clock.waited_s >= 5.0


def test_a_gate_that_is_closed_again_keeps_the_later_opening() -> None:
    now = [0.0]
    gate = Gate(lambda: now[0])
    assert gate.close(10)
    assert not gate.close(2)  # it was closed: no second alarm
    assert gate.left_s == 10
    now[0] = 11.0
    assert gate.left_s == 0
    assert gate.close(2)


# --- back-off


def test_the_pause_doubles_with_each_failed_try() -> None:
    with upstream(tries=5) as up:
        up.run(chat("script:500"))
        assert up.clock.waited_s == pytest.approx(0.1 + 0.2 + 0.4 + 0.8)


def test_a_503_that_names_a_time_is_given_it(up: Upstream) -> None:
    assert up.run(chat("script:503=9,ok")).end is End.SUCCEEDED
    assert up.clock.waited_s == pytest.approx(9.0)


def test_pauses_are_not_charged_as_service(up: Upstream) -> None:
    assert up.run(chat("script:429=40,ok")).usage.service_ms == 0  # time stood during the calls


# --- deadlines and cancels


@pytest.mark.parametrize("act", ["429=30", "503=30"])
def test_a_deadline_that_passes_during_a_wait_expires_the_request(up: Upstream, act: str) -> None:
    outcome = up.run(chat(f"script:{act}"), deadline_ms=up.clock.now_ms() + 1_000)
    assert (outcome.end, outcome.reason) == (End.EXPIRED, "deadline")
    assert len(up.acts) == 1
    assert up.clock.waited_s == pytest.approx(1.0, abs=0.11)


@pytest.mark.parametrize("act", ["429=30", "503=30"])
def test_a_cancel_during_a_wait_ends_it(up: Upstream, act: str) -> None:
    outcome = up.run(chat(f"script:{act}"), cancelled=lambda _: up.clock.waited_s > 0.5)
    assert (outcome.end, outcome.reason) == (End.CANCELLED, "cancelled")
    assert up.clock.waited_s < 1.0


def test_what_nobody_wants_is_not_called(up: Upstream) -> None:
    assert up.run(chat("hi"), cancelled=lambda _: True).end is End.CANCELLED
    assert up.acts == []


@pytest.mark.parametrize("body", [chat("script:hang"), chat("script:slow=20 " + "w " * 5_000)])
def test_a_cancel_hangs_up_on_a_server_that_is_at_work(
    up: Upstream, body: dict[str, object]
) -> None:
    """A silent call and a stream: the server sees its client go, and stops generating."""
    stream = "slow" in str(body)
    outcome = up.run({**body, "stream": stream}, cancelled=lambda _: bool(up.acts))
    assert outcome.end is End.CANCELLED
    until(lambda: up.server.gone == 1)


def test_a_cancelled_stream_is_charged_by_what_came(up: Upstream) -> None:
    looks = iter(range(1_000_000))
    outcome = up.run(
        chat("script:slow=5 " + "w " * 5_000, stream=True), cancelled=lambda _: next(looks) > 50
    )
    assert outcome.end is End.CANCELLED
    assert 0 < outcome.usage.output_tokens < 5_000
    assert outcome.usage.input_tokens > 2_000


def test_a_stream_that_said_done_is_not_waited_for(up: Upstream) -> None:
    """Looks come every 0.1 s: the whole patience would be hundreds."""
    looks = 0

    def look(_: int) -> bool:
        nonlocal looks
        looks += 1
        return False

    assert up.run(chat("script:linger", stream=True), cancelled=look).end is End.SUCCEEDED
    assert looks < PATIENCE_S / LOOK_S / 2


def test_texts_that_go_together_stop_only_when_nobody_wants_any() -> None:
    with upstream() as up:
        requests = tuple(up.request(text) for text in ("one", "two"))
        outcomes = up.engine.run(EngineBatch(1, requests), lambda index: index == 0)
        assert [outcome.end for outcome in outcomes] == [End.CANCELLED, End.SUCCEEDED]
        assert len(up.acts) == 1


def test_first_token_and_service_are_measured() -> None:
    with OpenAiServer() as server:
        engine = UpstreamEngine(UpstreamSettings(server.url, model="m"), SystemTime())
        usage = (
            Upstream(server, engine, WaitedTime())
            .run(chat("script:slow=20 a b c d", stream=True))
            .usage
        )
        engine.close()
    assert 20 <= usage.first_token_ms <= usage.service_ms - 4 * 20
