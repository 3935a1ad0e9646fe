"""A shard's memory as its log tells it, kept up by reading on.

Begun at the latest snapshot: the requests that were waiting then are put back, and every
decision since is applied by the same `apply` that changed the live state. `turn` goes one
slice further, so the same code recovers a shard (to an end asked for after its id was taken
over), reads ahead while the id is being taken over, and keeps a standby warm.

Reading ahead needs no ownership: only committed records are seen, in their order, and what
is committed does not change. What counts is where reading stops, and that is the caller's.
What does not fit is an error that names the record, the decision and the way out.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
from pyroaring import BitMap64

from scheduler.bodies import Bodies
from scheduler.core.apply import apply
from scheduler.core.arrivals import Arrival
from scheduler.core.mismatch import StateMismatchError
from scheduler.core.refill import fill, finish_filling
from scheduler.core.snapshot import load
from scheduler.core.state import State
from scheduler.inputs import Body, read_requests
from scheduler.ports import Notes
from scheduler.ranges import LostRangeError, Ranges, ranges_of
from scheduler.story import POLL_S, SILENT_POLLS_MAX, WAY_OUT, RecoveryError, Story
from schemas.decisions import Arrived, Decision, Ended, TopicMet, WorkerSaid
from schemas.log import Log, Partition, PositionLostError, Record, UnavailableError
from schemas.records import Finished, pack_key
from schemas.topics import Topics

#: How many lost ranges an error names.
LOST_SHOWN = 5


class Fold:
    """One shard's state, folded from its log as far as it was read.

    Args:
        log, topics, shard: which partition of `decisions`.
        notes: progress, one line a phase.
        bodies: takes the bodies of what waits; None: the state alone is wanted.
    """

    def __init__(
        self, log: Log, topics: Topics, shard: int, notes: Notes, bodies: Bodies | None = None
    ) -> None:
        self.state = State(shard)
        self.bodies = bodies
        self.story = Story(log, topics, shard)
        self.decisions = 0  #: how many were applied
        self._log = log
        self._notes = notes
        self._ranges = Ranges(log)
        self._live: list[BitMap64] = []  #: what waited at the snapshot, by partition
        self._is_filled = False
        self._pending: deque[tuple[Record, Decision]] = deque()
        self._arrivals: dict[Partition, list[Arrival]] = {}
        self._bodies: dict[Partition, list[Body]] = {}

    # --- going on

    def turn(self, wait_s: float = 0.0) -> bool:
        """Go one slice further; False when nothing came.

        Raises:
            RecoveryError: the log lacks or contradicts what is needed.
            UnavailableError: it does not answer.
        """
        try:
            if not self.story.has_begun:
                self._begin()
                return True
            if not self._is_filled:
                return self._fill(wait_s)
            if self._ranges.is_wanting:
                came = self._read_requests(wait_s)
            else:
                came = self._read_decisions(wait_s)
            self._apply_ready()
        except LostRangeError as error:
            message = f"{error}: requests that were accepted are lost. {WAY_OUT}"
            raise RecoveryError(message) from error
        except PositionLostError as error:
            raise RecoveryError(f"{error}: decisions are lost. {WAY_OUT}") from error
        return came

    @property
    def is_level(self) -> bool:
        """Whether everything that was read so far has been folded."""
        return self._is_filled and not self._pending

    def read_to(self, end: int, meanwhile: Callable[[], object] | None = None) -> None:
        """Go on until everything of `decisions` below `end` has been folded.

        `meanwhile` is called between slices.

        Raises as `turn`; RecoveryError also when more was read than the log holds by now.
        """
        topic, number = self.story.partition
        if self.story.next > end:
            raise RecoveryError(
                f"{topic}[{number}] ends at offset {end}, and {self.story.next} were read of it: "
                f"it was cut off, or deleted and made again. {WAY_OUT}"
            )
        silent = 0
        while not self.reached(end):
            silent = 0 if self.turn(POLL_S) else silent + 1
            if meanwhile is not None:
                meanwhile()
            if silent >= SILENT_POLLS_MAX:
                raise UnavailableError(f"{topic}[{number}] does not answer")

    def reached(self, end: int) -> bool:
        """Whether everything of `decisions` below `end` has been folded."""
        return self.is_level and self.story.reached(end)

    def close(self) -> None:
        """Free the clients; the state stays."""
        self._ranges.close()
        self.story.close()

    # --- the latest snapshot, and what waited then

    def _begin(self) -> None:
        data = self.story.begin()
        if data is not None:
            try:
                self.state, self._live = load(data)
            except msgspec.DecodeError as error:
                raise RecoveryError(
                    f"the snapshot at offset {self.story.snapshot} can't be read: {error}. It was "
                    "changed, or another release wrote it: run that one, or start a new "
                    "deployment under another FAIRLANE_PREFIX."
                ) from error
        self.check_topics()
        for index, offsets in enumerate(self._live):
            for start, stop in ranges_of(offsets):
                self._ranges.want(self.state.parts[index].partition, start, stop)
        self._notes.info("recovery: snapshot read", seq=self.state.seq)

    def check_topics(self, recorded: Mapping[str, str] | None = None) -> None:
        """A request topic that was deleted and made again must not pass for the old one.

        Raises RecoveryError. `recorded` are identities by topic, the state's unless given.
        """
        if recorded is None:
            recorded = self.state.topics
        for topic, identity in recorded.items():
            now = self._log.topic_id(topic) if self._log.partitions(topic) else "none"
            if now != identity:
                raise RecoveryError(
                    f"topic {topic} was deleted or recreated: decisions were made on {identity}, "
                    f"now it is {now}, so accepted requests are gone. {WAY_OUT}"
                )

    def _fill(self, wait_s: float) -> bool:
        came = self._ranges.poll(wait_s)
        for partition, records in came:
            index = self.state.part_of[partition]
            arrivals, bodies = read_requests(_among(records, self._live[index]))
            fill(self.state, index, arrivals)
            self._keep(index, arrivals, bodies)
        if self._ranges.is_wanting:
            return bool(came)
        for index, offsets in enumerate(self._live):
            self._check_filled(index, offsets)
        finish_filling(self.state)
        self._live, self._is_filled = [], True
        self._notes.info("recovery: requests of the snapshot read", live=len(self.state.ids))
        return True

    def _check_filled(self, index: int, offsets: BitMap64) -> None:
        """What waited and is not in the log any more is told by range."""
        part = self.state.parts[index]
        lost = offsets - BitMap64(offset for offset, _ in part.window.items())
        if lost:
            topic, number = part.partition
            spans = [f"{start}..{stop - 1}" for start, stop in ranges_of(lost, 0)]
            more = f" and {len(spans) - LOST_SHOWN} more" if len(spans) > LOST_SHOWN else ""
            raise RecoveryError(
                f"{topic}[{number}]: {len(lost)} accepted requests are gone from the log, offsets "
                f"{', '.join(spans[:LOST_SHOWN])}{more}. Restore the topic."
            )

    # --- decisions since

    def _read_decisions(self, wait_s: float) -> bool:
        """Take decisions in, and say which requests are to be read for them."""
        found = self.story.poll(wait_s)
        for record, decision in found or ():
            self._pending.append((record, decision))
            for step in decision.steps:
                if isinstance(step, Arrived):
                    self._ranges.want((step.topic, step.partition), step.start, step.stop)
                elif isinstance(step, TopicMet):
                    self.check_topics({step.topic: step.id})
        return found is not None

    def _read_requests(self, wait_s: float) -> bool:
        came = self._ranges.poll(wait_s)
        for partition, records in came:
            arrivals, bodies = read_requests(records)
            self._arrivals.setdefault(partition, []).extend(arrivals)
            if self.bodies is not None:
                self._bodies.setdefault(partition, []).extend(bodies)
        return bool(came) or not self._ranges.is_wanting

    def _apply_ready(self) -> None:
        """Apply decisions as far as the requests are there that they took in."""
        pending, passed = self._pending, self._ranges.passed
        while pending:
            record, decision = pending[0]
            for step in decision.steps:
                if isinstance(step, Arrived) and not passed(
                    (step.topic, step.partition), step.stop
                ):
                    return
            pending.popleft()
            self._apply(record, decision)

    def _apply(self, record: Record, decision: Decision) -> None:
        state = self.state
        if decision.seq != state.seq + 1:
            raise RecoveryError(
                f"{record.place}: decision {decision.seq} follows {state.seq}: one is missing"
            )
        state.now_ms = decision.now_ms
        try:
            for step in decision.steps:
                if isinstance(step, Arrived):
                    self._take_in(step)
                else:
                    apply(state, step)
        except StateMismatchError as error:
            raise RecoveryError(
                f"{record.place}: {error}. The decision does not follow from those before it: it "
                "was changed, or made by a release that this one can't read."
            ) from error
        state.seq = decision.seq
        self.decisions += 1
        if self.bodies is not None:
            self.bodies.drop_all(self._ended(decision))

    def _take_in(self, step: Arrived) -> None:
        partition = (step.topic, step.partition)
        arrivals = self._arrivals.get(partition, [])
        low = bisect_left(arrivals, step.start, key=_offset)
        high = bisect_left(arrivals, step.stop, lo=low, key=_offset)
        taken = arrivals[low:high]
        apply(self.state, step, taken)
        del arrivals[:high]
        if taken and self.bodies is not None:
            bodies = self._bodies[partition]
            self._keep(self.state.part_of[partition], taken, bodies[low:high])
            del bodies[:high]

    def _keep(self, index: int, arrivals: Sequence[Arrival], bodies: Sequence[Body]) -> None:
        """Hand bodies over, of requests that are in the state."""
        if self.bodies is None:
            return
        base = pack_key(index, 0)
        self.bodies.keep_all([base | arrival.offset for arrival in arrivals], bodies)
        self.bodies.follow(self.state)

    def _ended(self, decision: Decision) -> list[int]:
        """Keys of what is not live any more after a decision."""
        ended: list[int] = []
        for step in decision.steps:
            if isinstance(step, Ended):
                ended.append(step.key)
            elif isinstance(step, WorkerSaid) and isinstance(step.record, Finished):
                ended += [outcome.key for outcome in step.record.outcomes]
            elif isinstance(step, Arrived) and step.refused:
                base = pack_key(self.state.part_of[step.topic, step.partition], 0)
                ended += [base | offset for offset, _ in step.refused]
        return ended


def _among(records: list[Record], offsets: BitMap64) -> list[Record]:
    """Those of a partition's records that stand at the offsets: mostly all of them."""
    first, stop = records[0].offset, records[-1].offset + 1
    if offsets.range_cardinality(first, stop) == stop - first:
        return records
    wanted = set(offsets & BitMap64(range(first, stop)))
    return [record for record in records if record.offset in wanted]


def _offset(arrival: Arrival) -> int:
    return arrival.offset
