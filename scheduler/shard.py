"""One shard: take over, then cycle after cycle, each one transaction.

State runs ahead of the log by the cycle in flight; only a known commit keeps it. A certain
abort is published again byte for byte. Anything else (`InDoubtError`, `FencedError`, a
mismatch) drops the state: the log can rebuild it.

The commit of a full cycle is asked for aside, and the next cycle is read and decided meanwhile:
then two cycles are in flight. Nothing of the second is sent before the first one's commit is
known, and they are dropped together.
"""

from collections.abc import Callable, Sequence

from scheduler.backlog import Backlog
from scheduler.bodies import USUAL, Bodies, Limits, LostBodiesError
from scheduler.core.batches import due_ms
from scheduler.core.cycle import run_cycle
from scheduler.core.decided import Cycle
from scheduler.core.snapshot import dump
from scheduler.core.state import State
from scheduler.core.tenants import OFFSET_BITS
from scheduler.fold import Fold
from scheduler.inputs import Fault, InputReader, Taken
from scheduler.ports import Aside, Clock, Meter, Notes
from scheduler.publish import Outgoing, Publisher, decision_of, keys_of
from scheduler.recovery import RecoveryError, recover, take_over
from scheduler.story import WAY_OUT
from scheduler.transactions import AtOnce, Transactions
from schemas.codec import chain, encode, header
from schemas.decisions import Arrived, Chain, Picked, SnapshotChunk, WorkerSaid
from schemas.log import (
    Commit,
    Log,
    LogError,
    Partition,
    PositionLostError,
    UnavailableError,
)
from schemas.records import VERSION, Finished
from schemas.topics import Topics

#: Requests taken in or picked that make a cycle full: below, a thread costs more than it gives,
#: and who is not in a hurry for the next cycle had better know the end of this one.
FULL = 1_500
#: Bytes of decisions after which a snapshot is written if it takes less than one part in so many
#: of the time since the last one: who comes meanwhile waits for it, and is far from one in a
#: hundred.
SNAPSHOT_BYTES, SNAPSHOT_SHARE = 250_000, 200
#: ... and after which, or that part of the last one, this share is enough: it bounds what
#: recovery applies again. Most of a large one are ids that ended, and stand there time and again.
SNAPSHOT_BYTES_MAX, SNAPSHOT_PART, SNAPSHOT_SHARE_MAX = 1_500_000, 8, 100
#: ... and the longest time between two, also when idle.
SNAPSHOT_MS = 3_600_000
#: Bytes of one snapshot record.
CHUNK_BYTES = 500_000
#: Reading that was paused goes on below so much of what may wait.
RESUME_PERCENT = 90
#: How often frontiers are committed as ordinary offsets, for Kafka's own tools.
FRONTIER_MS = 1_000
#: ... and how much later after a failure.
FRONTIER_RETRY_MS = 30_000


