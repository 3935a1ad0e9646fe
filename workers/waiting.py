"""Waits on a wall clock that may be set back: none lasts longer than it was meant to.

What belongs here: whether to wait still. What does not: what is waited for.
"""

#: A lane whose log does not answer is tried again after so long ...
BACKOFF_MS = 50
#: ... doubling up to this.
BACKOFF_MAX_MS = 2_000
#: Doublings after which the wait is above its maximum anyway.
_DOUBLINGS_MAX = 10


def is_held(until_ms: int, now_ms: int, most_ms: int) -> bool:
    """Tell whether a wait until `until_ms` goes on; one was set for `most_ms` at most.

    When more than that is left, the clock was set back: the wait is over.
    """
    return 0 < until_ms - now_ms <= most_ms


class BackOff:
    """How long to leave what fails alone: longer with each failure in a row."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._failures = 0
        self._until_ms = 0

    def holds(self, now_ms: int) -> bool:
        """Tell whether it is too early for another try."""
        return is_held(self._until_ms, now_ms, BACKOFF_MAX_MS)

    def fail(self, now_ms: int) -> None:
        """Count a failure and wait from now on."""
        wait_ms = min(BACKOFF_MAX_MS, BACKOFF_MS << min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        self._until_ms = now_ms + wait_ms

    def reset(self) -> None:
        """Forget the failures: something went well."""
        self._failures = 0
