"""A circuit breaker: who may ask a store that failed.

closed: everybody. Open, after a failure: nobody, for a while. Half open, after that: one caller
tries, the others do without the store until it has answered; so a store that hangs costs one
caller a time-out at a time, not each of them.
"""

from enum import Enum


class _Phase(Enum):
    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Breaker:
    """The state between the calls; times are milliseconds of any clock."""

    def __init__(self, pause_ms: int) -> None:
        """Start closed; the store is tried again `pause_ms` after it failed."""
        self._pause_ms = pause_ms
        self._phase = _Phase.CLOSED
        self._again_ms = 0

    @property
    def is_open(self) -> bool:
        """Whether the store failed and has not answered since."""
        return self._phase is not _Phase.CLOSED

    def may_ask(self, now_ms: int) -> bool:
        """Whether this caller may ask; it then says how that went, by one of the three below."""
        if self._phase is _Phase.OPEN and now_ms >= self._again_ms:
            self._phase = _Phase.TRYING
            return True
        return self._phase is _Phase.CLOSED

    def answered(self) -> bool:
        """The store answered; returns whether it had failed before."""
        was_open, self._phase = self.is_open, _Phase.CLOSED
        return was_open

    def failed(self, now_ms: int) -> bool:
        """The store failed; returns whether it had answered before."""
        was_open, self._phase = self.is_open, _Phase.OPEN
        self._again_ms = now_ms + self._pause_ms
        return not was_open

    def gave_up(self) -> None:
        """The caller went away before there was an answer: another one may try."""
        if self._phase is _Phase.TRYING:
            self._phase = _Phase.OPEN
