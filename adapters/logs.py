"""What a process tells people: JSON lines for machines, a console by structlog for people.

JSON lines are written by hand: importing structlog takes 0.2 s of CPU, and a service that
has just crashed and writes its first line has better things to do with them.
"""

import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson


class StructuredNotes:
    """Notes on a stream; `bound` facts stand on every line. Safe in any thread."""

    def __init__(self, stream: TextIO | None = None, *, is_json: bool, **bound: object) -> None:
        """Write to `stream` (standard error by default), as JSON or for a console."""
        self._stream = stream or sys.stderr
        self._is_json = is_json
        self._bound = bound
        self._logger: Any = None
        self._lock = threading.Lock()

    def info(self, event: str, **facts: object) -> None:
        """Note what is usual."""
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Note what somebody should look at."""
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Note what stopped something; inside of an `except` block the traceback is added."""
        facts.setdefault("exc_info", sys.exc_info()[0] is not None)
        self._write("error", event, facts)

    def follow_logging(self) -> None:
        """Take over what libraries say through `logging`, from INFO up."""
        root = logging.getLogger()
        root.handlers = [_Forward(self)]
        root.setLevel(logging.INFO)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        with self._lock:
            if self._is_json:
                self._stream.write(_json_line(self._bound, facts, event, level))
                self._stream.flush()
                return
            if self._logger is None:
                self._logger = _console(self._stream).bind(**self._bound)
            getattr(self._logger, level)(event, **facts)


def _json_line(bound: dict[str, object], facts: dict[str, object], event: str, level: str) -> str:
    line = {**bound, **facts}
    raised = line.pop("exc_info", None)
    if raised is True:
        raised = sys.exc_info()
    if isinstance(raised, tuple) and raised[0] is not None:
        line["exception"] = "".join(traceback.format_exception(*raised))
    time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line |= {"event": event, "level": level, "time": time}
    return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE).decode()


class _Forward(logging.Handler):
    def __init__(self, notes: StructuredNotes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        """Note one line of `logging`; its level picks ours."""
        try:
            message = record.getMessage()
            if record.levelno >= logging.ERROR:
                self._notes.error(message, logger=record.name, exc_info=record.exc_info)
            elif record.levelno >= logging.WARNING:
                self._notes.warning(message, logger=record.name)
            else:
                self._notes.info(message, logger=record.name)
        except Exception:  # noqa: BLE001 - logging's rule: a handler never raises
            self.handleError(record)


def _console(stream: TextIO) -> Any:
    import structlog  # noqa: PLC0415 - late: see the header

    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="time"),
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )
