"""A lane under a seed's worth of crashes, zombies, aborts and doubts, judged by the log.

The checks are those of docs/spec, numbered as there:
1. one terminal result an id;
2. an attempt is started once by whoever holds the lane;
4. at the end every request has ended;
6. no batch is finished twice, handed back twice, or both.
The controls are lanes with one rule broken: the same checks must catch each of them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

import workers.lane
from adapters.memory import CommitFault, MemoryLog
from schemas.log import Commit, Headers, LogError, OnDelivery, Partition, TransactionalProducer
from schemas.records import Finished, HandedBack
from tests.support.lanes import Holder, LaneWorld
from workers.lane import Lane
from workers.phase import Phase
from workers.takeover import Start, read_start

SEEDS = 200
REQUESTS = 8
SLOTS = 2
#: Batches that the scheduler leaves unfinished on the lane: slots and one ahead.
LIMIT = SLOTS + 1


class CrashError(Exception):
    """The process of a holder ended here."""


class Crashing:
    """A transactional producer whose process ends before its n-th call."""

    def __init__(self, inner: TransactionalProducer, faults: "Faults") -> None:
        self._inner = inner
        self._faults = faults

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        self._faults.tick()
        self._inner.init(meanwhile)
        self._faults.holder = self

    def begin(self) -> None:
        self._faults.tick()
        self._inner.begin()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._faults.tick()
        self._inner.send(topic, partition, value, key=key, headers=headers)

    def send_offsets(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        self._faults.tick()
        self._inner.send_offsets(group, commits)

    def commit(self) -> None:
        self._faults.tick()
        self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


class Faults:
    """What a seed does to the lanes; `holder` is whoever called `init` last."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.fuse = 0
        self.holder: Crashing | None = None
        self.budget = 5
        self.commits = 4

    def tick(self) -> None:
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                raise CrashError

    def at_commit(self, transactional_id: str) -> CommitFault | None:
        if ".lane." not in transactional_id or not self.commits or self.rng.random() > 0.3:
            return None
        self.commits -= 1
        return self.rng.choice(list(CommitFault))


class LogOfLanes:
    """The world's log, with producers that can crash."""

    def __init__(self, inner: MemoryLog, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def transactional(self, transactional_id: str) -> Crashing:
        return Crashing(self._inner.transactional(transactional_id), self._faults)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Run:
    """One seed: a scheduler by the book, and holders that come, go and come back."""

    def __init__(self, seed: int, kind: type[Lane]) -> None:
        self.rng = Random(seed)
        self.kind = kind
        self.faults = Faults(self.rng)
        self.world = LaneWorld()
        self.world.log.faults = self.faults.at_commit
        self.log = LogOfLanes(self.world.log, self.faults)
        self.holders: list[Holder] = []
        self.waiting = [(f"r{index}", 0) for index in range(REQUESTS)]
        self.sent: dict[int, tuple[str, int]] = {}
        self.met = 0
        self.faulty: list[str] = []
        self.starts: Counter[int] = Counter()

    def new_holder(self) -> None:
        made: list[Holder] = []

        def on_start(number: int) -> None:
            if made[0].lane._producer is self.faults.holder:
                self.starts[number] += 1
                if self.starts[number] > 1:
                    self.faulty.append(f"(2) batch {number} was started twice")

        made.append(self.world.holder(SLOTS, kind=self.kind, log=self.log, on_start=on_start))
        self.holders.append(made[0])

    def schedule(self) -> None:
        said = [s for s in self.world.said() if isinstance(s, Finished | HandedBack)]
        for record in said[self.met :]:
            sent = self.sent.pop(record.number, None)
            if sent is None:
                self.faulty.append(f"(6) batch {record.number} ended twice: {record}")
            elif isinstance(record, HandedBack):
                self.waiting.append((sent[0], sent[1] + 1))
        self.met = len(said)
        while self.waiting and len(self.sent) < LIMIT:
            id_, attempt = self.waiting.pop(0)
            batch = self.world.dispatch(id_, attempt=attempt)
            self.sent[batch.number] = (id_, attempt)

    def turn(self, holder: Holder) -> None:
        try:
            holder.lane.turn()
        except CrashError:
            self.faults.fuse = 0
            self.holders.remove(holder)
            return
        if holder.lane.phase is Phase.GONE:
            self.holders.remove(holder)

    def step(self) -> None:
        self.world.clock.advance(self.rng.choice((1, 10, 60, 200)))
        if not self.holders:
            self.new_holder()
        holder = self.rng.choice(self.holders)
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.schedule()
            case 3 | 4 | 5 | 6 | 7:
                self.turn(holder)
            case 8 | 9:
                running = holder.slots.running
                if running:
                    holder.slots.release(self.rng.choice(running))
            case 10 if self.faults.budget and len(self.holders) < 3:
                self.faults.budget -= 1
                self.new_holder()
            case 11 if self.faults.budget and not self.faults.fuse:
                self.faults.budget -= 1
                self.faults.fuse = self.rng.randint(1, 8)
            case _:
                pass

    def play(self) -> list[str]:
        """Play a bad day, then a calm end; returns what was wrong."""
        for _ in range(150):
            self.step()
        self.faults.budget = self.faults.commits = self.faults.fuse = 0
        for _ in range(100):
            if not self.waiting and not self.sent:
                break
            if not self.holders:
                self.new_holder()
            self.schedule()
            for holder in list(self.holders):
                self.turn(holder)
                holder.slots.release()
            self.world.clock.advance(500)
        self.check()
        return self.faulty

    def check(self) -> None:
        ids = Counter(result.id for result, _ in self.world.results())
        self.faulty += [f"(1) {id_} ended {n} times" for id_, n in ids.items() if n > 1]
        self.faulty += [f"(4) r{i} never ended" for i in range(REQUESTS) if not ids[f"r{i}"]]
        ends = Counter(
            record.number
            for record in self.world.said()
            if isinstance(record, Finished | HandedBack)
        )
        self.faulty += [f"(6) batch {n} ended {k} times" for n, k in ends.items() if k > 1]


def test_no_seed_loses_or_doubles_anything() -> None:
    for seed in range(SEEDS):
        faulty = Run(seed, Lane).play()
        assert not faulty, f"seed {seed}: {faulty}"


# --- controls: one rule broken, and the checks must see it


class ReadsFirst(Lane):
    """Reads progress and the lane's end before the init (READ_FIRST)."""

    early: Start | None = None

    def _take(self) -> None:
        if self.early is None:
            self.early = read_start(self._log, self._reader, self._names, self._clock, self._notes)
            return
        early, self.early = self.early, None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers.lane, "read_start", lambda *_: early)
            super()._take()


