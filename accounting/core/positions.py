"""Which record of a lane is counted next, and when one was left out on its way.

What belongs here: the check that each record follows the one before. What does not: where
records come from, and reading them again.

A sum passes over records below its `upto`, so a record that comes after a later one is
never counted. Hence none may be left out: each comes with a claim, `follows`: from there up
to the record itself nothing of the lane can be read (markers of transactions, aborted
records). A lane goes on only with a record whose claim begins no later than the lane's
position; with any other, something in between was lost on its way, and is read again.
"""

from collections.abc import Mapping
from enum import Enum, auto

Lane = tuple[str, int]


class Verdict(Enum):
    """What is to be done with a record."""

    #: It is the next one, or one that was counted already: sums know.
    COUNT = auto()
    #: Some before it are missing: read again from `position`, and leave it.
    MISSED = auto()
    #: Its lane is not this process's: leave it.
    ELSEWHERE = auto()


class Positions:
    """The next offset of each lane that this process counts."""

    def __init__(self) -> None:
        """Begin without lanes."""
        self._next: dict[Lane, int] = {}

    def begin(self, lanes: Mapping[Lane, int]) -> None:
        """Count these lanes from these offsets on, and no others any more."""
        self._next = dict(lanes)

    def position(self, lane: Lane) -> int:
        """Next offset of a lane."""
        return self._next[lane]

    def all(self) -> dict[Lane, int]:
        """Next offset of each lane."""
        return dict(self._next)

    def take(self, lane: Lane, follows: int | None, offset: int) -> Verdict:
        """Judge a record of a lane; the lane goes on when it is the next. None claims nothing."""
        following = self._next.get(lane)
        if following is None:
            return Verdict.ELSEWHERE
        if offset < following:
            return Verdict.COUNT
        if follows is None or follows > following:
            return Verdict.MISSED
        self._next[lane] = offset + 1
        return Verdict.COUNT
