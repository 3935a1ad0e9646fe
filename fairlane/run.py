"""Process wiring: settings to adapters to services, a loop, signals, exit codes.

One process is one service. Its loop calls `turn()` until SIGTERM or SIGINT and closes it
cleanly; every other way out leaves to the log what the log can rebuild: a supervisor
starts the process again. Threads and signals live here, not in the services.
"""

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Protocol

from adapters.aside import ThreadAside
from adapters.clock import SystemClock
from adapters.logs import StructuredNotes
from adapters.redis_board import RedisBoard
from fairlane.errors import FairlaneError
from fairlane.settings import Settings
from fairlane.tidy import Tidy
from schemas.log import FencedError, Log, LogError
from schemas.topics import Topics
from workers.ports import Engine

EXIT_CLEAN = 0
EXIT_FAILED = 1
#: Another process took over under the same name: starting again would take it back.
EXIT_FENCED = 3
#: The log does not hold what it must: starting again would find the same.
EXIT_HALTED = 4

#: A turn that had nothing to do and did not wait itself is followed by this pause.
IDLE_PAUSE_S = 0.02
_NO_WAIT_S = 0.001
#: What a worker still runs at a stop gets this long to finish; the rest is handed back.
GRACE_MS = 10_000

#: Critical lines of the client library alone: while a broker is away it would write twenty
#: a second, and what it fails at comes back as an exception anyway.
CLIENT_LOG_LEVEL = 2

#: How long one thread of a scheduler keeps the others waiting; ten times that, as usual, is as
#: long as a whole transaction.
SWITCH_S = 0.0005

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service(Protocol):
    """What a loop drives."""

    def turn(self) -> object:
        """Do what there is to do; wait for a short while only; False when there was nothing."""

    def close(self) -> None:
        """Stop cleanly."""


class Meter(Protocol):
    """Counters and gauges, as all services declare it."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class NoMeter:
    """Counts nothing: nobody asked for metrics."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Do nothing."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Do nothing."""


class Process(NamedTuple):
    """What every service's process has: settings, a name, where it writes what happens.

    `instance` is the process's stable name among its kind, None for a passing member;
    `metrics_port` serves /metrics on 127.0.0.1, None does not.
    """

    settings: Settings
    notes: StructuredNotes
    instance: str | None = None
    metrics_port: int | None = None

    @property
    def topics(self) -> Topics:
        """Names of the deployment."""
        return Topics(self.settings.prefix)


def open_log(settings: Settings) -> Log:
    """Log of the settings. Raises LogError when it can't be made."""
    from adapters.kafka import KafkaLog

    options: dict[str, Any] = {"log_level": CLIENT_LOG_LEVEL, **settings.kafka_options}
    return KafkaLog(
        settings.kafka,
        replication=settings.replication,
        min_insync=max(1, settings.replication - 1),
        **options,
    )


def open_meter(metrics_port: int | None) -> Meter:
    """Meter served on 127.0.0.1, or one that counts nothing. Raises FairlaneError."""
    if metrics_port is None:
        return NoMeter()
    from adapters.metrics import MetricsError, PrometheusMeter

    meter = PrometheusMeter()
    try:
        meter.serve(metrics_port)
    except MetricsError as error:
        raise FairlaneError(str(error)) from error
    return meter


def run_scheduler(process: Process) -> int:
    """Run a scheduler until it is told to stop; returns the exit code."""
    from scheduler.bodies import Limits
    from scheduler.recovery import RecoveryError
    from scheduler.service import Scheduler

    settings = process.settings
    limits = Limits(settings.bodies_mb << 20, settings.waiting_max)

    board = RedisBoard(settings.redis, settings.prefix) if settings.redis else None

    def make() -> Service:
        service = Scheduler(
            open_log(settings),
            process.topics,
            clock=SystemClock(),
            meter=open_meter(process.metrics_port),
            notes=process.notes,
            instance=process.instance,
            limits=limits,
            recovering=without_collections,
            aside=ThreadAside,
            board=board,
        )
        sys.setswitchinterval(SWITCH_S)
        return _Stepped(Tidy(service.turn, time.monotonic), service.close)

    try:
        return serve(make, process.notes, stop_on_signals(), RecoveryError)
    finally:
        if board is not None:
            board.close()


@contextmanager
def without_collections() -> Iterator[None]:
    """Where millions of objects are made that stay: the collector finds nothing among them.

    Afterwards they are not looked at any more. What was put aside so before, and may be in
    nobody's hands by now, is looked at first.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def run_worker(process: Process, pool: str, slots: int, engine: Engine) -> int:
    """Run a worker of a pool until it is told to stop; returns the exit code."""
    from workers.service import WorkerService, WorkerSettings
    from workers.slots import ThreadSlots

    clock = SystemClock()

    def make() -> Service:
        service = WorkerService(
            open_log(process.settings),
            process.topics,
            WorkerSettings(pool, process.instance),
            lambda _: ThreadSlots(engine, slots, clock),
            clock,
            open_meter(process.metrics_port),
            process.notes,
            time.sleep,
        )
        return _Stepped(service.turn, lambda: service.close(GRACE_MS))

    return serve(make, process.notes, stop_on_signals())


class _Stepped(NamedTuple):
    """A service made of two functions."""

    turn: Callable[[], object]
    close: Callable[[], None]


def stop_on_signals() -> threading.Event:
    """Event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in _STOP_SIGNALS:
        signal.signal(number, handle)
    return stop


def run_until_stopped(
    turn: Callable[[], object], close: Callable[[], None], stop: threading.Event
) -> None:
    """Call `turn` until `stop` is set, then `close`; what `turn` raises passes through.

    Then `close` is called too, and what it raises is only noted on the error: it is a
    consequence, and must not hide what happened.
    """
    try:
        while not stop.is_set():
            started = time.monotonic()
            if turn() is False and time.monotonic() - started < _NO_WAIT_S:
                stop.wait(IDLE_PAUSE_S)
    except BaseException as error:
        try:
            close()
        except Exception as second:  # noqa: BLE001 - see above
            error.add_note(f"closing failed as well: {second!r}")
        raise
    close()


def serve(
    make: Callable[[], Service],
    notes: StructuredNotes,
    stop: threading.Event,
    *halts: type[Exception],
) -> int:
    """Make a service, run it until stopped, and turn how it ended into an exit code.

    `halts` are the exceptions after which starting again is of no use. What the user can
    mend (FairlaneError) passes through.
    """
    notes.info("starting")
    try:
        service = make()
        run_until_stopped(service.turn, service.close, stop)
    except FairlaneError:
        raise
    except FencedError as error:
        notes.warning("fenced", detail=str(error))
        return EXIT_FENCED
    except LogError as error:
        notes.error("the log failed", detail=str(error), exc_info=False)
        return EXIT_FAILED
    except halts as error:
        notes.error("halted", detail=str(error), exc_info=False)
        return EXIT_HALTED
    except Exception:  # noqa: BLE001 - the last one who can tell; the log rebuilds the rest
        notes.error("crashed")
        return EXIT_FAILED
    notes.info("stopped")
    return EXIT_CLEAN
