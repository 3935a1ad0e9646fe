"""Plays a scene in this process: the real services on the in-process log, in virtual time.

`play` runs a scene to its end, as fast as it goes or paced to a clock on the wall; `frame`
is called with the figures now and then.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from fairlane.demo_scene import Scene
from fairlane.demo_tally import Tally
from schemas.codec import decode_header
from schemas.log import Log
from schemas.policy import Policy
from schemas.records import Batch, LaneRecord
from schemas.topics import Topics
from simulation.world import EPOCH_MS, Served, World

Frame = Callable[[Tally, int], None]

#: A screen is drawn this often, seconds: smooth for the eye, light on the machine.
FRAME_S = 0.08
#: Batches read from the log at once.
_POLL_RECORDS = 10_000


class Pace(NamedTuple):
    """Virtual seconds per second of a clock on the wall; `wall` and `sleep` are that clock."""

    speed: float
    wall: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Batches:
    """Follows the batch topics of a policy, for how full the batches are."""

    def __init__(self, log: Log, topics: Topics, policy: Policy) -> None:
        self._reader = log.reader()
        lanes = [
            (topics.batches(pool.name), lane) for pool in policy.pools for lane in range(pool.lanes)
        ]
        self._reader.assign({lane: self._reader.bounds(lane).end for lane in lanes})

    def read_into(self, tally: Tally, start_ms: int) -> None:
        """Count what was sent since the last call; never waits."""
        while records := self._reader.poll(_POLL_RECORDS, 0.0):
            for record in records:
                sent = decode_header(record, LaneRecord)
                if isinstance(sent, Batch):
                    tally.batch(sent.picked_ms - start_ms, len(sent.items))

    def close(self) -> None:
        """Stop following."""
        self._reader.close()


class _Run:
    """One scene in a world, and its figures."""

    def __init__(self, scene: Scene) -> None:
        self.world = World(scene.policy, scene.workers)
        self.tally = Tally(scene.policy)
        self._batches = Batches(self.world.log, self.world.topics, scene.policy)
        self._arrivals = scene.arrivals
        self._came = 0
        self.world.on_served = self._ended
        self.world.expect(scene.arrivals)
        self.world.settle()

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms() - EPOCH_MS

    @property
    def is_over(self) -> bool:
        return self.tally.ended_count == len(self._arrivals)

    def step(self) -> bool:
        is_left = self.world.step()
        while self._came < len(self._arrivals) and self._arrivals[self._came].at_ms <= self.now_ms:
            arrival = self._arrivals[self._came]
            self.tally.asked(arrival.tenant, self.now_ms)
            self._came += 1
        self._batches.read_into(self.tally, EPOCH_MS)
        return is_left

    def _ended(self, served: Served) -> None:
        self.tally.ended(served.result, EPOCH_MS)


def play(
    scene: Scene,
    frame: Frame = lambda _tally, _now_ms: None,
    pace: Pace | None = None,
    until: Callable[[Tally], bool] = lambda _: False,
) -> Tally:
    """Run a scene until everything ended, or `until` says so; returns its figures.

    Without a pace it runs as fast as it goes, and `frame` is called after each step.
    """
    run = _Run(scene)
    began = pace.wall() if pace else 0.0
    while not run.is_over and not until(run.tally):
        next_ms = run.world.next_ms()
        if next_ms is None:
            break
        if pace:
            _wait(run.tally, next_ms - EPOCH_MS, pace, began, frame)
        if not run.step():
            break
        if not pace:
            frame(run.tally, run.now_ms)
    frame(run.tally, run.now_ms)
    return run.tally


def _wait(tally: Tally, next_ms: int, pace: Pace, began: float, frame: Frame) -> None:
    """Draw until the wall's clock has come to `next_ms`."""
    while True:
        virtual_ms = int((pace.wall() - began) * pace.speed * 1000)
        if virtual_ms >= next_ms:
            return
        frame(tally, virtual_ms)
        left_s = (next_ms - virtual_ms) / 1000 / pace.speed
        pace.sleep(min(left_s, FRAME_S))
