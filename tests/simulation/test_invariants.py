"""Controls: each rule is broken on purpose, in the log or in the code, and has to be noticed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from schemas.codec import decode_header, decode_value, encode, header
from schemas.decisions import (
    Arrived,
    ControlSaid,
    Decision,
    DecisionRecord,
    Ended,
    Picked,
    PolicySet,
    Sealed,
    Step,
    WorkerSaid,
)
from schemas.log import Record
from schemas.policy import decode_policy, encode_policy
from schemas.records import (
    VERSION,
    Batch,
    BatchCancel,
    Cancel,
    End,
    Finished,
    LaneRecord,
    Pause,
    Result,
    Seen,
    Usage,
    WorkerRecord,
)
from simulation.door import Arrival
from simulation.draw import Chosen
from simulation.history import History
from simulation.invariants import Judge
from simulation.process import Fleetmate
from simulation.rules import InvariantError, Rule
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings


def history() -> History:
    """A history with everything in it: batches, cancels, expiry, hand-backs, duplicates."""
    engine = SimulatedSettings(fixed_ms=60, per_token_us=40)
    arrivals = [
        Arrival(
            30 * number,
            ("acme", "globex")[number % 2],
            ("embed", "embed", "chat")[number % 3],
            ("gold", "standard")[number % 2],
            b"body %d " % number * 20,
            deadline_ms=70 if number % 5 == 0 else 0,
            id=f"r{number:02d}",
        )
        for number in range(90)
    ]
    chosen = Chosen(
        policy=embed_policy(service_ms=20),
        schedulers=1,
        mates=(Fleetmate("embed", 1, engine), Fleetmate("chat", 1, engine)),
        arrivals=arrivals,
        agents=[],
        again=[(7, 40), (30, 900)],
        cancelled=[(3, -1), (10, 0), (11, 20), (22, 70), (40, 90), (41, 5_000)],
        poison=frozenset(),
        mean=0,
        kinds=(),
        events=[(700, "kill worker"), (1_500, "snapshot"), (1_900, "kill scheduler")],
        stop_ms=2_700,
    )
    return History(1, chosen=chosen)


def finished() -> History:
    played = history()
    played.run()
    return played


def judge(history: History) -> Rule | None:
    """The rule that a fresh judge finds broken in the history's log."""
    fleet = history.fleet
    fresh = Judge(fleet.log, fleet.topics, fleet.policy)
    fresh.follow(history.chosen.policy)
    try:
        fresh.check()
        fresh.check_end()
    except InvariantError as error:
        return error.rule
    return None


def slots(history: History, topic: str) -> list[list[Record | None]]:
    """The records of every partition of a topic, to be changed."""
    parts = history.fleet.log._store.parts
    return [part.slots for (name, _), part in parts.items() if name.startswith(topic)]


def change(history: History, topic: str, edit: Callable[[Record], Record | None]) -> None:
    """Replace the first record for which `edit` has another."""
    for records in slots(history, topic):
        for index, record in enumerate(records):
            edited = edit(record) if record is not None else None
            if edited is not None:
                records[index] = edited
                return
    raise AssertionError(f"nothing to change in {topic}")


