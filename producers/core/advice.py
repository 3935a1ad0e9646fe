"""What is learned of one tier of a pool: how far to trust a prediction, and when to come back.

Pure. A prediction is as often too short as too long, and those who are let in at the edge of
their time would be late half of the time. So a margin is added to it, a part of it, such that a
few in a hundred are late: each request whose wait was predicted moves the margin, much upwards
if it ended later than with the margin was predicted, a little downwards if not. That is a
quantile, followed step by step; it takes no memory of what was, and a prediction that has become
wrong puts itself right.

Coming back. A request that would end `over_ms` too late is in time after that long if nobody
else is let in meanwhile. But others are, and the prediction goes up and down a little with every
batch, so that the first moment comes earlier or later than that: much earlier for who is late
by little. How much is learned: of each tier and doubling of `over_ms` one refused request is
looked at again, uncharged, until it would be let in, and the part of its `over_ms` that had
passed by then moves what is told to the next ones, a step up or down. So the part is the median:
as often too long as too short.
"""

#: The part, in thousandths: at first, and between which it is kept.
PART_FIRST, PART_MIN, PART_MAX = 1_000, 100, 4_000
#: A step is such a part of the part.
STEPS = 16
#: A look-out is over when the moment has not come after so many times the part.
PATIENCE = 4
#: What is over by less says nothing: it is told as a second anyhow.
OVER_MS_MIN = 1_000

#: Of those that are let in as many in a hundred may be late; the target is to be below five.
LATE_PERCENT = 3
#: Parts of a prediction that margins are counted in, and the largest margin.
MARGIN_PARTS, MARGIN_MAX = 100_000, 50_000
#: A step down; a step up is so many more as late requests are rarer.
MARGIN_STEP = 10
#: What is predicted to end before this part of its time says nothing about the edge.
EDGE_PERCENT = 50


class Margin:
    """What is added to a prediction so that few are late."""

    def __init__(self) -> None:
        """Begin with none."""
        self.parts = 0

    def over(self, end_ms: int) -> int:
        """A predicted end with the margin."""
        return end_ms * (MARGIN_PARTS + self.parts) // MARGIN_PARTS

    def learn(self, predicted_ms: int, actual_ms: int | None, target_ms: int) -> None:
        """A request ended after so long; None: never, it was too late for it."""
        if predicted_ms * 100 < target_ms * EDGE_PERCENT:
            return
        if actual_ms is None or actual_ms > self.over(predicted_ms):
            up = MARGIN_STEP * (100 - LATE_PERCENT) // LATE_PERCENT
            self.parts = min(MARGIN_MAX, self.parts + up)
        else:
            self.parts = max(0, self.parts - MARGIN_STEP)


class Advice:
    """When to come back, for those who are about as late as each other."""

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
