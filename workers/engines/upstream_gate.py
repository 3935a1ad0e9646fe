"""A gate before a server: closed while it asks for a pause, and closed to all at once.

What belongs here: when the next call may be made. What does not: calls, waiting.
"""

from collections.abc import Callable
from threading import Lock

#: A pause that the server does not give a length, seconds.
PAUSE_S = 1.0
#: A pause is never shorter: a server that says 0 would be asked in a tight loop.
PAUSE_S_MIN = 0.1
#: Nor longer: a date far away, or a wrong clock, must not close a pool for a day.
PAUSE_S_MAX = 60.0
#: Pause of a server that lets this worker in no more, seconds: soon enough after somebody has
#: mended it, and seldom enough for a log.
BARRED_PAUSE_S = 5.0
#: Callers go through a gate that opens one after the other, within so many seconds: all at
#: once they would meet the next 429.
SPREAD_S = 0.2


class Gate:
    """Shared by all callers of one server; times are those of one monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Open."""
        self._now_s = now_s
        self._opens_s = 0.0
        self._why = ""
        self._lock = Lock()

    def close(self, after_s: float | None, why: str = "") -> bool:
        """Keep everybody out for as long as the server asks for, within limits.

        Returns whether it was open until now.
        """
        pause_s = PAUSE_S if after_s is None else min(max(after_s, PAUSE_S_MIN), PAUSE_S_MAX)
        with self._lock:
            now_s = self._now_s()
            was_open = self._opens_s <= now_s
            self._opens_s = max(self._opens_s, now_s + pause_s)
            self._why = why
        return was_open

    @property
    def why(self) -> str:
        """Why it was closed last, in words for whoever waits."""
        return self._why

    @property
    def left_s(self) -> float:
        """How long it is still closed; 0 when open."""
        return max(0.0, self._opens_s - self._now_s())
