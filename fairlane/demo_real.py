"""Plays a scene on real processes: HTTP in, Kafka between, and the figures from `results`.

The same tally and screen as the embedded demo; only the clock is the wall's. Results are
read from the log, not asked for one by one: a request with two results would be seen.
"""

from collections.abc import Callable
from typing import NamedTuple

from adapters.clock import SystemClock
from fairlane.demo_deployment import Deployment
from fairlane.demo_http import Refused, Sender
from fairlane.demo_play import FRAME_S, Batches, Frame
from fairlane.demo_scene import Scene
from fairlane.demo_tally import Tally
from fairlane.errors import FairlaneError
from schemas.codec import decode_header
from schemas.records import Result
from simulation.world import Arrival

#: Requests that were accepted and have no result for so long are given up.
SILENCE_MS_MAX = 120_000
_POLL_RECORDS = 10_000


class Outcome(NamedTuple):
    """Figures of a real run; `lost` have no result, `doubled` have more than one."""

    tally: Tally
    refused: list[Refused]
    lost: int
    doubled: int


def hastened(scene: Scene, speed: float) -> Scene:
    """The same scene, everything in it so many times faster: arrivals and engines."""
    if speed == 1:
        return scene
    arrivals = [a._replace(at_ms=int(a.at_ms / speed)) for a in scene.arrivals]
    workers = tuple(
        spec._replace(
            engine=spec.engine._replace(
                fixed_ms=round(spec.engine.fixed_ms / speed),
                per_token_us=max(1, round(spec.engine.per_token_us / speed)),
            )
        )
        for spec in scene.workers
    )
    return scene._replace(arrivals=arrivals, workers=workers)


def play_real(scene: Scene, deployment: Deployment, frame: Frame) -> Outcome:
    """Send the scene's requests at their times and follow them to their results.

    Raises:
        FairlaneError: nothing ends any more though requests wait.
    """
    _warm_up(scene, deployment)
    run = _Run(scene, deployment)
    try:
        run.sender.start()
        while not run.is_over():
            run.follow(FRAME_S)
            frame(run.tally, run.now_ms())
        run.follow_to_the_end()
        frame(run.tally, run.now_ms())
    finally:
        run.close()
    lost = len(run.sender.ids - run.ended)
    return Outcome(run.tally, run.refused, lost, run.doubled)


class _Run:
    """One scene on a deployment, and its figures."""

    def __init__(self, scene: Scene, deployment: Deployment) -> None:
        self.tally = Tally(scene.policy)
        self.refused: list[Refused] = []
        self.ended: set[str] = set()
        self.doubled = 0
        self._check = deployment.check
        self._reader = deployment.log.reader()
        topic = deployment.topics.results
        buckets = deployment.log.partitions(topic)
        self._partitions = [(topic, number) for number in range(buckets)]
        self._reader.assign({p: self._reader.bounds(p).end for p in self._partitions})
        self._batches = Batches(deployment.log, deployment.topics, scene.policy)
        self._clock: Callable[[], int] = SystemClock().now_ms
        self.sender = Sender(deployment.url, deployment.keys, scene.arrivals)
        self._start_ms = self._heard_ms = self._clock()

    def now_ms(self) -> int:
        return self._clock() - self._start_ms

    def is_over(self) -> bool:
        if self.sender.is_done and not self.sender.events and self.sender.ids <= self.ended:
            return True
        self._check()
        waits = self.tally.asked_count > self.tally.ended_count
        if waits and self._clock() - self._heard_ms > SILENCE_MS_MAX:
            raise FairlaneError(
                f"{self.tally.asked_count - self.tally.ended_count} requests wait and nothing "
                f"ended for {SILENCE_MS_MAX // 1000} s"
            )
        return False

    def follow(self, wait_s: float) -> None:
        """Take in what was sent and what ended; waits a little for results."""
        records = self._reader.poll(_POLL_RECORDS, wait_s)
        while self.sender.events:
            event = self.sender.events.popleft()
            if isinstance(event, Refused):
                self.refused.append(event)
                self.tally.refused(event.tenant, self.now_ms())
            else:
                self.tally.asked(event.tenant, event.at_ms)
        for record in records:
            result: Result = decode_header(record, Result)
            if result.id in self.ended:
                self.doubled += 1
                continue
            self.ended.add(result.id)
            self.tally.ended(result, self._start_ms)
            self._heard_ms = self._clock()
        self._batches.read_into(self.tally, self._start_ms)

    def follow_to_the_end(self) -> None:
        """Take in all that is in the log by now: a second result would be among it."""
        ends = {partition: self._reader.bounds(partition).end for partition in self._partitions}
        while not all(self._reader.reached(p, end) for p, end in ends.items()):
            self.follow(FRAME_S)

    def close(self) -> None:
        self.sender.stop()
        self._batches.close()
        self._reader.close()


def _warm_up(scene: Scene, deployment: Deployment) -> None:
    """One request through each pool: then scheduler and workers are there."""
    endpoints = dict.fromkeys(endpoint.name for endpoint in scene.policy.endpoints)
    tenant = scene.policy.tenants[0]
    arrivals = [Arrival(0, tenant.name, name, tenant.tiers[0], b'"warm"') for name in endpoints]
    run = _Run(scene._replace(arrivals=arrivals), deployment)
    try:
        run.sender.start()
        while not run.is_over():
            run.follow(FRAME_S)
    finally:
        run.close()
    if run.refused:
        raise FairlaneError(f"a first request was not accepted: {run.refused[0].detail}")
