"""Garbage collection between turns: never in the midst of one, never through all that waits.

Python searches for garbage that refers to itself whenever enough objects have been made, and
walks through all that live. A scheduler makes next to no such garbage, and a million waiting
requests are three million objects: the searches cost a sixth of its time and double its tail.
So they are off; what has piled up is set aside (`gc.freeze`, at no cost) and searched when
there is nothing to do, or when it has grown so much that something must have been left behind:
a state that was dropped and rebuilt refers to itself.
"""

import gc
from collections.abc import Callable

#: Objects that came and stayed before they are set aside: looking costs nothing.
YOUNG_MAX = 200_000
#: Set aside without a search; then one is due, idle or not. Above what one rebuild brings.
UNSEARCHED_MAX = 20_000_000
#: Least time between two searches in idle moments: one through millions takes a second.
SEARCH_S = 600.0


class Tidy:
    """A service's turn with the search for garbage behind it instead of inside of it.

    Args:
        turn: the service's; it returns False when there was nothing to do.
        clock: seconds, of any beginning.
    """

    def __init__(self, turn: Callable[[], object], clock: Callable[[], float]) -> None:
        self._turn = turn
        self._clock = clock
        self._unsearched = 0
        self._searched_s = clock()
        gc.disable()

    def __call__(self) -> object:
        """One turn, and what tidying is due; returns what the turn does."""
        result = self._turn()
        young = gc.get_count()[0]
        if young > YOUNG_MAX:
            self._unsearched += young
            gc.freeze()
        if self._unsearched > UNSEARCHED_MAX or (result is False and self._is_due()):
            self.search()
        return result

    def search(self) -> None:
        """Free the garbage that refers to itself, wherever it is."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._unsearched = 0
        self._searched_s = self._clock()

    def _is_due(self) -> bool:
        return self._unsearched > 0 and self._clock() - self._searched_s >= SEARCH_S
