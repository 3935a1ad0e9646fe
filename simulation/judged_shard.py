"""The rules about one shard's decisions, folded anew from the log alone.

This is no second scheduler: it keeps who is where (waiting, in a lane's hands, ended) and
checks that each step was allowed; it chooses nothing and knows no cost. It is written apart
from scheduler.core and imports nothing of it.

What belongs here: one shard's decisions, step by step. What does not: whether the other
topics say the same (simulation.invariants).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from schemas.decisions import (
    Arrived,
    ControlSaid,
    Decision,
    Ended,
    Picked,
    PolicySet,
    Read,
    Released,
    Requeued,
    Sealed,
    Unpaused,
    WorkerSaid,
)
from schemas.log import Partition
from schemas.policy import Endpoint, Policy, Tenant, decode_policy
from schemas.reasons import Reason
from schemas.records import (
    Cancel,
    ControlRecord,
    End,
    Finished,
    HandedBack,
    Request,
    Seen,
    WorkerRecord,
    pack_key,
)
from simulation.judged import Asked, Decided, Ending, Lane, Life, end_of, told
from simulation.judged_limits import Limits, batch_fault
from simulation.rules import InvariantError, Rule

#: Timers have seconds: what expires in one is ended by its end.
TIMER_MS = 1_000


class JudgedShard:
    """Folds decisions; `asked` gives the request at a place, `said` what a lane says next."""

    def __init__(
        self,
        shard: int,
        asked: Callable[[Partition, int, int], list[tuple[int, Asked]]],
        said: Callable[[Lane], WorkerRecord | None],
        told: deque[ControlRecord],
    ) -> None:
        self.shard = shard
        self.seq = 0
        self.now_ms = 0
        self.lives: dict[int, Life] = {}
        self._rules: dict[type, Callable[[Any, Decided], None]] = {
            PolicySet: self._set_policy,
            Arrived: self._arrived,
            ControlSaid: self._control,
            WorkerSaid: self._worker_said,
            Read: self._read,
            Ended: self._ended,
            Requeued: self._requeued,
            Released: self._released,
            Unpaused: lambda step, _: self._limits.unpaused(step, self.now_ms),
            Picked: self._picked,
            Sealed: self._sealed,
        }
        self._limits = Limits(self.lives, self._break)
        self._asked = asked
        self._said = said
        self._told = told
        self._ids: dict[str, int | None] = {}  # None: ended
        self._parts: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._pending: set[tuple[Partition, int]] = set()
        self._twins: dict[tuple[Partition, int], str] = {}
        self._again: set[tuple[Partition, int]] = set()
        self._unwanted: dict[int, Life] = {}
        self._flights: dict[Lane, dict[int, list[int]]] = {}
        self._slots: dict[Lane, int] = {}
        self._open: list[Life] = []
        self._number = 1
        self._policy: Policy | None = None
        self._tenants: dict[str, Tenant] = {}
        self._endpoints: dict[str, Endpoint] = {}

    @property
    def flights(self) -> int:
        """Batches that have not ended."""
        return sum(map(len, self._flights.values()))

    def endpoint(self, name: str) -> Endpoint | None:
        """An endpoint under the policy that holds."""
        return self._endpoints.get(name)

    def decide(self, decision: Decision) -> Decided:
        """Take one decision. Raises InvariantError."""
        if decision.seq != self.seq + 1:
            self._break(Rule.SEQUENCE, f"decision {decision.seq} follows {self.seq}")
        if decision.now_ms < self.now_ms:
            self._break(Rule.CLOCK, f"from {self.now_ms} to {decision.now_ms}")
        self.seq, self.now_ms = decision.seq, decision.now_ms
        decided = Decided()
        for step in decision.steps:
            judged = self._rules.get(type(step))
            if judged is not None:
                judged(step, decided)
        if self._open:
            self._break(Rule.AGREE, f"{self._open[0].meta.id} is picked and in no batch")
        for life in self._unwanted.values():
            if not life.batch:
                self._break(Rule.CANCELLED, f"{life.meta.id} is in nobody's hands and goes on")
        self._limits.is_idle(self._pools_with_room(), self.now_ms)
        return decided

    def _break(self, rule: Rule, case: str) -> None:
        raise InvariantError(rule, f"shard {self.shard}, decision {self.seq}: {case}")

    def _life(self, key: int, what: str) -> Life:
        life = self.lives.get(key)
        if life is None:
            self._break(Rule.AFTER_END, f"{what}: request {key:#x} is not live")
        assert life is not None
        return life

    def _moved(self, partition: Partition, position: int) -> None:
        if position < self._positions.get(partition, 0):
            self._break(Rule.SEQUENCE, f"the position in {partition} goes back to {position}")
        self._positions[partition] = position

    def _read(self, step: Read, _: Decided) -> None:
        self._moved((step.topic, step.partition), step.position)

    def _set_policy(self, step: PolicySet, _: Decided) -> None:
        policy = decode_policy(step.document)
        self._policy = policy
        self._tenants = {tenant.name: tenant for tenant in policy.tenants}
        self._endpoints = {endpoint.name: endpoint for endpoint in policy.endpoints}
        self._limits.follow(policy)

    # --- coming

    def _arrived(self, step: Arrived, decided: Decided) -> None:
        partition = (step.topic, step.partition)
        index = self._parts.setdefault(partition, len(self._parts))
        if step.start != self._positions.get(partition, step.start):
            self._break(Rule.SEQUENCE, f"{partition} goes on at {step.start}")
        self._moved(partition, step.stop)
        refused = dict(step.refused)
        for offset, asked in self._asked(partition, step.start, step.stop):
            reason = refused.pop(offset, None)
            key = pack_key(index, offset)
            was_unwanted = (partition, offset) in self._pending
            self._pending.discard((partition, offset))
            if asked.meta is None:
                if reason not in (Reason.UNREADABLE, Reason.UNKNOWN_VERSION):
                    self._break(Rule.REASON, f"an unreadable request is taken for {reason}")
            elif reason is None:
                self._admit(key, asked.meta, asked, was_unwanted)
            elif reason == Reason.DUPLICATE:
                if was_unwanted:  # its cancel is said once more, of the twin
                    self._again.add((partition, offset))
                self._duplicate((partition, offset), asked.meta)
            else:
                self._refuse(asked.meta, asked, reason, was_unwanted)
                decided.endings.append(Ending(asked.meta.id, end_of(reason), reason))
        if refused:
            self._break(Rule.CAME, f"refused in {partition}: {refused}")

    def _admit(self, key: int, meta: Request, asked: Asked, was_unwanted: bool) -> None:
        if meta.id in self._ids:
            self._break(Rule.ONE_RESULT, f"{meta.id} is taken in a second time")
        if was_unwanted:
            self._break(Rule.CANCELLED, f"{meta.id} was cancelled before it came")
        if self._why_not(meta, asked.tier) is Reason.TIER_NOT_ALLOWED:
            self._break(Rule.POLICY, f"{meta.id} of {meta.tenant} is taken in to {asked.tier}")
        if self._why_not(meta, asked.tier) is None:
            if self._over_ms(meta, asked) >= 0:
                self._break(Rule.EXPIRED, f"{meta.id} is taken in and has expired")
            if full := self._limits.waiting_is_full(meta):
                self._break(Rule.WAITING, f"{meta.id} is taken in: {full}")
        self._ids[meta.id] = key
        self.lives[key] = Life(key, meta, asked)

    def _over_ms(self, meta: Request, asked: Asked) -> int:
        """For how long a request has waited too long, or its deadline is over; below 0: not yet."""
        over_ms = self.now_ms - asked.arrived_ms - self._endpoints[meta.endpoint].wait_ms_max
        return max(over_ms, self.now_ms - meta.deadline_ms) if meta.deadline_ms else over_ms

    def _duplicate(self, place: tuple[Partition, int], meta: Request) -> None:
        if meta.id not in self._ids:
            self._break(Rule.REASON, f"{meta.id} is dropped as a duplicate of nothing")
        self._twins[place] = meta.id

    def _refuse(self, meta: Request, asked: Asked, reason: str, was_unwanted: bool) -> None:
        self._ids[meta.id] = None
        self._is_so(meta, asked.tier, reason, was_unwanted)
        if reason == Reason.WAITING_LIMIT and not self._limits.waiting_is_full(meta):
            self._break(Rule.WAITING, f"{meta.id} is refused, and more may wait")
        is_over = reason in (Reason.EXPIRED, Reason.DEADLINE)
        if is_over and self._over_ms(meta, asked) < 0:
            self._break(Rule.REASON, f"{meta.id} is refused as {reason}, and is in time")

    def _why_not(self, meta: Request, tier: str) -> Reason | None:
        tenant = self._tenants.get(meta.tenant)
        if tenant is None:
            return Reason.UNKNOWN_TENANT
        if meta.endpoint not in self._endpoints:
            return Reason.UNKNOWN_ENDPOINT
        return None if tier in tenant.tiers else Reason.TIER_NOT_ALLOWED

    def _may_run(self, meta: Request, tier: str) -> None:
        reason = self._why_not(meta, tier)
        if reason is not None:
            self._break(Rule.POLICY, f"{meta.id} of {meta.tenant}: {reason}")

    def _is_so(self, meta: Request, tier: str, reason: str, was_cancelled: bool) -> None:
        """Reasons that this oracle can check are so; others are let pass."""
        endpoint = self._endpoints.get(meta.endpoint)
        by_policy = (Reason.UNKNOWN_TENANT, Reason.UNKNOWN_ENDPOINT, Reason.TIER_NOT_ALLOWED)
        is_wrong = (
            (reason in by_policy and self._why_not(meta, tier) != reason)
            or (reason == Reason.CANCELLED and not was_cancelled)
            or (reason == Reason.DEADLINE and not meta.deadline_ms)
            or (reason == Reason.DUPLICATE)
            or (reason == Reason.ATTEMPTS and endpoint is None)
        )
        if is_wrong:
            self._break(Rule.REASON, f"{meta.id} of {meta.tenant} in {tier}: {reason}")

    # --- going

    def _control(self, step: ControlSaid, decided: Decided) -> None:
        record = step.record
        is_told = bool(self._told) and self._told[0] == record
        if is_told:
            self._told.popleft()
        if not isinstance(record, Cancel):  # of no single request
            if not is_told:
                self._break(Rule.AGREE, f"nobody told the shard {record}")
            self._limits.control(record)
            return
        place = ((record.topic, record.partition), record.offset)
        if not is_told and place not in self._again:
            self._break(Rule.AGREE, f"nobody told the shard {record}")
        if not is_told:
            self._again.remove(place)
        partition = (record.topic, record.partition)
        if record.offset >= self._positions.get(partition, 0):
            self._pending.add((partition, record.offset))
            return
        key: int | None = pack_key(self._parts[partition], record.offset)
        twin = self._twins.get((partition, record.offset))
        if twin is not None:
            key = self._ids.get(twin)
        life = self.lives.get(key) if key is not None else None
        if life is None:
            return
        life.is_cancelled = True
        self._unwanted[life.key] = life
        for lane, flights in self._flights.items():
            if life.batch in flights:
                decided.cancels.append((lane, life.batch, life.key))

    def _ended(self, step: Ended, decided: Decided) -> None:
        life = self._life(step.key, "ended")
        meta = life.meta
        if life.batch:
            self._break(Rule.ONE_HAND, f"{meta.id} is ended while batch {life.batch} has it")
        if life.is_cancelled and step.reason != Reason.CANCELLED:
            self._break(Rule.CANCELLED, f"{meta.id} ends as {step.reason}")
        self._is_so(meta, life.asked.tier, step.reason, life.is_cancelled)
        endpoint = self._endpoints.get(meta.endpoint)
        if step.reason == Reason.EXPIRED and endpoint is not None:
            left_ms = life.asked.arrived_ms + endpoint.wait_ms_max - self.now_ms
            if left_ms > 0:
                self._break(Rule.REASON, f"{meta.id} expires {left_ms} ms too early")
        if step.reason == Reason.ATTEMPTS and life.handed_back < life.attempt:
            self._break(Rule.REASON, f"{meta.id}: {life.attempt} attempts")
        self._close(life)
        decided.endings.append(Ending(meta.id, end_of(step.reason), step.reason))

    def _close(self, life: Life) -> None:
        del self.lives[life.key]
        self._unwanted.pop(life.key, None)
        self._ids[life.meta.id] = None

    # --- lanes

    def _worker_said(self, step: WorkerSaid, decided: Decided) -> None:
        lane = (step.pool, step.lane)
        said = self._said(lane)
        record = step.record
        if told(said) != told(record):
            self._break(Rule.AGREE, f"{lane} said {said!r}; taken for {record!r}")
        flights = self._flights.setdefault(lane, {})
        match record:
            case Seen():
                self._slots[lane] = record.slots
            case Finished():
                keys = self._land(lane, flights, record.number)
                if keys != [outcome.key for outcome in record.outcomes]:
                    self._break(Rule.AGREE, f"batch {record.number} ends with other requests")
                for outcome in record.outcomes:
                    life = self._life(outcome.key, "finished")
                    self._close(life)
                    decided.endings.append(Ending(life.meta.id, outcome.end))
                    if outcome.end is End.CANCELLED and not life.is_cancelled:
                        self._break(Rule.CANCELLED, f"{life.meta.id}: nobody cancelled it")
            case HandedBack():
                for key in self._land(lane, flights, record.number):
                    life = self._life(key, "handed back")
                    life.batch = 0
                    life.handed_back += 1
                    life.is_flying, life.is_back = False, True
            case _:  # advice
                pass

    def _land(self, lane: Lane, flights: dict[int, list[int]], number: int) -> list[int]:
        keys = flights.pop(number, None)
        if keys is None:
            self._break(Rule.ONE_HAND, f"batch {number} is not with {lane}")
        return keys or []

    def _requeued(self, step: Requeued, _: Decided) -> None:
        life = self._life(step.key, "queued again")
        if life.batch:
            self._break(Rule.ONE_HAND, f"{life.meta.id} is queued while batch {life.batch} has it")
        if not life.attempt <= step.attempt <= life.handed_back:
            self._break(Rule.AGREE, f"{life.meta.id}: attempt {step.attempt} after {life}")
        life.attempt, life.not_before_ms = step.attempt, step.not_before_ms
        life.is_back, life.is_held = False, step.not_before_ms > self.now_ms

    def _released(self, step: Released, _: Decided) -> None:
        self._life(step.key, "released").is_held = False

    def _picked(self, step: Picked, _: Decided) -> None:
        life = self._life(step.key, "picked")
        meta, asked = life.meta, life.asked
        if life.batch or life in self._open:
            self._break(Rule.ONE_HAND, f"{meta.id} is picked while batch {life.batch} has it")
        if life.is_cancelled:
            self._break(Rule.CANCELLED, f"{meta.id} is picked")
        self._may_run(meta, asked.tier)
        if self.now_ms < life.not_before_ms:
            self._break(Rule.ONE_HAND, f"{meta.id} is picked before its pause is over")
        endpoint = self._endpoints[meta.endpoint]
        late_ms = self.now_ms + endpoint.service_ms - meta.deadline_ms
        if meta.deadline_ms and late_ms > 0:
            self._break(Rule.EXPIRED, f"{meta.id} is picked {late_ms} ms too late to be in time")
        late_ms = self.now_ms - asked.arrived_ms - endpoint.wait_ms_max
        if late_ms >= TIMER_MS:
            self._break(Rule.EXPIRED, f"{meta.id} is picked {late_ms} ms after it has expired")
        self._limits.picked(life)
        life.is_flying = True
        self._open.append(life)

    def _room(self, lane: Lane) -> int:
        """Batches that a lane may be sent."""
        assert self._policy is not None
        pool, slots = self._policy.pool(lane[0]), self._slots.get(lane, 0)
        room = slots + pool.prefetch if slots and pool else 0
        return room - len(self._flights.get(lane, ()))

    def _pools_with_room(self) -> list[str]:
        return [lane[0] for lane in self._slots if self._room(lane) > 0]

    def _sealed(self, step: Sealed, decided: Decided) -> None:
        lane = (step.pool, step.lane)
        if step.number != self._number:
            self._break(Rule.SEQUENCE, f"batch {step.number}; the next is {self._number}")
        self._number += 1
        flights = self._flights.setdefault(lane, {})
        if self._room(lane) <= 0:
            self._break(Rule.ROOM, f"{lane} has {len(flights)} batches and no room for more")
        if not self._open:
            self._break(Rule.BATCH, f"batch {step.number} is empty")
        for life in self._open:
            self._may_run(life.meta, life.asked.tier)
            if self._endpoints[life.meta.endpoint].pool != step.pool:
                self._break(Rule.POLICY, f"{life.meta.id} is sent to {step.pool}")
            life.batch = step.number
        fault = batch_fault(self._open, self._endpoints[self._open[0].meta.endpoint])
        if fault:
            self._break(Rule.BATCH, f"batch {step.number}: {fault}")
        flights[step.number] = [life.key for life in self._open]
        decided.batches[step.number] = (lane, self._open)
        self._open = []
