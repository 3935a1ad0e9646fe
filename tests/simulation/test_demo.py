"""The demo's claim in small, its controls, and what it prints where nobody watches."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fairlane.demo import Options, scene_of
from fairlane.demo_plain import JsonShow, PlainShow
from fairlane.demo_play import Pace, play
from fairlane.demo_report import Report, document, figure, verdict
from fairlane.demo_scene import (
    BURST_MS,
    HEAVY,
    LIGHT,
    LIGHT_REQUESTS,
    LIGHT_UNTIL_MS,
    Scene,
    one_queue,
    recorded,
    story,
    tiers_only,
)
from fairlane.demo_screen import TerminalShow
from fairlane.demo_tally import Tally, Waits, waits_of
from schemas.policy_check import check
from schemas.records import VERSION, End, Result, Usage

ROOT = Path(__file__).parents[2]
#: Beside bolt's requests the others' traffic plays no part any more after this.
UNTIL_MS = LIGHT_UNTIL_MS + 3_000


def slowest(scene: Scene) -> tuple[int, int]:
    """bolt's longest wait, and one batch's time."""
    tally = play(scene, until=lambda t: t.tenants[LIGHT].ended == LIGHT_REQUESTS)
    assert len(tally.tenants[LIGHT].waits_ms) == LIGHT_REQUESTS
    return tally.waits(LIGHT).max, tally.batch_ms()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_tenfold_burst_costs_its_neighbour_less_than_a_batch(seed: int) -> None:
    # The smaller one outlasts bolt's arrivals too: 640 requests are served in a second.
    small_ms, batch_ms = slowest(story(seed, 600, UNTIL_MS))
    large_ms, _ = slowest(story(seed, 6_000, UNTIL_MS))
    assert abs(large_ms - small_ms) <= batch_ms


def test_the_one_queue_control_fails_the_same_test() -> None:
    small_ms, batch_ms = slowest(one_queue(story(1, 600, UNTIL_MS)))
    large_ms, _ = slowest(one_queue(story(1, 6_000, UNTIL_MS)))
    assert large_ms - small_ms > 20 * batch_ms
    assert large_ms > 9 * small_ms


def test_tiers_alone_protect_other_tiers_and_nobody_inside() -> None:
    scene = story(3, 2_000)
    fair, tiers = play(scene), play(tiers_only(scene))
    assert tiers.waits(LIGHT).max > 5 * fair.waits(LIGHT).max
    assert tiers.waits("globex").max < 3 * fair.waits("globex").max


def test_everybody_is_served_once_and_the_machine_does_the_same_work() -> None:
    scene = story(4, 400)
    runs = [play(run) for run in (scene, tiers_only(scene), one_queue(scene))]
    for tally in runs:
        assert tally.ended_count == tally.asked_count == len(scene.arrivals)
        assert sum(len(tenant.waits_ms) for tenant in tally.tenants.values()) == len(scene.arrivals)
        assert tally.fill(BURST_MS, tally.tenants[HEAVY].last_picked_ms, 32) > 0.95


def test_one_seed_is_one_story() -> None:
    assert story(7, 50) == story(7, 50)
    assert story(7, 50).arrivals != story(8, 50).arrivals


def test_a_larger_burst_changes_nobody_elses_traffic() -> None:
    small, large = story(7, 50, UNTIL_MS), story(7, 500, UNTIL_MS)
    others = [[a for a in scene.arrivals if a.tenant != HEAVY] for scene in (small, large)]
    assert others[0] == others[1]


@pytest.mark.parametrize("control", [lambda scene: scene, tiers_only, one_queue])
def test_policies_of_the_demo_are_valid(control: Callable[[Scene], Scene]) -> None:
    for scene in (story(0, 1), recorded(ROOT / "examples" / "vtc_arena.csv")):
        assert check(control(scene).policy) == []


# --- figures


def result(wait_ms: int, ended_ms: int, end: End = End.SUCCEEDED) -> Result:
    usage = Usage(service_ms=100)
    return Result(
        VERSION,
        "r",
        LIGHT,
        "embed",
        end,
        usage=usage,
        arrived_ms=ended_ms - 100 - wait_ms,
        ended_ms=ended_ms,
    )


def test_percentiles_are_by_nearest_rank() -> None:
    assert waits_of(range(1, 201)) == Waits(100, 190, 198, 200)
    assert waits_of([7]) == Waits(7, 7, 7, 7)
    assert waits_of([]) == Waits(0, 0, 0, 0)


def test_a_wait_ends_when_the_engine_begins() -> None:
    tally = Tally(story(0, 1).policy)
    tally.asked(LIGHT, 0)
    tally.ended(result(wait_ms=40, ended_ms=1_140), start_ms=1_000)
    assert tally.waits(LIGHT).max == 40
    assert tally.tenants[LIGHT].waiting == 0
    assert tally.batch_ms() == 100


def test_who_still_waits_counts_for_the_longest_wait() -> None:
    tally = Tally(story(0, 1).policy)
    tally.asked(LIGHT, 0)
    tally.asked(LIGHT, 500)
    tally.ended(result(wait_ms=40, ended_ms=140), start_ms=0)
    assert tally.tenants[LIGHT].longest_wait_ms(now_ms=510, service_ms=100) == 40
    assert tally.tenants[LIGHT].longest_wait_ms(now_ms=900, service_ms=100) == 300


def test_failures_are_ended_and_not_served() -> None:
    tally = Tally(story(0, 1).policy)
    tally.asked(LIGHT, 0)
    tally.ended(result(wait_ms=40, ended_ms=140, end=End.FAILED), start_ms=0)
    assert (tally.tenants[LIGHT].ended, tally.tenants[LIGHT].waits_ms) == (1, [])


@pytest.mark.parametrize(
    ("wait_ms", "shown"),
    [(0, "0.00"), (250, "0.25"), (9_994, "9.99"), (12_345, "12.3"), (123_456, "123")],
)
def test_figures_fit_their_column(wait_ms: int, shown: str) -> None:
    assert figure(wait_ms) == shown


# --- what is shown


def report(scene: Scene) -> Report:
    queued, tiered = play(one_queue(scene)), play(tiers_only(scene))
    return Report(scene, play(scene), queued, tiered, 1.0, {"seed": 5})


def test_the_json_repeats_but_for_the_time_it_took() -> None:
    first, second = (document(report(story(5, 200))) for _ in range(2))
    first["duration_s"] = second["duration_s"] = 0
    assert json.dumps(first) == json.dumps(second)
    tenants = {tenant["name"]: tenant for tenant in first["tenants"]}
    assert tenants[LIGHT]["requests"] == tenants[LIGHT]["served"] == LIGHT_REQUESTS
    for run in ("wait_ms", "one_queue_wait_ms", "tiers_only_wait_ms"):
        assert list(tenants[LIGHT][run]) == ["p50", "p95", "p99", "max"]
    assert first["light_slowest_ms"]["fairlane"] == tenants[LIGHT]["wait_ms"]["max"]


def test_the_verdict_carries_the_figures() -> None:
    found = report(story(5, 200))
    said = " ".join(verdict(found))
    for tally in found.runs.values():
        assert f"{figure(found.slowest_ms(tally))} s" in said


def test_plain_text_has_no_control_codes_and_a_terminal_gets_its_cursor_back() -> None:
    found = report(story(5, 200))
    plain = StringIO()
    show = PlainShow(plain)
    show.begin(found.scene)
    show.frame(found.fairlane, 5_000)
    show.report(found)
    assert "\x1b" not in plain.getvalue()
    assert f"{LIGHT}'s slowest of 5" in plain.getvalue()

    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=80, height=24)
    terminal = TerminalShow(console, 1.0)
    terminal.begin(found.scene)
    terminal.frame(found.fairlane, 5_000)
    assert "\x1b[?25l" in drawn.getvalue()
    terminal.stopped()
    assert drawn.getvalue().rindex("\x1b[?25h") > drawn.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize("width", [80, 110])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    drawn = StringIO()
    console = Console(file=drawn, width=width, height=24, color_system=None)
    TerminalShow(console, 1.0).report(report(story(5, 200)))
    assert max(len(line.rstrip()) for line in drawn.getvalue().splitlines()) <= width


def test_json_is_one_object_on_one_line() -> None:
    out = StringIO()
    JsonShow(out).report(report(story(5, 100)))
    assert json.loads(out.getvalue())["seed"] == 5
    assert out.getvalue().count("\n") == 1


def test_a_paced_play_keeps_to_the_clock_on_the_wall() -> None:
    now_s = 100.0
    frames: list[int] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    scene = story(6, 50, UNTIL_MS)
    play(scene, lambda _, at_ms: frames.append(at_ms), Pace(2.0, lambda: now_s, sleep))
    assert frames == sorted(frames)
    assert abs((now_s - 100.0) * 2_000 - frames[-1]) < 20


def test_options_choose_the_scene() -> None:
    assert len(scene_of(Options(burst=17)).arrivals) < len(scene_of(Options(burst=170)).arrivals)
    assert len(scene_of(Options(trace=ROOT / "examples" / "vtc_arena.csv")).arrivals) == 1_500


# --- the command


def command(*arguments: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.Popen(
        [sys.executable, "-m", "fairlane", "demo", *arguments],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_pipe_gets_lines() -> None:
    with command("--burst", "100", "--seed", "2") as process:
        out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert out.startswith("Fairlane: acme sends 100 requests at once. bolt sends 5.\n")
    assert "\x1b" not in out


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(stop: signal.Signals) -> None:
    with command("--burst", "100000") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Fairlane: ")
        process.send_signal(stop)
        out, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out.endswith("stopped\n")
    assert errors == ""
