"""The lanes that a process counts, each without a record left out.

What belongs here: noticing that records were lost on their way, and having them read again.
What does not: which record is the next one (`accounting.core.positions`), and the client.

A loss is noticed by the record behind it, which doesn't follow what was counted. When none
comes any more, it is noticed by the lane: it stands still below what the client handed out.
"""

from collections.abc import Mapping
from typing import Protocol

from accounting.core.positions import Positions, Verdict
from accounting.ports import Meter, Notes
from schemas.log import Partition

#: Records on their way are left until those asked for come; then they are asked for again.
ASK_AGAIN_S = 1.0


class Client(Protocol):
    """The client that lanes are read by."""

    def handed_out(self, lane: Partition) -> int | None:
        """Up to where it has handed a lane's records out; None when nobody knows."""

    async def read_from(self, lane: Partition, offset: int) -> None:
        """Read a lane from an offset on; nothing happens when it is another process's."""


class Lanes:
    """Judges records; all times are seconds of one clock that only goes forward."""

    def __init__(self, notes: Notes, meter: Meter) -> None:
        """Begin without lanes."""
        self._notes, self._meter = notes, meter
        self._positions = Positions()
        self._asked: dict[Partition, tuple[int, float]] = {}
        self._seen: dict[Partition, int] = {}

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Count these lanes from these offsets on, and no others any more."""
        self._positions.begin(positions)
        self._asked.clear()
        self._seen.clear()

    async def is_next(
        self, client: Client, lane: Partition, follows: int | None, offset: int, now_s: float
    ) -> bool:
        """Tell whether a record is to be counted; when some before it are missing, ask for them."""
        verdict = self._positions.take(lane, follows, offset)
        if verdict is Verdict.MISSED:
            await self._ask(client, lane, now_s)
        return verdict is Verdict.COUNT

    async def look(self, client: Client, now_s: float) -> None:
        """Ask for what is missing of lanes that have not moved since the last call."""
        seen, self._seen = self._seen, self._positions.all()
        for lane, position in self._seen.items():
            upto = client.handed_out(lane)
            if upto is not None and position < upto and seen.get(lane) == position:
                await self._ask(client, lane, now_s)

    async def _ask(self, client: Client, lane: Partition, now_s: float) -> None:
        offset = self._positions.position(lane)
        asked, at_s = self._asked.get(lane, (None, 0.0))
        if asked == offset and now_s - at_s < ASK_AGAIN_S:
            return
        self._asked[lane] = offset, now_s
        self._notes.info("reading again", lane=f"{lane[0]}[{lane[1]}]", offset=offset)
        self._meter.count("accounting_read_again_total")
        await client.read_from(lane, offset)