class EndFirst(ReadsFirst):
    """Reads the lane's end before the init, progress after it (END_FIRST)."""

    def _take(self) -> None:
        if self.early is None:
            super()._take()
            return
        end, self.early = self.early.end, None

        def late(*args: Any) -> Start:
            return read_start(*args)._replace(end=end)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers.lane, "read_start", late)
            Lane._take(self)


class RunsOld(Lane):
    """Runs its predecessor's batches (RUN_OLD)."""

    def _take_over(self, record: Any, start: Start) -> None:
        if not start.progress.has_ended(record.offset):
            self._take_in(record)


class HandsNothingBack(Lane):
    """Passes its predecessor's batches over in silence (NO_HANDBACK)."""

    def _take_over(self, record: Any, start: Start) -> None:
        pass


class TakesDoubtForAbort(Lane):
    """Writes again after a commit in doubt, without reading what stands (DOUBT_W)."""

    def _take_again(self) -> None:
        self._close_producer()
        self._producer = self._log.transactional(self._names.transactional_id)
        self._producer.init()


class StartsAtTheEnd(Lane):
    """Without progress, starts at the lane's end (FROM_LATEST)."""

    def _take(self) -> None:
        def latest(*args: Any) -> Start:
            start = read_start(*args)
            return start if start.progress.upto else start._replace(position=start.end)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers.lane, "read_start", latest)
            super()._take()


class RemembersFirst(Lane):
    """Lets go of results before they are known to stand (memory before the commit)."""

    def _write(self) -> None:
        done = list(self._hands.done())
        super()._write()
        self._hands.forget([offset for offset in done if offset in self._hands.offsets])


@pytest.mark.parametrize(
    "mutant",
    [
        ReadsFirst,
        EndFirst,
        RunsOld,
        HandsNothingBack,
        TakesDoubtForAbort,
        StartsAtTheEnd,
        RemembersFirst,
    ],
)
def test_the_checks_see_a_broken_rule(mutant: type[Lane]) -> None:
    def is_caught(seed: int) -> bool:
        try:
            return bool(Run(seed, mutant).play())
        except (LogError, AssertionError):
            return True  # it broke the log's or its own rules even before the checks

    assert any(is_caught(seed) for seed in range(SEEDS))
