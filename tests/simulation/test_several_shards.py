"""Several shards, on one scheduler and on two: none waits for another one, nothing is doubled."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from scheduler.fold import Fold
from scheduler.recovery import take_over
from scheduler.shard import Shard
from schemas.policy import Policy, Topology
from simulation.door import Arrival
from simulation.fleet import Fleet
from simulation.invariants import Judge
from simulation.process import Fleetmate
from simulation.process_log import ProcessTransactional
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings

pytestmark = pytest.mark.simulation

POOLS = ("chat", "embed")
ENGINE = SimulatedSettings(fixed_ms=30, per_token_us=40)


def two_shards() -> Policy:
    return msgspec.structs.replace(embed_policy(), topology=Topology(shards=2))


def fleet_of_two() -> tuple[Fleet, Judge]:
    """One scheduler with two shards, each with a pool and a worker of it."""
    policy = two_shards()
    fleet = Fleet(policy)
    assert sorted(fleet.topics.shard_of(pool, 2) for pool in POOLS) == [0, 1]
    judge = Judge(fleet.log, fleet.topics, policy)
    fleet.on_settled = judge.check
    fleet.start_scheduler("scheduler-0")
    for pool in POOLS:
        fleet.start_worker(pool, Fleetmate(pool, 2, ENGINE))
    return fleet, judge


def arrival(number: int) -> Arrival:
    return Arrival(0, "acme", POOLS[number % 2], "gold", b"x" * 40, id=f"r{number}")


def arrive(fleet: Fleet, count: int, every_ms: int) -> None:
    for number in range(count):
        fleet.after(number * every_ms, partial(fleet.submit, arrival(number)))


def run(fleet: Fleet, judge: Judge) -> Counter[str]:
    for _ in range(3_000):
        fleet.step()
        if fleet.agenda_is_empty and judge.is_over:
            break
    judge.check_end()
    return Counter(result.end.value for result in judge.results.values())


def owned(fleet: Fleet) -> dict[str, set[int]]:
    return {process.name: set(process.service.shards) for process in fleet.schedulers}


def test_one_joins_and_leaves_again_and_nothing_is_lost_or_doubled() -> None:
    fleet, judge = fleet_of_two()
    arrive(fleet, 60, every_ms=100)
    shared: list[dict[str, set[int]]] = []
    fleet.after(1_000, lambda: fleet.start_scheduler("scheduler-1"))
    fleet.after(3_000, lambda: shared.append(owned(fleet)))
    fleet.after(3_500, lambda: fleet.leave("scheduler-1"))
    fleet.after(5_000, lambda: shared.append(owned(fleet)))
    assert run(fleet, judge) == {"succeeded": 60}
    assert max(result.attempt for result in judge.results.values()) == 0
    assert [len(held) for held in shared[0].values()] == [1, 1]
    assert shared[1] == {"scheduler-0": {0, 1}}


def test_while_a_shard_is_taken_over_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, judge = fleet_of_two()
    arrive(fleet, 8, every_ms=10)
    assert run(fleet, judge) == {"succeeded": 8}
    (scheduler,) = fleet.schedulers
    shards = scheduler.service.shards
    chat = fleet.topics.shard_of("chat", 2)
    init = ProcessTransactional.init
    decided: list[int] = []

    def slow_init(self: ProcessTransactional, meanwhile: Callable[[], bool] | None = None) -> None:
        before = shards[chat].state.next_number
        fleet.submit(arrival(8))
        init(self, meanwhile)
        decided.append(shards[chat].state.next_number - before)

    monkeypatch.setattr(ProcessTransactional, "init", slow_init)
    shards[1 - chat].forget()
    scheduler.turn()
    assert decided == [1]
    monkeypatch.undo()
    assert run(fleet, judge) == {"succeeded": 9}


def test_other_work_goes_on_while_decisions_are_read_after_the_init() -> None:
    fleet, judge = fleet_of_two()
    arrive(fleet, 8, every_ms=10)
    run(fleet, judge)
    slices: list[int] = []

    def other_work() -> bool:
        slices.append(1)
        return False

    class AtOnce:
        """Takes the id over without a slice of other work."""

        def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
            pass

    def fold() -> Fold:
        return Fold(fleet.log, fleet.topics, 0, fleet.silence)

    found = take_over(fleet.log, AtOnce(), fold(), fold, other_work)  # type: ignore[arg-type]
    assert found.state.seq > 0
    assert slices


def test_a_last_snapshot_that_fails_keeps_nobody_in_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, judge = fleet_of_two()
    arrive(fleet, 8, every_ms=10)
    run(fleet, judge)

    def fail(_: Shard) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(Shard, "conclude", fail)
    fleet.start_scheduler("scheduler-1")
    fleet.leave("scheduler-0")
    for number in range(8, 12):
        fleet.submit(arrival(number))
    assert run(fleet, judge) == {"succeeded": 12}
    assert owned(fleet) == {"scheduler-1": {0, 1}}
    assert "a shard was left as it was" in {event for event, _ in fleet.silence.warnings}


def test_a_shard_with_nothing_to_do_keeps_no_busy_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, judge = fleet_of_two()
    arrive(fleet, 2, every_ms=10)
    run(fleet, judge)
    (scheduler,) = fleet.schedulers
    service, is_busy = scheduler.service, False
    waits: list[float] = []

    def turn(_: Shard, wait_s: float) -> bool:
        waits.append(wait_s)
        return is_busy

    monkeypatch.setattr(Shard, "turn", turn)
    monkeypatch.setattr(service, "_idle_wait_s", 1.0)
    service.turn()
    is_busy = True
    service.turn()
    is_busy = False
    service.turn()
    service.turn()
    assert waits == [0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]
