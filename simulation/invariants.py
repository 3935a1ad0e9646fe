"""The judge: reads what a deployment writes, and finds what may never happen.

It knows the topics alone. `check` reads what is new in all of them and holds it against
everything before, so a whole history costs as much as its records; `check_end` asks for what
has to be true when nothing is left to happen. Both raise InvariantError.

A fairness rule is plugged in as an observer: `observe(decision)` sees every decision of every
shard once, in order, when the rules here have passed it.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from schemas.codec import DecodeError, batch_bodies, decode_header, decode_value
from schemas.decisions import Decision, DecisionRecord, Read
from schemas.log import Log, Partition, Reader, Record
from schemas.policy import Policy
from schemas.records import (
    Batch,
    BatchCancel,
    ControlRecord,
    Finished,
    HandedBack,
    LaneRecord,
    Outcome,
    Request,
    Result,
    Seen,
    WorkerRecord,
)
from schemas.topics import Topics
from simulation.judged import Asked, Decided, Ending, Lane
from simulation.judged_shard import JudgedShard
from simulation.rules import InvariantError, Rule

#: Records a poll.
POLL = 10_000


class Observer(Protocol):
    """A further rule, over decisions."""

    def observe(self, decision: Decision) -> None:
        """See the next decision of its shard; raise InvariantError if it breaks the rule."""


class Judge:
    """Judges one deployment, from its first record on."""

    def __init__(
        self, log: Log, topics: Topics, policy: Policy, observers: Iterable[Observer] = ()
    ) -> None:
        """`policy` is the first one: topics that later ones bring are met by `follow`."""
        self.ids: set[str] = set()  #: that came, in any topic
        self.results: dict[str, Result] = {}
        self._told: dict[int, deque[ControlRecord]] = defaultdict(deque)
        self.shards = {
            number: JudgedShard(number, self._between, self._next_said, self._told[number])
            for number in range(policy.topology.shards)
        }
        self._topics = topics
        self._observers = list(observers)
        self._asked: dict[Partition, dict[int, Asked]] = defaultdict(dict)
        self._said: dict[Lane, deque[tuple[int, WorkerRecord]]] = defaultdict(deque)
        self._sent: dict[tuple[Lane, int], tuple[Batch, list[bytes]]] = {}
        self._running: dict[tuple[Lane, int], Batch] = {}
        self._cancels: Counter[tuple[Lane, int, int]] = Counter()
        self._endings: dict[str, Ending] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._tallied: set[str] = set()
        self._positions: dict[Partition, int] = {}
        self._reader: Reader = log.reader()
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """A policy was published: read its topics too."""
        known = len(self._positions)
        for spec in self._topics.of(policy):
            for number in range(spec.partitions):
                self._positions.setdefault((spec.name, number), 0)
        if len(self._positions) > known:
            self._reader.assign(self._positions)

    # --- reading

    def check(self) -> None:
        """Judge everything that became visible since the last call.

        What a decision speaks of was written before it: requests and workers' words are taken
        first, then decisions, and results last.
        """
        new = self._new()
        self._take_in(new)
        for record in new:
            if record.topic == self._topics.decisions:
                self._decided(record)
        for record in new:
            if record.topic == self._topics.results:
                self._ended(record)
        if self._sent:
            (lane, number), _ = next(iter(self._sent.items()))
            raise InvariantError(Rule.AGREE, f"batch {number} on {lane}: nobody decided it")
        if any(self._cancels.values()):
            raise InvariantError(Rule.AGREE, f"cancels decided and not sent: {self._cancels}")
        self._cancels.clear()

    def _take_in(self, new: list[Record]) -> None:
        topics = self._topics
        requests, batches, workers = topics.requests(""), topics.batches(""), topics.workers("")
        for record in new:
            if record.topic.startswith(requests):
                self._came(record, record.topic[len(requests) :])
            elif record.topic.startswith(batches):
                self._sent_to((record.topic[len(batches) :], record.partition), record)
            elif record.topic == topics.control:
                with suppress(DecodeError):  # what nobody can read is passed over
                    self._told[record.partition].append(decode_value(record, ControlRecord))
        for record in new:
            if record.topic.startswith(workers):
                self._heard((record.topic[len(workers) :], record.partition), record)

    def _new(self) -> list[Record]:
        new: list[Record] = []
        while found := self._reader.poll(POLL, 0.0):
            new += found
        for record in new:
            self._positions[record.topic, record.partition] = record.offset + 1
        return new

    def _came(self, record: Record, tier: str) -> None:
        size = len(record.value) + sum(len(n) + len(v) for n, v in record.headers)
        try:
            meta: Request | None = decode_header(record, Request)
        except DecodeError:
            meta = None
        asked = Asked(meta, tier, record.timestamp_ms, record.value, size)
        self._asked[record.topic, record.partition][record.offset] = asked
        if meta is not None:
            self.ids.add(meta.id)

    def _between(self, partition: Partition, start: int, stop: int) -> list[tuple[int, Asked]]:
        """Requests of [start, stop) that were not asked for before."""
        taken = []
        waiting = self._asked[partition]
        for offset in list(waiting):
            if offset >= stop:
                break
            if offset < start:
                raise InvariantError(Rule.SEQUENCE, f"{partition}@{offset} was passed over")
            taken.append((offset, waiting.pop(offset)))
        return taken

    def _sent_to(self, lane: Lane, record: Record) -> None:
        said: LaneRecord = decode_header(record, LaneRecord)
        if isinstance(said, BatchCancel):
            self._cancels[lane, said.number, said.key] -= 1
            return
        if (lane, said.number) in self._sent:
            raise InvariantError(Rule.ONE_HAND, f"batch {said.number} is sent twice to {lane}")
        for item in said.items:
            if item.id in self.results:
                raise InvariantError(Rule.AFTER_END, f"{item.id} goes out in batch {said.number}")
        self._sent[lane, said.number] = (said, batch_bodies(said, record.value, record.place))
        self._running[lane, said.number] = said

    def _heard(self, lane: Lane, record: Record) -> None:
        said: WorkerRecord = decode_value(record, WorkerRecord)
        self._said[lane].append((record.offset, said))
        if not isinstance(said, Finished | HandedBack):
            return
        batch = self._running.pop((lane, said.number), None)
        if batch is None:
            case = f"batch {said.number} of {lane} ends, and is not there (any more)"
            raise InvariantError(Rule.ONE_HAND, case)
        if isinstance(said, Finished):
            for item, outcome in zip(batch.items, said.outcomes, strict=True):
                if item.key != outcome.key or item.id in self._outcomes:
                    raise InvariantError(Rule.ONE_RESULT, f"{item.id} is finished again")
                self._outcomes[item.id] = outcome
                self._tally(item.id)

    def _next_said(self, lane: Lane) -> WorkerRecord | None:
        said = self._said[lane]
        return said.popleft()[1] if said else None

    def _passed_over(self, step: Read) -> None:
        """What a lane said and nobody took in: slots alone, and only if it was deleted."""
        partition, prefix = (step.topic, step.partition), self._topics.workers("")
        if not step.topic.startswith(prefix):
            return
        said = self._said[step.topic[len(prefix) :], step.partition]
        while said and said[0][0] < step.position:
            offset, record = said.popleft()
            is_gone = offset < self._reader.bounds(partition).low
            if not is_gone or not isinstance(record, Seen):
                raise InvariantError(Rule.AGREE, f"{partition}@{offset} is passed over: {record}")

    # --- judging

    def _decided(self, record: Record) -> None:
        decision = decode_value(record, DecisionRecord)
        if not isinstance(decision, Decision):
            return
        decided = self.shards[record.partition].decide(decision)
        for step in decision.steps:
            if isinstance(step, Read):
                self._passed_over(step)
        self._agrees(decision, decided)
        for ending in decided.endings:
            if ending.id in self._endings:
                raise InvariantError(Rule.ONE_RESULT, f"{ending.id} is ended twice")
            self._endings[ending.id] = ending
            self._tally(ending.id)
        for cancel in decided.cancels:
            self._cancels[cancel] += 1
        for observer in self._observers:
            observer.observe(decision)

    def _agrees(self, decision: Decision, decided: Decided) -> None:
        """Each batch that was decided is on its lane, as it was decided."""
        for number, (lane, lives) in decided.batches.items():
            found = self._sent.pop((lane, number), None)
            if found is None:
                raise InvariantError(Rule.AGREE, f"batch {number} is not on {lane}")
            batch, bodies = found
            expected = [(life.key, life.meta.id, life.attempt) for life in lives]
            if [(item.key, item.id, item.attempt) for item in batch.items] != expected:
                raise InvariantError(Rule.AGREE, f"batch {number} holds {batch.items}")
            if (batch.picked_ms, batch.shard) != (decision.now_ms, decision.shard):
                raise InvariantError(Rule.AGREE, f"batch {number} is of {batch.picked_ms}")
            if bodies != [life.asked.body for life in lives]:
                raise InvariantError(Rule.BODY, f"batch {number}: a body was changed")
            for item, life in zip(batch.items, lives, strict=True):
                if (item.tenant, item.deadline_ms) != (life.meta.tenant, life.meta.deadline_ms):
                    raise InvariantError(Rule.AGREE, f"batch {number}: {item.id} was changed")
            endpoint = self.shards[decision.shard].endpoint(batch.items[0].endpoint)
            tokens = sum(item.tokens for item in batch.items)
            if len(batch.items) > 1 and endpoint and tokens > endpoint.batch_tokens:
                raise InvariantError(Rule.BATCH, f"batch {number} has {tokens} tokens")

    def _ended(self, record: Record) -> None:
        result: Result = decode_header(record, Result)
        if result.id not in self.ids:
            raise InvariantError(Rule.CAME, f"a result of {result.id!r}, which never came")
        if result.id in self.results:
            raise InvariantError(Rule.ONE_RESULT, f"{result.id}: a second one, {result}")
        self.results[result.id] = result
        self._tally(result.id)

    def _tally(self, request_id: str) -> None:
        """Hold a result against what ended the request, once both are known."""
        result = self.results.get(request_id)
        ending = self._endings.get(request_id)
        if result is None or ending is None or request_id in self._tallied:
            return
        self._tallied.add(request_id)
        outcome = self._outcomes.get(request_id)
        if ending.reason is not None:
            if (result.end, result.reason) != (ending.end, ending.reason) or result.picked_ms:
                raise InvariantError(Rule.AGREE, f"{result} ends as {ending}")
            if outcome is not None or result.usage.service_ms or result.usage.tokens:
                raise InvariantError(Rule.USAGE, f"{result} never ran, and used something")
        elif outcome is None or outcome.end is not result.end or ending.end is not result.end:
            raise InvariantError(Rule.AGREE, f"{result} was counted as {outcome}")
        elif outcome.usage != result.usage:
            raise InvariantError(Rule.USAGE, f"{result} was counted as {outcome}")

    # --- the end

    @property
    def is_over(self) -> bool:
        """Everything that came has its result, and every shard knows."""
        if self._running or not len(self.results) == len(self.ids) == len(self._endings):
            return False
        return not any(self._said.values()) and not any(self._told.values())

    def check_end(self) -> None:
        """Nothing is left to happen: everything has ended, everywhere."""
        missing = sorted(self.ids - self.results.keys())
        if missing:
            more = f"{len(missing)} of {len(self.ids)}"
            raise InvariantError(Rule.ENDS, f"{more} have no result: {', '.join(missing[:10])}")
        if self._running:
            raise InvariantError(Rule.ENDS, f"batches in nobody's hands: {list(self._running)}")
        for shard in self.shards.values():
            if shard.lives or shard.flights:
                case = f"shard {shard.shard} still has {len(shard.lives)} requests"
                raise InvariantError(Rule.ENDS, case)
        for unheard in (*self._said.values(), *self._told.values()):
            if unheard:
                raise InvariantError(Rule.ENDS, f"nobody took notice of {unheard}")
        untold = self.ids - self._tallied
        if untold:
            raise InvariantError(Rule.AGREE, f"ended without a decision: {sorted(untold)[:10]}")