def drop(history: History, topic: str, which: Callable[[Record], bool] = lambda _: True) -> None:
    """Take one record out, from the middle of its partition."""
    for records in slots(history, topic):
        found = [i for i, record in enumerate(records) if record is not None and which(record)]
        if found:
            records[found[len(found) // 2]] = None
            return
    raise AssertionError(f"nothing to drop in {topic}")


def again(history: History, topic: str, which: Callable[[Record], bool] = lambda _: True) -> None:
    """Write one record a second time, at the end of its partition."""
    for records in slots(history, topic):
        for record in records:
            if record is not None and which(record):
                history.fleet.log.producer().send(
                    record.topic, record.partition, record.value, headers=record.headers
                )
                return
    raise AssertionError(f"nothing to repeat in {topic}")


def decided(history: History, edit: Callable[[Decision], Decision | None]) -> None:
    """Change one decision."""

    def edited(record: Record) -> Record | None:
        decision = decode_value(record, DecisionRecord)
        after = edit(decision) if isinstance(decision, Decision) else None
        return record._replace(value=encode(after)) if after is not None else None

    change(history, history.fleet.topics.decisions, edited)


def stepped(
    history: History, kind: type[Any], edit: Callable[[Any], Step | None], *, adds: bool = False
) -> None:
    """Change the first step of a kind for which `edit` has another, or add one after it."""

    def edited(decision: Decision) -> Decision | None:
        for at, step in enumerate(decision.steps):
            after = edit(step) if isinstance(step, kind) else None
            if after is not None:
                kept = (step, after) if adds else (after,)
                steps = (*decision.steps[:at], *kept, *decision.steps[at + 1 :])
                return msgspec.structs.replace(decision, steps=steps)
        return None

    decided(history, edited)


def policy_with(history: History, **fields: Any) -> None:
    """The scheduler was told another policy than the one it followed."""

    def edit(step: PolicySet) -> Step:
        policy = decode_policy(step.document)
        endpoints = tuple(msgspec.structs.replace(e, **fields) for e in policy.endpoints)
        return PolicySet(encode_policy(msgspec.structs.replace(policy, endpoints=endpoints)))

    stepped(history, PolicySet, edit)


# --- one way to break each rule, in the log


def one_result(history: History) -> None:
    again(history, history.fleet.topics.results)


def came(history: History) -> None:
    result = header(Result(VERSION, "nobody's", "acme", "chat", End.SUCCEEDED))
    history.fleet.log.producer().send(history.fleet.topics.results, 0, b"", headers=result)


def after_end(history: History) -> None:
    picks: list[Picked] = []

    def first(step: Picked) -> Step | None:
        picks.append(step)
        return picks[0] if len(picks) > 50 else None

    stepped(history, Picked, first)


def one_hand(history: History) -> None:
    workers = history.fleet.topics.workers("")
    again(history, workers, lambda r: isinstance(decode_value(r, WorkerRecord), Finished))


def room(history: History) -> None:
    """Every lane was said to have more slots than its holder has."""
    for records in slots(history, history.fleet.topics.workers("")):
        for index, record in enumerate(records):
            if record is not None and isinstance(decode_value(record, WorkerRecord), Seen):
                records[index] = record._replace(value=encode(Seen(VERSION, 0)))

    def none(step: Step) -> Step:
        if isinstance(step, WorkerSaid) and isinstance(step.record, Seen):
            return WorkerSaid(step.pool, step.lane, Seen(VERSION, 0))
        return step

    for records in slots(history, history.fleet.topics.decisions):
        for index, record in enumerate(records):
            decision = decode_value(record, DecisionRecord) if record is not None else None
            if record is not None and isinstance(decision, Decision):
                steps = tuple(none(step) for step in decision.steps)
                after = msgspec.structs.replace(decision, steps=steps)
                records[index] = record._replace(value=encode(after))


def batch(history: History) -> None:
    policy_with(history, batch_bytes=400)


def sequence(history: History) -> None:
    drop(history, history.fleet.topics.decisions)


def clock(history: History) -> None:
    decided(history, lambda d: msgspec.structs.replace(d, now_ms=1) if d.seq > 20 else None)


def expired(history: History) -> None:
    policy_with(history, service_ms=3_000_000)


def cancelled(history: History) -> None:
    """The shard was told to cancel what it had just taken in, and went on with it."""

    def edit(step: Arrived) -> Step | None:
        offset = step.stop - 1
        if step.refused or offset < step.start:
            return None
        cancel = Cancel(VERSION, step.topic, step.partition, offset)
        history.fleet.log.producer().send(history.fleet.topics.control, 0, encode(cancel))
        return ControlSaid(cancel)

    for records in slots(history, history.fleet.topics.control):
        records.clear()
    decided(history, without_control)
    stepped(history, Arrived, edit, adds=True)


def without_control(decision: Decision) -> Decision | None:
    kept = tuple(step for step in decision.steps if not isinstance(step, ControlSaid))
    return msgspec.structs.replace(decision, steps=kept) if kept != decision.steps else None


def reason(history: History) -> None:
    stepped(history, Ended, lambda step: Ended(step.key, "unknown_tenant"))


def policy(history: History) -> None:
    def edit(step: PolicySet) -> Step:
        known = decode_policy(step.document)
        return PolicySet(encode_policy(msgspec.structs.replace(known, tenants=())))

    stepped(history, PolicySet, edit)


def paused(history: History) -> None:
    """A tenant was paused before anything came, and served as if it were not."""
    for records in slots(history, history.fleet.topics.control):
        records.clear()
    decided(history, without_control)
    pause = Pause(VERSION, "acme", "")
    history.fleet.log.producer().send(history.fleet.topics.control, 0, encode(pause))
    stepped(history, PolicySet, lambda _: ControlSaid(pause), adds=True)


def in_flight(history: History) -> None:
    policy_with(history, in_flight=1)


def waiting(history: History) -> None:
    policy_with(history, waiting=0)


def idle(history: History) -> None:
    """Batches were due at once, and waited for their time."""
    policy_with(history, batch_wait_ms=0)


def agree(history: History) -> None:
    def edit(record: Record) -> Record | None:
        said: LaneRecord = decode_header(record, LaneRecord)
        if not isinstance(said, Batch) or len(said.items) == 1:
            return None
        turned = msgspec.structs.replace(said, picked_ms=said.picked_ms + 1)
        return record._replace(headers=tuple(header(turned)))

    change(history, history.fleet.topics.batches(""), edit)


def body(history: History) -> None:
    def edit(record: Record) -> Record | None:
        if isinstance(decode_header(record, LaneRecord), BatchCancel):
            return None
        return record._replace(value=b"?" + record.value[1:])

    change(history, history.fleet.topics.batches(""), edit)


def usage(history: History) -> None:
    def edit(record: Record) -> Record | None:
        result: Result = decode_header(record, Result)
        if result.end is not End.SUCCEEDED:
            return None
        more = msgspec.structs.replace(result, usage=Usage(input_tokens=1, output_tokens=7))
        return record._replace(headers=tuple(header(more)))

    change(history, history.fleet.topics.results, edit)


def ends(history: History) -> None:
    drop(history, history.fleet.topics.results)


IN_THE_LOG: dict[Rule, Callable[[History], None]] = {
    Rule.ONE_RESULT: one_result,
    Rule.CAME: came,
    Rule.AFTER_END: after_end,
    Rule.ONE_HAND: one_hand,
    Rule.ROOM: room,
    Rule.BATCH: batch,
    Rule.SEQUENCE: sequence,
    Rule.CLOCK: clock,
    Rule.EXPIRED: expired,
    Rule.CANCELLED: cancelled,
    Rule.REASON: reason,
    Rule.POLICY: policy,
    Rule.PAUSED: paused,
    Rule.IN_FLIGHT: in_flight,
    Rule.WAITING: waiting,
    Rule.IDLE: idle,
    Rule.AGREE: agree,
    Rule.BODY: body,
    Rule.USAGE: usage,
    Rule.ENDS: ends,
}


def test_a_log_as_it_was_written_breaks_no_rule() -> None:
    history = finished()
    assert judge(history) is None
    assert {result.end for result in history.judge.results.values()} >= {
        End.SUCCEEDED,
        End.CANCELLED,
        End.EXPIRED,
    }


@pytest.mark.parametrize("rule", IN_THE_LOG, ids=lambda rule: rule.name)
def test_what_breaks_a_rule_in_the_log_is_noticed(rule: Rule) -> None:
    history = finished()
    IN_THE_LOG[rule](history)
    assert judge(history) is rule


def test_a_pause_that_nobody_told_is_noticed() -> None:
    history = finished()
    stepped(history, PolicySet, lambda _: ControlSaid(Pause(VERSION, "hooli", "")), adds=True)
    assert judge(history) is Rule.AGREE


def test_what_has_expired_and_is_taken_in_is_noticed() -> None:
    history = finished()
    policy_with(history, wait_ms_max=0)
    assert judge(history) is Rule.EXPIRED


def test_a_decision_that_skips_a_seal_is_noticed() -> None:
    history = finished()

    def edit(decision: Decision) -> Decision | None:
        kept = tuple(step for step in decision.steps if not isinstance(step, Sealed))
        return msgspec.structs.replace(decision, steps=kept) if kept != decision.steps else None

    decided(history, edit)
    assert judge(history) is Rule.AGREE


def test_a_memory_that_differs_from_the_log_is_noticed() -> None:
    history = finished()
    history.fleet.schedulers[0].service.shards[0].state.next_number += 1
    with pytest.raises(InvariantError) as caught:
        history.compare()
    assert caught.value.rule is Rule.RECOVERY


def test_a_shard_that_gives_up_is_noticed() -> None:
    played = history()
    for _ in range(60):
        played.fleet.step()
    flip(played)
    for scheduler in played.fleet.schedulers:
        played.fleet.kill(scheduler.name)
    with pytest.raises(InvariantError) as caught:
        played.run()
    assert caught.value.rule is Rule.HALTED


def flip(history: History) -> None:
    def edit(record: Record) -> Record:
        return record._replace(value=record.value[:-1] + bytes([record.value[-1] ^ 1]))

    change(history, history.fleet.topics.decisions, edit)


def test_every_rule_has_a_control() -> None:
    assert set(IN_THE_LOG) | {Rule.RECOVERY, Rule.HALTED} == set(Rule)
