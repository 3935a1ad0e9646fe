"""`fairlane demo`: why fairness matters, seen in less than a minute.

The same traffic three times: with Fairlane while somebody watches, then as fast as it goes
in one shared queue and under tiers without deficit round robin, the two controls; at the
end each tenant's waits side by side. Everything runs in this process, in virtual time.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from msgspec import Struct
from rich.console import Console

from fairlane.demo_deployment import deployed, machine
from fairlane.demo_plain import JsonShow, PlainShow
from fairlane.demo_play import Frame, Pace, play
from fairlane.demo_real import hastened, play_real
from fairlane.demo_report import Report
from fairlane.demo_scene import BURST_DEFAULT, Scene, one_queue, recorded, story, tiers_only
from fairlane.demo_screen import TerminalShow
from fairlane.demo_tally import Tally
from fairlane.errors import FairlaneError
from simulation.traces import TraceError

EXIT_INTERRUPTED = 130
#: How long somebody watches, seconds, when nothing else is asked for.
SHOW_S = 25
#: A burst that a laptop can send and take in within seconds ...
BURST_REAL = 1_000
#: ... and engines so much slower than the embedded ones, that it waits for them.
SPEED_REAL = 0.25
#: Seconds played in one of watching: beyond this nobody sees anything.
SPEED_MAX = 10_000.0
#: A world holds every request in memory, about 2 kB each.
BURST_MAX = 1_000_000


class Options(Struct, frozen=True, kw_only=True):
    """What was asked for. `speed` 0: as suits a person; `burst` 0: as suits the mode."""

    seed: int = 0
    burst: int = 0
    speed: float = 0.0
    as_json: bool = False
    trace: Path | None = None
    real: bool = False
    controls: bool = False


def command(
    seed: Annotated[int, typer.Option(min=0, help="Another seed: other traffic.")] = 0,
    burst: Annotated[
        int, typer.Option(min=0, max=BURST_MAX, help="Requests of the burst (0: 10,000).")
    ] = 0,
    speed: Annotated[
        float, typer.Option(min=0, max=SPEED_MAX, help="Times faster than real (0: about 25 s).")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="No show, one JSON object.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play a recorded trace (CSV) instead.")
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Through HTTP and a real Kafka, in real time.")
    ] = False,
    with_controls: Annotated[
        bool, typer.Option("--controls", help="With --real: run the two controls as well.")
    ] = False,
) -> None:
    """Show a burst of 10,000 beside a tenant that sends five, and what each waits."""
    options = Options(
        seed=seed,
        burst=burst,
        speed=speed,
        as_json=as_json,
        trace=trace,
        real=real,
        controls=with_controls,
    )
    raise typer.Exit(run(options))


class Show(Protocol):
    """Who is told what happens."""

    def begin(self, scene: Scene) -> None:
        """A scene begins."""

    def say(self, text: str) -> None:
        """Something to know."""

    def frame(self, tally: Tally, now_ms: int) -> None:
        """The figures now."""

    def control(self, name: str, requests: int) -> Frame:
        """A control begins; returns what is called as it goes."""

    def report(self, report: Report) -> None:
        """The end."""

    def stopped(self) -> None:
        """Somebody ended it early."""

    def close(self) -> None:
        """Nothing more comes."""


def run(options: Options) -> int:
    """Play the demo; returns the exit code, 130 when it was interrupted.

    Raises:
        FairlaneError: the trace is wrong, or with `real` something did not start.
    """
    scene = scene_of(options)
    speed = options.speed or _usual_speed(options, scene)
    is_watched = not options.as_json and is_terminal()
    show = _show(options, 1.0 if options.real else speed, is_watched)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        if options.real:
            _play_real(options, hastened(scene, speed), show)
        else:
            _play_embedded(options, scene, show, Pace(speed) if is_watched else None)
    except KeyboardInterrupt:
        show.stopped()
        return EXIT_INTERRUPTED
    finally:
        show.close()
    return 0


def _usual_speed(options: Options, scene: Scene) -> float:
    if options.real:
        return 1.0 if options.trace else SPEED_REAL
    return max(1.0, scene.duration_ms / 1000 / SHOW_S)


def scene_of(options: Options) -> Scene:
    """The scene that was asked for. Raises FairlaneError for a trace that is none."""
    if options.trace is None:
        return story(options.seed, options.burst or (BURST_REAL if options.real else BURST_DEFAULT))
    try:
        return recorded(options.trace)
    except TraceError as error:
        raise FairlaneError(str(error)) from error


def is_terminal() -> bool:
    """Whether a person watches on a terminal that can draw."""
    can_draw = sys.stdout.encoding.lower().startswith("utf")
    return can_draw and sys.stdout.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


def _show(options: Options, speed: float, is_watched: bool) -> Show:
    if options.as_json:
        return JsonShow(sys.stdout)
    if not is_watched:
        return PlainShow(sys.stdout)
    return TerminalShow(Console(highlight=False), speed)


def _play_embedded(options: Options, scene: Scene, show: Show, pace: Pace | None) -> None:
    began = time.monotonic()
    show.begin(scene)
    fairlane = play(scene, show.frame, pace)
    queued, tiered = controls(scene, show)
    facts = _facts(options, scene, "embedded")
    show.report(Report(scene, fairlane, queued, tiered, time.monotonic() - began, facts))


def _facts(options: Options, scene: Scene, mode: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"mode": mode, "requests": len(scene.arrivals)}
    if options.trace is None:
        facts["seed"] = options.seed
        facts["burst"] = sum(arrival.tenant == scene.heavy for arrival in scene.arrivals)
    return facts


def _play_real(options: Options, scene: Scene, show: Show) -> None:
    """The scene on real processes; its controls too when asked for."""
    began = time.monotonic()
    outcomes = []
    with machine(show.say) as settings:
        for played in [scene, one_queue(scene), tiers_only(scene)][: 3 if options.controls else 1]:
            with deployed(played, settings, show.say) as deployment:
                show.begin(played)
                outcomes.append(play_real(played, deployment, show.frame))
                show.close()
    first = outcomes[0]
    queued, tiered = (o.tally for o in outcomes[1:]) if options.controls else (None, None)
    facts = _facts(options, scene, "real")
    for name in ("lost", "doubled"):
        facts[name] = sum(getattr(outcome, name) for outcome in outcomes)
    facts["refused"] = sum(len(outcome.refused) for outcome in outcomes)
    show.report(Report(scene, first.tally, queued, tiered, time.monotonic() - began, facts))
    show.say(
        f"through HTTP and Kafka: {len(scene.arrivals):,} sent, {first.tally.ended_count:,} ended, "
        f"{facts['refused']} refused, {facts['lost']} lost, {facts['doubled']} doubled"
        + ("" if options.controls else "; the controls were not run (--controls)")
    )


def controls(scene: Scene, show: Show) -> tuple[Tally, Tally]:
    """Play both controls at full speed; with one tier they are the same, and played once."""
    count = len(scene.arrivals)
    queued = play(one_queue(scene), show.control("one shared queue", count))
    if len(scene.policy.tiers) == 1:
        return queued, queued
    return queued, play(tiers_only(scene), show.control("tiers without DRR", count))
