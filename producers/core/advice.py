"""When to come back: the moment at which the same request would first be let in, as learned.

Pure. A request that would end `over_ms` too late is in time after that long if nobody else is
let in meanwhile. But others are, and the prediction goes up and down a little with every batch,
so that the first moment comes earlier or later than that. How much is learned: of each tier one
refused request is looked at again, uncharged, until it would be let in, and the part of its
`over_ms` that had passed by then moves what is told to the next ones, a step up or down. So the
part is the median: as often too long as too short.
"""

#: The part, in thousandths: at first, and between which it is kept.
PART_FIRST, PART_MIN, PART_MAX = 1_000, 100, 4_000
#: A step is such a part of the part.
STEPS = 16
#: A look-out is over when the moment has not come after so many times the part.
PATIENCE = 4
#: What is over by less says nothing: it is told as a second anyhow.
OVER_MS_MIN = 1_000


class Advice:
    """What was learned of one tier of a pool."""

    def __init__(self) -> None:
        """Begin with the whole."""
        self.part = PART_FIRST

    def after_ms(self, over_ms: int) -> int:
        """When a request that is late by so much is likely to be let in, from now."""
        return over_ms * self.part // 1_000

    def is_hopeless(self, over_ms: int, passed_ms: int) -> bool:
        """Whether it has been looked at long enough."""
        return passed_ms > PATIENCE * self.after_ms(over_ms)

    def learn(self, over_ms: int, passed_ms: int) -> None:
        """The moment came (or the look-out ended) after so long."""
        step = max(1, self.part // STEPS)
        if passed_ms > self.after_ms(over_ms):
            self.part = min(PART_MAX, self.part + step)
        else:
            self.part = max(PART_MIN, self.part - step)
