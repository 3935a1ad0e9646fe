"""Room for requests, shared out among tenants: one that stands still stops no other.

All tenants together have `outstanding` groups under way, in the order of the source; with no
room left reading waits. A tenant whose limit is used up would come to hold all of it. So a
tenant that is *held up* has no more than its share, the room by the tenants with something to
do; what comes for it beyond that is set aside (fairlane.embed_aside), and is sent when its own
groups end. Until all of that is sent it keeps to its share. What it holds beyond its share
from before takes no room from others: for as long there are more than `outstanding` under way.

A source of one tenant sets nothing aside: there is nobody else to read on for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fairlane.client import AsyncClient
from fairlane.client_values import Submission
from fairlane.embed_aside import Aside
from fairlane.embed_groups import Group

#: Who was held up is taken to be so for this long: a limit by the second comes again and again.
HELD_UP_S = 10.0
#: How often who waits for room looks whether a tenant is held up meanwhile.
LOOK_S = 0.25


class Lane:
    """One tenant: groups under way, and numbers of those set aside."""

    __slots__ = ("aside", "client", "held", "queue", "tenant", "until_s")

    def __init__(self, tenant: str, client: AsyncClient) -> None:
        """Nothing is under way; `queue` is what its client runs, None ends it."""
        self.tenant, self.client = tenant, client
        self.queue: asyncio.Queue[Submission | None] = asyncio.Queue()
        self.held = 0
        self.aside: deque[int] = deque()
        self.until_s = 0.0


class Lanes:
    """The tenants of one run."""

    def __init__(
        self,
        endpoint: str,
        outstanding: int,
        folder: Path,
        start: Callable[[Lane, Group], None],
        *,
        has_tenant: bool,
    ) -> None:
        """`start` sends a group; when it is settled, `done` is called."""
        self._endpoint, self._outstanding, self._start = endpoint, outstanding, start
        self._has_tenant = has_tenant
        self._lanes: list[Lane] = []
        self._working: dict[Lane, None] = {}  # in the order in which they began
        self._aside = Aside(folder)
        self._changed = asyncio.Event()

    def open(self, tenant: str, client: AsyncClient) -> Lane:
        """A lane for a tenant that has none yet."""
        lane = Lane(tenant, client)
        self._lanes.append(lane)
        return lane

    async def put(self, lane: Lane, group: Group) -> None:
        """Send a group, or set it aside; waits while there is neither room nor place."""
        while lane.aside or not self._room(lane):
            if self._sets_aside(lane):
                lane.aside.append(self._aside.put(group))
                self._working[lane] = None
                self._fill()
                return
            await self._change()
        self._send(lane, group)

    def done(self, lane: Lane) -> None:
        """A group of the lane is settled: its room is given back."""
        lane.held -= 1
        if not lane.held and not lane.aside:
            del self._working[lane]
        self._fill()
        self._changed.set()

    def hold_up(self, lane: Lane) -> None:
        """The tenant's limit is used up, as an answer says."""
        lane.until_s = asyncio.get_running_loop().time() + HELD_UP_S

    def waits_for(self) -> str:
        """Whose limits hold the work up; empty: nobody's."""
        names = [lane.tenant for lane in self._working if self._is_held_up(lane)]
        if not names:
            return ""
        if not self._has_tenant:
            return "the tenant's limit"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"the limit of tenant {names[0]}{more}"

    async def drain(self) -> None:
        """Wait until nothing is under way or set aside, then end all queues."""
        while self._working:
            self._fill()
            await self._change()
        for lane in self._lanes:
            lane.queue.put_nowait(None)

    def close(self) -> None:
        """Let go of what is set aside."""
        self._aside.close()

    # --- shares

    def _is_held_up(self, lane: Lane) -> bool:
        if lane.client.limited_s(self._endpoint) > 0:
            self.hold_up(lane)
        return asyncio.get_running_loop().time() < lane.until_s

    def _keeps_to_share(self, lane: Lane) -> bool:
        return bool(lane.aside) or self._is_held_up(lane)

    def _room(self, lane: Lane) -> bool:
        """Whether a lane may send one more."""
        tenants = len(self._working) + (lane not in self._working)
        share = max(1, self._outstanding // tenants)
        if lane.held >= share and self._keeps_to_share(lane):
            return False
        taken = 0
        for other in self._working:
            beyond = other.held > share and self._keeps_to_share(other)
            taken += share if beyond else other.held
        return taken < self._outstanding

    def _sets_aside(self, lane: Lane) -> bool:
        return self._has_tenant and self._keeps_to_share(lane) and not self._aside.is_full

    def _fill(self) -> None:
        """Send what was set aside and has room now, of each tenant in turn."""
        waiting = [lane for lane in self._working if lane.aside]
        while waiting:
            waiting = [lane for lane in waiting if lane.aside and self._room(lane)]
            for lane in waiting:
                if self._room(lane):
                    self._send(lane, self._aside.take(lane.aside.popleft()))

    def _send(self, lane: Lane, group: Group) -> None:
        lane.held += 1
        self._working[lane] = None
        self._start(lane, group)

    async def _change(self) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
