"""Ids of requests that ended a while ago: a later publish of one is a duplicate.

Kept by the time at which they ended, so that the oldest leave together.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

#: How long an ended request's id is remembered: a later publish of it is dropped.
RECENT_MS: Final = 3_600_000
#: ... and how many at the most; the oldest go first.
RECENT_MAX: Final = 500_000


class Recent:
    """A set of ids that forgets by age and number. `known` is for look-ups only."""

    __slots__ = ("_ended", "known")

    def __init__(self, ended: Iterable[tuple[int, list[str]]] = ()) -> None:
        self._ended: deque[tuple[int, list[str]]] = deque(ended)  #: when, who; oldest first
        self.known: set[str] = {request_id for _, who in self._ended for request_id in who}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self.known)

    def __contains__(self, request_id: object) -> bool:
        """Whether it ended not long ago."""
        return request_id in self.known

    def __iter__(self) -> Iterator[str]:
        """Ids, oldest first."""
        return (request_id for request_id, _ in self.items())

    def add(self, request_id: str, ended_ms: int) -> None:
        """One that isn't there ended now; time never goes back."""
        self.known.add(request_id)
        if self._ended:
            newest = self._ended[-1]
            if newest[0] == ended_ms:
                newest[1].append(request_id)
                return
        self._ended.append((ended_ms, [request_id]))

    def forget(self, now_ms: int) -> None:
        """Drop those that are old, or too many."""
        ended, known = self._ended, self.known
        horizon_ms = now_ms - RECENT_MS
        while ended:
            oldest_ms, who = ended[0]
            more = len(known) - RECENT_MAX
            if oldest_ms < horizon_ms or more >= len(who):
                ended.popleft()
                known.difference_update(who)
            elif more > 0:
                known.difference_update(who[:more])
                del who[:more]
            else:
                return

    def by_time(self) -> list[tuple[int, list[str]]]:
        """Who ended, by when, oldest first."""
        return list(self._ended)

    def items(self) -> Iterator[tuple[str, int]]:
        """Who ended when, oldest first."""
        for ended_ms, who in self._ended:
            for request_id in who:
                yield request_id, ended_ms
