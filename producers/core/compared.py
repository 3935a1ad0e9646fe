"""What was predicted of requests that were let in, beside what happened to them. Pure."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from producers.core.advice import Margin
from producers.core.backlog_view import Prediction
from schemas.front import Ending, RequestName, Terminal
from schemas.reasons import Reason

#: Predictions that wait to be compared with what happened; the oldest go first.
OPEN_MAX = 10_000
#: Reasons of those that waited for too long to be run at all.
_TOO_LATE = frozenset({Reason.DEADLINE, Reason.EXPIRED})


class Told(NamedTuple):
    """What was predicted of a request that was let in; `target_ms` None: it had no hurry."""

    endpoint: str
    tier: str
    told: Prediction
    target_ms: int | None


class Sums:
    """Predicted against actual, until they are told to the meter."""

    __slots__ = ("actual_ms", "count", "error_ms", "predicted_ms")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.count = self.predicted_ms = self.actual_ms = self.error_ms = 0


class Compared:
    """Predictions until their requests end, and what is learned of them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: OrderedDict[RequestName, Told] = OrderedDict()
        self.sums: dict[str, Sums] = {}  #: by endpoint
        self.margins: dict[tuple[str, str], Margin] = {}  #: by endpoint and tier

    def keep(self, name: RequestName, told: Told) -> None:
        """Keep what was predicted of a request."""
        self._open[name] = told
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)

    def drop(self, name: RequestName) -> None:
        """A request was not let in after all."""
        self._open.pop(name, None)

    def ended(self, endings: Iterable[Ending]) -> None:
        """Compare the waits of requests that ended with what was predicted of them."""
        for ending in endings:
            kept = self._open.pop(ending.name, None)
            if kept is None:
                continue
            terminal = ending.terminal
            if kept.target_ms is not None:
                self._learn(kept, kept.target_ms, terminal)
            if terminal.picked_ms:
                actual_ms = max(0, terminal.picked_ms - terminal.arrived_ms)
                sums = self.sums.setdefault(kept.endpoint, Sums())
                sums.count += 1
                sums.predicted_ms += kept.told.wait_ms
                sums.actual_ms += actual_ms
                sums.error_ms += abs(actual_ms - kept.told.wait_ms)

    def _learn(self, kept: Told, target_ms: int, terminal: Terminal) -> None:
        """Put the margin right by one that was let in as being in time."""
        is_dropped = terminal.reason in _TOO_LATE
        if not terminal.picked_ms and not is_dropped:
            return  # cancelled, refused: it says nothing
        actual_ms = None if is_dropped else terminal.ended_ms - terminal.arrived_ms
        margin = self.margins.setdefault((kept.endpoint, kept.tier), Margin())
        margin.learn(kept.told.end_ms, actual_ms, target_ms)