class Shard:
    """The scheduler of one partition of `decisions`, while it is owned."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        shard: int,
        *,
        clock: Clock,
        meter: Meter,
        notes: Notes,
        limits: Limits = USUAL,
        warm: Fold | None = None,
        aside: Aside | None = None,
        full: int = FULL,
        backlog: Backlog | None = None,
    ) -> None:
        self.shard = shard
        self._backlog = backlog or Backlog()
        self._warm = warm  #: what a standby has read of it
        self._log = log
        self._topics = topics
        self._clock = clock
        self._meter = meter
        self._notes = notes
        self._transactions = Transactions(f"shard {shard}", aside or AtOnce(), meter, notes)
        self._full = full
        self._reader = log.reader(ahead=False)
        self._inputs = InputReader(log, self._reader, topics, shard)
        self.state = State(shard)
        self.ready = False  #: whether `turn` may be called; else `take_over` first
        self.limits = limits  #: what it may hold in memory; may be changed between turns
        self.bodies = self._no_bodies()
        self._digest = b""
        self._snapshot = -1
        self._snapshot_ms = self._snapshot_bytes = 0
        self._snapshot_took_ms = 0  #: of the last one that was written here
        self._bytes_since = 0
        self._frontier_ms = 0
        self._frontiers: dict[Partition, Commit] = {}
        self._met: list[tuple[str, str]] = []

    @property
    def transactional_id(self) -> str:
        """Fixed for ever: whoever initialises it last owns the shard."""
        return f"{self._topics.prefix}.shard.{self.shard}"

    @property
    def snapshot_offset(self) -> int:
        """Where the latest snapshot begins in `decisions`, -1 when there is none."""
        return self._snapshot

    def take_over(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """Own the shard: init, and read to an end asked for after it.

        `meanwhile` is other work, see `scheduler.recovery.take_over`.
        Raises RecoveryError, LogError; FencedError when what was in flight was fenced.
        """
        self.forget()
        warm, self._warm = self._warm, None
        producer = self._log.transactional(self.transactional_id)
        self._transactions.use(producer)
        recovered = take_over(self._log, producer, warm or self._fold(), self._fold, meanwhile)
        if recovered.state.seq == 0:
            self._check_new()
        self.state = recovered.state
        self.bodies = self._no_bodies() if recovered.bodies is None else recovered.bodies
        self.bodies.budget = self.limits.body_bytes
        self.bodies.follow(self.state)
        story = recovered.story
        self._digest = story.digest
        self._snapshot = story.snapshot
        self._bytes_since = story.bytes_since
        self._snapshot_ms = story.snapshot_ms or self._now()
        self._snapshot_bytes = story.snapshot_bytes
        self._inputs = InputReader(self._log, self._reader, self._topics, self.shard)
        self._follow()
        self._brake()
        self.ready = True
        self._notes.info(
            "shard taken over", shard=self.shard, seq=self.state.seq, live=len(self.state.ids)
        )

    def forget(self) -> None:
        """Drop the state and what is in flight: two states may be more than there is room for.

        Raises FencedError when the cycle in flight was: then the shard is another's.
        """
        self.ready = False
        self.state = State(self.shard)
        self.bodies = self._no_bodies()
        self._transactions.drop()

    def _fold(self) -> Fold:
        return Fold(self._log, self._topics, self.shard, self._notes, self._no_bodies())

    def _no_bodies(self) -> Bodies:
        return Bodies(self._log, self.limits.body_bytes)

    def _check_new(self) -> None:
        """An empty `decisions` beside frontiers means that it was lost, not that all is new."""
        topics = [t for t in self._log.topics() if t.startswith(self._topics.requests(""))]
        partitions = [
            (topic, number) for topic in topics for number in range(self._log.partitions(topic))
        ]
        committed = self._reader.committed(self._frontier_group, partitions) if partitions else {}
        known = {p: commit for p, commit in committed.items() if commit is not None}
        if known:
            if recover(self._log, self._topics, self.shard, self._notes).state.seq:
                raise UnavailableError(f"shard {self.shard}: another process decides meanwhile")
            (topic, number), commit = next(iter(known.items()))
            raise RecoveryError(
                f"{self._topics.decisions}[{self.shard}] is empty, yet {topic}[{number}] was "
                f"scheduled up to offset {commit.offset}: the decisions were lost. Restore the "
                "topic, or start a new deployment under another FAIRLANE_PREFIX."
            )

    @property
    def _frontier_group(self) -> str:
        return f"{self._topics.prefix}.frontiers.{self.shard}"

    def _follow(self) -> None:
        self._met = self._inputs.assign(self.state, lambda p: self._reader.bounds(p).low)

    def _brake(self) -> None:
        """Read no more requests when too many wait; go on when a tenth of them is done."""
        live, most = len(self.state.ids), self.limits.live_max
        was_paused = self._inputs.is_paused
        is_paused = live > (most * RESUME_PERCENT // 100 if was_paused else most)
        if is_paused == was_paused:
            return
        self._inputs.is_paused = is_paused
        self._follow()
        self._meter.gauge("scheduler_reading_paused", int(is_paused), shard=str(self.shard))
        if is_paused:
            self._meter.count("scheduler_reading_pauses", shard=str(self.shard))
            self._notes.warning(
                "no more requests are read: too many wait", shard=self.shard, live=live, most=most
            )
        else:
            self._notes.info("requests are read again", shard=self.shard, live=live)

    def turn(self, wait_s: float) -> bool:
        """One cycle: read, decide, commit. Returns whether anything was decided.

        Waits at most `wait_s` for input, less when a batch is due earlier. Raises
        FencedError, StateMismatchError, RecoveryError, or another LogError; then
        the state is unusable until `take_over`.
        """
        self.ready = False
        busy = self._turn(wait_s)
        self.ready = True
        return busy

    def _turn(self, wait_s: float) -> bool:
        now_ms = self._clock.now_ms()
        due = due_ms(self.state)
        if due is not None:
            wait_s = min(wait_s, max(0, due - now_ms) / 1000)
        document: bytes | None = self.state.document
        try:
            taken = self._inputs.poll(self.state, wait_s)
        except PositionLostError as error:
            passed = self._inputs.pass_over(self.state, error)
            if passed is None:
                message = f"{error}: records that were not read yet are gone. {WAY_OUT}"
                raise RecoveryError(message) from error
            self._notes.warning("gone unread, and not missed", shard=self.shard, what=str(error))
            taken, document = passed, None
        taken.inputs.topics, self._met = self._met, []
        cycle = run_cycle(self.state, taken.inputs, self._now())
        self._keep_bodies(taken)
        for fault in cycle.faults:
            self._notes.warning("fault", shard=self.shard, fault=fault)
        for unread in taken.faults:
            place = unread.record.place
            self._notes.warning("unreadable", place=place, error=unread.detail)
        arrived = sum([len(requests.arrivals) for requests in taken.inputs.requests])
        picked = sum([len(batch.requests) for batch in cycle.batches])
        is_busy = self._decide(cycle, taken.faults, is_full=max(arrived, picked) >= self._full)
        self.bodies.budget = self.limits.body_bytes
        self.bodies.fit(len(self.state.ids))
        if self.state.document != document:
            self._follow()
        self._brake()
        now_ms = self._now()
        self._backlog.turn(self.state, taken.inputs.workers, cycle.batches, now_ms)
        self._housekeeping(now_ms)
        return is_busy

    def _now(self) -> int:
        return self._clock.now_ms()

    def _decide(self, cycle: Cycle, faults: Sequence[Fault] = (), *, is_full: bool = False) -> bool:
        """Publish a cycle that was just run; False when it decided nothing.

        When it returns, the commit of the cycle before is known, and of this one if not `is_full`.
        """
        if not cycle.steps:
            self._transactions.settle()
            return False
        self.state.seq += 1
        self._publish(cycle, faults, is_full=is_full)
        self._forget_bodies(cycle)
        self._measure(cycle)
        return True

    def _keep_bodies(self, taken: Taken) -> None:
        """Keep what was read, also of what is refused: until it is published."""
        for requests, bodies in zip(taken.inputs.requests, taken.bodies, strict=True):
            base = self.state.part_of[requests.topic, requests.partition] << OFFSET_BITS
            keys = [base | arrival[0] for arrival in requests.arrivals]
            self.bodies.keep_all(keys, bodies)

    def _forget_bodies(self, cycle: Cycle) -> None:
        """Drop the bodies of what is not live any more, after a cycle is published."""
        ended = [live.key for live, _ in cycle.ended]
        for step in cycle.steps:
            if isinstance(step, Picked):
                break  # everything that was read stands before the first pick
            if isinstance(step, Arrived) and step.refused:
                base = self.state.part_of[step.topic, step.partition] << OFFSET_BITS
                ended += [base | offset for offset, _ in step.refused]
            elif isinstance(step, WorkerSaid) and isinstance(step.record, Finished):
                ended += [outcome.key for outcome in step.record.outcomes]
        self.bodies.drop_all(ended)

    # --- the transaction

    def _publish(self, cycle: Cycle, faults: Sequence[Fault], *, is_full: bool) -> None:
        keys = keys_of(self.state, cycle)
        try:
            bodies = self.bodies.take(keys)
        except (LostBodiesError, PositionLostError) as error:
            raise RecoveryError(
                f"{error}: requests that wait can't be served. {WAY_OUT}"
            ) from error
        publisher = Publisher(self._topics, keys, bodies)
        value = encode(decision_of(self.state, cycle))
        digest = chain(self._digest, value)
        seal = Chain(VERSION, self.state.seq, digest, self._snapshot)
        records = [
            Outgoing(self._topics.decisions, self.shard, value, None, header(seal)),
            *publisher.records(self.state, cycle, faults),
        ]
        if is_full:
            self._transactions.send_aside(records)
        else:
            self._transactions.send(records)
        self._digest = digest
        self._bytes_since += len(value)

    # --- now and then

    def _housekeeping(self, now_ms: int) -> None:
        """What is due beside cycles; what is written then follows from known commits only."""
        since_ms = now_ms - self._snapshot_ms
        large = max(SNAPSHOT_BYTES_MAX, self._snapshot_bytes // SNAPSHOT_PART)
        share = SNAPSHOT_SHARE_MAX if self._bytes_since >= large else SNAPSHOT_SHARE
        is_due = self._bytes_since >= SNAPSHOT_BYTES and since_ms >= share * self._snapshot_took_ms
        if self.state.seq and (is_due or since_ms >= SNAPSHOT_MS):
            self.write_snapshot()
            self._snapshot_took_ms = self._now() - now_ms
        if now_ms - self._frontier_ms >= FRONTIER_MS:
            self._frontier_ms = now_ms
            self._transactions.settle()
            self._commit_frontiers()

    def write_snapshot(self) -> None:
        """Write the state as it is after the last decision, in one transaction.

        Positions are moved to the ends that were reached first, in a decision of their own.
        """
        self._decide(run_cycle(self.state, self._inputs.reached_ends(self.state), self._now()))
        data = dump(self.state)
        pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        digest = b""
        records = []
        for index, piece in enumerate(pieces):
            chunk = SnapshotChunk(VERSION, self.shard, self.state.seq, index, len(pieces), piece)
            value = encode(chunk)
            digest = chain(digest, value)
            seal = header(Chain(VERSION, self.state.seq, digest, self._snapshot))
            records.append(Outgoing(self._topics.decisions, self.shard, value, None, seal))
        offsets: list[int] = []

        def delivered(offset: int | None, error: LogError | None) -> None:
            if error is None and offset is not None:
                offsets.append(offset)

        self._transactions.send(records, delivered)
        self._digest, self._snapshot = digest, offsets[-1]
        self._bytes_since, self._snapshot_ms = 0, self._clock.now_ms()
        self._snapshot_bytes = len(data)
        self._notes.info("snapshot written", shard=self.shard, seq=self.state.seq, bytes=len(data))

    def conclude(self) -> None:
        """Before a clean stop: with nothing left in it a shard may rest longer than retention.

        Then no decision behind the snapshot names a request that is deleted meanwhile.
        """
        if self.ready and not self.state.ids and self._bytes_since:
            self.write_snapshot()

    def _commit_frontiers(self) -> None:
        commits = {
            part.partition: Commit(self.state.frontier(part), "") for part in self.state.parts
        }
        changed = {p: c for p, c in commits.items() if self._frontiers.get(p) != c}
        if not changed:
            return
        try:
            self._reader.commit(self._frontier_group, changed)
        except LogError as error:  # for other tools only: tried again, but not soon
            self._frontier_ms += FRONTIER_RETRY_MS
            self._notes.warning("frontiers not committed", shard=self.shard, error=str(error))
        else:
            self._frontiers = commits

    def _measure(self, cycle: Cycle) -> None:
        meter = self._meter
        for batch in cycle.batches:
            meter.count("scheduler_batches", pool=batch.pool)
            meter.count("scheduler_picks", len(batch.requests), pool=batch.pool)
        for _, reason in cycle.ended:
            meter.count("scheduler_ended", reason=reason)
        for name, pool in self.state.pools.items():
            meter.gauge("scheduler_waiting", pool.waiting, pool=name)
        self.bodies.measure(meter, self.shard)

    def close(self) -> None:
        """Free the clients. What is in flight ends first: the log knows how."""
        if self._warm is not None:
            self._warm.close()
        self._transactions.close()
        self._reader.close()
