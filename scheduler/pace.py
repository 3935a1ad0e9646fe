"""How fast a pool works: measured from when batches are sent and when they are done.

A slot is busy with one batch at a time; what a lane holds beyond its slots waits in it. So a
batch begins when it is sent, or when the lane's next one ends, and

    rate of the pool = cost done / time that slots were busy with it * slots

which is right at any load: a pool that is half idle is not taken for one that is half as fast.
What is sent and its end are seen when the scheduler sees them. Sums of the past are halved again
and again, so that the last few batches of each slot count. A few integers a batch; the requests
in it are not looked at.
"""

from scheduler.core.state import Lane
from schemas.backlog import RATE_MS

#: The sums are halved when slots were busy for so long, each.
WINDOW_MS = 20_000
#: A lane that says nothing for so long, and so many times what a batch takes, has no worker.
SILENT_MS, SILENT_BATCHES = 30_000, 8
#: ... but a first batch may load a model: before any has ended nobody knows what is long.
FIRST_MS = 600_000
#: After so long without a batch what was measured is old: workers may be others by then.
OLD_MS = 60_000
#: Averages are kept in parts of a millisecond; a new value counts for an eighth, a quarter.
_PARTS = 16


class _Sent:
    """A batch in a lane; `began_ms` is -1 while it waits there, and never known of some."""

    __slots__ = ("began_ms", "cost", "is_known", "sent_ms")

    def __init__(self, cost: int, sent_ms: int, began_ms: int, *, is_known: bool) -> None:
        self.cost = cost
        self.sent_ms = sent_ms
        self.began_ms = began_ms
        self.is_known = is_known


class _Watched:
    """A lane: its batches by number, those that run first."""

    __slots__ = ("heard_ms", "sent", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.sent: dict[int, _Sent] = {}
        self.waiting: dict[int, _Sent] = {}
        self.heard_ms = now_ms


class Pace:
    """What was measured of one pool."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Watched] = {}
        self._cost_done = 0
        self._busy_ms = 0
        self._run = 0  #: of a batch once it began, in parts
        self._service = 0  #: from being sent to its end, in parts
        self._spread = 0
        self._ended_ms = 0  #: when the last batch did

    @property
    def service_ms(self) -> int:
        """From a batch's pick to its end, on average."""
        return self._service // _PARTS

    @property
    def spread_ms(self) -> int:
        """How far from the average it usually is."""
        return self._spread // _PARTS

    def rate(self, slots: int) -> int:
        """Cost that so many slots do in 1,000 s; 0: nothing was measured yet."""
        return self._cost_done * slots * RATE_MS // self._busy_ms if self._busy_ms else 0

    def heard(self, lane: int, now_ms: int) -> None:
        """A lane's worker said something."""
        self._lane(lane, now_ms).heard_ms = now_ms

    def sent(self, lane: int, number: int, slots: int, cost: int, now_ms: int) -> None:
        """A batch was sent."""
        watched = self._lane(lane, now_ms)
        if not watched.sent:
            watched.heard_ms = now_ms  # until now it had nothing to say
        if len(watched.sent) < slots:
            watched.sent[number] = _Sent(cost, now_ms, now_ms, is_known=True)
        else:
            watched.waiting[number] = _Sent(cost, now_ms, -1, is_known=True)

    def done(self, lane: int, number: int, slots: int, now_ms: int) -> None:
        """A batch ended."""
        watched = self._lane(lane, now_ms)
        watched.heard_ms = now_ms
        sent = watched.sent.pop(number, None) or watched.waiting.pop(number, None)
        if watched.waiting and len(watched.sent) < slots:
            first = next(iter(watched.waiting))
            following = watched.sent[first] = watched.waiting.pop(first)
            following.began_ms = now_ms
        if sent is None or not sent.is_known:
            return
        if sent.sent_ms - self._ended_ms > OLD_MS:
            self._cost_done = self._busy_ms = self._run = self._service = 0
        self._ended_ms = now_ms
        ran_ms = max(1, now_ms - (sent.began_ms if sent.began_ms >= 0 else now_ms))
        self._cost_done += sent.cost
        self._busy_ms += ran_ms
        if self._busy_ms > WINDOW_MS * max(1, slots * len(self._lanes)):
            self._cost_done //= 2
            self._busy_ms //= 2
        self._average(ran_ms, now_ms - sent.sent_ms)

    def _average(self, ran_ms: int, took_ms: int) -> None:
        ran, took = ran_ms * _PARTS, took_ms * _PARTS
        if not self._service:
            self._run, self._service, self._spread = ran, took, took // 4
            return
        self._run += (ran - self._run) // 8
        self._spread += (abs(took - self._service) - self._spread) // 4
        self._service += (took - self._service) // 8

    def agree(self, number: int, lane: Lane, now_ms: int) -> None:
        """Have the batches that the state says: some were handed back, or sent by another."""
        flights = lane.flights
        watched = self._lanes.get(number)
        if watched is None:
            if not flights:
                return
            watched = self._lane(number, now_ms)
        if len(flights) == len(watched.sent) + len(watched.waiting):
            return
        for held in (watched.sent, watched.waiting):
            for gone in [batch for batch in held if batch not in flights]:
                del held[gone]
        for batch in flights:
            if batch not in watched.sent and batch not in watched.waiting:
                watched.sent[batch] = _Sent(0, now_ms, now_ms, is_known=False)

    def is_silent(self, number: int, now_ms: int) -> bool:
        """Whether a lane has had something to do for long, and said nothing."""
        watched = self._lanes.get(number)
        if watched is None or not watched.sent:
            return False
        run_ms = self._run // _PARTS
        patience_ms = max(SILENT_MS, SILENT_BATCHES * run_ms) if self._run else FIRST_MS
        return now_ms - watched.heard_ms > patience_ms

    def next_end_ms(self, number: int, now_ms: int) -> int:
        """Until the first batch of a lane is likely to end; 0: any time now."""
        watched = self._lanes.get(number)
        if watched is None or not watched.sent:
            return 0
        began_ms = next(iter(watched.sent.values())).began_ms
        return max(0, began_ms + self._run // _PARTS - now_ms)

    def _lane(self, number: int, now_ms: int) -> _Watched:
        watched = self._lanes.get(number)
        if watched is None:
            watched = self._lanes[number] = _Watched(now_ms)
        return watched
