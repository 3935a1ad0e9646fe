"""Process wiring: the loop, how a service's end becomes an exit code, what lines look like."""

import io
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from adapters.logs import StructuredNotes
from adapters.metrics import LABEL_SETS_MAX, MetricsError, PrometheusMeter
from fairlane.cli_services import parser
from fairlane.errors import FairlaneError
from fairlane.run import (
    EXIT_CLEAN,
    EXIT_FAILED,
    EXIT_FENCED,
    EXIT_HALTED,
    run_until_stopped,
    serve,
    stop_on_signals,
)
from schemas.log import FencedError, UnavailableError


class Service:
    def __init__(self, stop: threading.Event, turns: int, error: Exception | None = None) -> None:
        self.stop, self.left, self.error = stop, turns, error
        self.is_closed = False

    def turn(self) -> bool:
        self.left -= 1
        if self.left == 0:
            if self.error is not None:
                raise self.error
            self.stop.set()
        return self.left % 2 == 0

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_loop_turns_until_stopped_and_closes(stop: threading.Event) -> None:
    service = Service(stop, 5)
    run_until_stopped(service.turn, service.close, stop)
    assert service.left == 0
    assert service.is_closed


def test_what_closing_raises_does_not_hide_why_it_ended(stop: threading.Event) -> None:
    def close() -> None:
        raise OSError("broken pipe")

    service = Service(stop, 1, FencedError("somebody else"))
    with pytest.raises(FencedError) as raised:
        run_until_stopped(service.turn, close, stop)
    assert raised.value.__notes__ == ["closing failed as well: OSError('broken pipe')"]
    stop.set()
    with pytest.raises(OSError, match="broken pipe"):
        run_until_stopped(service.turn, close, stop)


@pytest.mark.parametrize(
    ("error", "code", "event"),
    [
        (None, EXIT_CLEAN, "stopped"),
        (FencedError("somebody else"), EXIT_FENCED, "fenced"),
        (UnavailableError("no answer"), EXIT_FAILED, "the log failed"),
        (LookupError("look here"), EXIT_HALTED, "halted"),
        (ZeroDivisionError("bug"), EXIT_FAILED, "crashed"),
    ],
)
def test_how_it_ends_is_the_exit_code_and_a_line(
    stop: threading.Event, error: Exception | None, code: int, event: str
) -> None:
    stream = io.StringIO()
    service = Service(stop, 3, error)
    notes = StructuredNotes(stream, is_json=True, service="test")
    assert serve(lambda: service, notes, stop, LookupError) == code
    assert service.is_closed
    written = {str(line["event"]): line for line in lines(stream)}
    assert event in written
    assert written[event]["service"] == "test"
    assert ("exception" in written[event]) == (event == "crashed")


def test_what_a_user_can_mend_passes_through(stop: threading.Event) -> None:
    def make() -> Service:
        raise FairlaneError("port taken")

    with pytest.raises(FairlaneError):
        serve(make, StructuredNotes(io.StringIO(), is_json=True), stop)


def test_a_signal_stops_and_the_second_one_kills(handlers: None) -> None:
    stop = stop_on_signals()
    assert not stop.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(10)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_lines_of_libraries_are_taken_over() -> None:
    root = logging.getLogger()
    kept = root.handlers, root.level
    try:
        stream = io.StringIO()
        StructuredNotes(stream, is_json=True).follow_logging()
        logging.getLogger("lib").warning("look: %s", 3)
        logging.getLogger("lib").debug("not this")
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("lib").exception("failed")
    finally:
        root.handlers, _ = kept
        root.setLevel(kept[1])
    first, second = lines(stream)
    assert (first["event"], first["level"], first["logger"]) == ("look: 3", "warning", "lib")
    assert "ValueError: inside" in str(second["exception"])


def test_the_console_form_is_for_people() -> None:
    stream = io.StringIO()
    StructuredNotes(stream, is_json=False, service="x").info("started", port=3)
    assert "started" in stream.getvalue()
    assert "port=3" in stream.getvalue()


def test_metrics_hold_callers_to_bounded_labels() -> None:
    meter = PrometheusMeter()
    meter.count("picks", 2, pool="gpu")
    meter.count("picks", pool="gpu")
    meter.gauge("lanes", 4.0)
    assert meter.value("picks_total", pool="gpu") == 3
    assert meter.value("lanes") == 4
    with pytest.raises(MetricsError, match="label tenant is in no bounded vocabulary"):
        meter.count("requests", tenant="acme")
    with pytest.raises(MetricsError, match="has the labels"):
        meter.count("picks", tier="only")
    with pytest.raises(MetricsError, match="metric picks is a counter"):
        meter.gauge("picks", 1.0, pool="gpu")
    for number in range(LABEL_SETS_MAX + 5):
        meter.count("refusals", reason=f"r{number}")
    assert meter.value("refusals_total", reason="other") == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker"],
        ["worker", "--pool", "p", "--slots", "0"],
        ["worker", "--pool", "p", "--engine", "real"],
        ["ingress", "--port", "70000"],
        ["scheduler", "--what"],
    ],
)
def test_wrong_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        parser().parse_args(arguments)
    assert done.value.code == 2
    assert "error: " in capsys.readouterr().err
