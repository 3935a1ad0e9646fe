"""What a process tells people: structured lines, by structlog.

JSON lines for machines, or a console for a person. structlog is imported at the first
line, not at start: that takes 0.2 s, which a service that has just crashed spends on
connecting instead.
"""

import logging
import sys
import threading
from typing import Any, TextIO


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
        self._open().info(event, **facts)

    def warning(self, event: str, **facts: object) -> None:
        """Note what somebody should look at."""
        self._open().warning(event, **facts)

    def error(self, event: str, **facts: object) -> None:
        """Note what stopped something; inside of an `except` block the traceback is added."""
        facts.setdefault("exc_info", sys.exc_info()[0] is not None)
        self._open().error(event, **facts)

    def follow_logging(self) -> None:
        """Take over what libraries say through `logging`, from INFO up."""
        root = logging.getLogger()
        root.handlers = [_Forward(self)]
        root.setLevel(logging.INFO)

    def _open(self) -> Any:
        with self._lock:
            if self._logger is None:
                self._logger = _make(self._stream, is_json=self._is_json).bind(**self._bound)
            return self._logger


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


def _make(stream: TextIO, *, is_json: bool) -> Any:
    import structlog  # noqa: PLC0415 - late: see the header

    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if is_json:
        renderer: list[Any] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        is_terminal = stream.isatty()
        renderer = [structlog.dev.ConsoleRenderer(colors=is_terminal, timestamp_key="time")]
    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=shared + renderer,
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )
