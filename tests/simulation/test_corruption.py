"""What was decided can't be changed unnoticed: recovery names the decision that was."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from scheduler.recovery import RecoveryError
from schemas.codec import chain, decode_header, decode_value, encode, header
from schemas.decisions import Chain, Decision, DecisionRecord, Picked, Sealed, SnapshotChunk
from schemas.log import Record
from simulation.world import Workers, World
from tests.simulation.test_crashes import traffic
from tests.support.policies import embed_policy


def world_with_a_backlog() -> World:
    world = World(embed_policy(), [Workers("embed", 2, 2), Workers("chat", 1, 2)])
    world.expect(traffic(Random(3), 120))
    world.settle()
    for _ in range(60):
        world.step()
    assert world.scheduler.shards[0].state.ids
    return world


def slots(world: World) -> list[Record | None]:
    return world.log._store.parts[world.topics.decisions, 0].slots


def decisions(world: World) -> list[tuple[int, Decision]]:
    """Index in `slots` and content of every decision."""
    found = []
    for index, record in enumerate(slots(world)):
        if record is not None:
            decided = decode_value(record, DecisionRecord)
            if isinstance(decided, Decision):
                found.append((index, decided))
    return found


def reseal(world: World) -> None:
    """Compute every digest anew, as somebody would who wants to hide a change."""
    digest = b""
    records = slots(world)
    for index, record in enumerate(records):
        if record is None:
            continue
        seal = decode_header(record, Chain)
        digest = chain(digest, record.value)
        headers = header(msgspec.structs.replace(seal, digest=digest))
        records[index] = record._replace(headers=tuple(headers))


def change(world: World, edit: Callable[[Decision], Decision | None]) -> int:
    """Change the first decision that `edit` takes; returns its number."""
    for index, decision in decisions(world):
        edited = edit(decision)
        if edited is not None:
            record = slots(world)[index]
            assert record is not None
            slots(world)[index] = record._replace(value=encode(edited))
            return decision.seq
    raise AssertionError("no decision to change")


def recovery_fault(world: World) -> str:
    world.crash_scheduler()
    with pytest.raises(RecoveryError) as caught:
        world.settle()
    return str(caught.value)


def test_an_unchanged_log_recovers() -> None:
    world = world_with_a_backlog()
    reseal(world)  # the control: sealing anew changes nothing
    live = world.state_dump()
    world.crash_scheduler()
    world.settle()
    assert world.state_dump() == live


@pytest.mark.parametrize("seed", range(25))
def test_one_flipped_byte(seed: int) -> None:
    world = world_with_a_backlog()
    random = Random(seed)
    index, decision = random.choice(decisions(world))
    record = slots(world)[index]
    assert record is not None
    value = bytearray(record.value)
    at = random.randrange(len(value))
    value[at] ^= 1 << random.randrange(8)
    slots(world)[index] = record._replace(value=bytes(value))
    fault = recovery_fault(world)
    assert record.place in fault, decision.seq


def with_first(
    decision: Decision, kind: type[Picked], edit: Callable[[Picked], Picked]
) -> Decision | None:
    for at, step in enumerate(decision.steps):
        if isinstance(step, kind):
            steps = (*decision.steps[:at], edit(step), *decision.steps[at + 1 :])
            return msgspec.structs.replace(decision, steps=steps)
    return None


@pytest.mark.parametrize(
    ("field", "by"), [("cost", 1), ("cost", -1), ("key", 1), ("round", 1), ("seat", 1)]
)
def test_one_changed_pick_even_when_sealed_anew(field: str, by: int) -> None:
    world = world_with_a_backlog()

    def edit(pick: Picked) -> Picked:
        return msgspec.structs.replace(pick, **{field: getattr(pick, field) + by})

    number = change(world, lambda decision: with_first(decision, Picked, edit))
    reseal(world)
    assert f"decision {number}" in recovery_fault(world)


def test_a_pick_left_out_even_when_sealed_anew() -> None:
    world = world_with_a_backlog()

    def edit(decision: Decision) -> Decision | None:
        picks = [at for at, step in enumerate(decision.steps) if isinstance(step, Picked)]
        if not picks:
            return None
        steps = tuple(step for at, step in enumerate(decision.steps) if at != picks[0])
        return msgspec.structs.replace(decision, steps=steps)

    number = change(world, edit)
    reseal(world)
    fault = recovery_fault(world)
    named = int(fault.split("decision ")[1].split(":")[0])
    assert named >= number  # seen there, or where the request ends without ever having begun


def test_a_batch_number_given_twice() -> None:
    world = world_with_a_backlog()

    def edit(decision: Decision) -> Decision | None:
        if not any(isinstance(step, Sealed) and step.number > 1 for step in decision.steps):
            return None
        steps = tuple(
            msgspec.structs.replace(step, number=step.number - 1)
            if isinstance(step, Sealed)
            else step
            for step in decision.steps
        )
        return msgspec.structs.replace(decision, steps=steps)

    number = change(world, edit)
    reseal(world)
    assert f"decision {number}" in recovery_fault(world)


def test_a_decision_left_out() -> None:
    world = world_with_a_backlog()
    index, decision = decisions(world)[5]
    slots(world)[index] = None
    assert f"(decision {decision.seq + 1})" in recovery_fault(world)


def test_a_snapshot_is_sealed_too() -> None:
    world = world_with_a_backlog()
    world.scheduler.shards[0].write_snapshot()
    live = world.state_dump()
    world.crash_scheduler()
    world.settle()
    assert world.state_dump() == live  # the control
    for index, record in enumerate(slots(world)):
        if record is not None and isinstance(decode_value(record, DecisionRecord), SnapshotChunk):
            value = bytearray(record.value)
            value[len(value) // 2] ^= 1
            slots(world)[index] = record._replace(value=bytes(value))
            fault = recovery_fault(world)
            assert record.place in fault
            return
    raise AssertionError("no snapshot was written")
