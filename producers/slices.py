"""Long work on the event loop, cut into slices: between two of them everybody has a turn."""

import asyncio

#: One piece of work keeps the others waiting so long at the most, or for a single step of its
#: own: with all bulk calls at work together still far less than what Redis is given to answer.
SLICE_S = 0.002


class Slices:
    """Tells one piece of work when its slice is over; a new one has begun."""

    def __init__(self) -> None:
        """Made in the running event loop."""
        self._now = asyncio.get_running_loop().time
        self._end_s = self._now() + SLICE_S

    async def between(self) -> None:
        """Between two steps: let the others go first if the slice is over."""
        if self._now() >= self._end_s:
            await self.rest()

    async def rest(self) -> None:
        """Let the others go first."""
        await asyncio.sleep(0)
        self._end_s = self._now() + SLICE_S
