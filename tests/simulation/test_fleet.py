"""A fleet's own moves: suspension in the middle of a turn, zombies, poison, clean stops."""

from collections import Counter

import pytest

from adapters.memory import CommitFault
from simulation.door import Arrival
from simulation.fleet import Fleet
from simulation.invariants import Judge
from simulation.process import Fleetmate, Process
from simulation.process_log import Call, Killed
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings

ENGINE = SimulatedSettings(fixed_ms=30, per_token_us=40)


def fleet_of(schedulers: int = 1, workers: int = 1, attempts_max: int = 3) -> tuple[Fleet, Judge]:
    policy = embed_policy(attempts_max=attempts_max)
    fleet = Fleet(policy)
    judge = Judge(fleet.log, fleet.topics, policy)
    fleet.on_settled = judge.check
    for number in range(schedulers):
        fleet.start_scheduler(f"scheduler-{number}")
    for number in range(workers):
        fleet.start_worker(f"embed-{number}", Fleetmate("embed", 2, ENGINE))
    return fleet, judge


def arrive(fleet: Fleet, count: int, every_ms: int = 20) -> None:
    for number in range(count):
        arrival = Arrival(0, "acme", "embed", "gold", b"x" * 400, id=f"r{number}")
        fleet.after(number * every_ms, lambda a=arrival: fleet.submit(a))  # type: ignore[misc]


def run(fleet: Fleet, judge: Judge, steps: int = 3_000) -> Counter[str]:
    for _ in range(steps):
        fleet.step()
        if fleet.agenda_is_empty and judge.is_over:
            break
    judge.check_end()
    return Counter(result.end.value for result in judge.results.values())


def test_without_faults_everything_succeeds() -> None:
    fleet, judge = fleet_of()
    arrive(fleet, 30)
    assert run(fleet, judge) == {"succeeded": 30}


@pytest.mark.parametrize(
    ("call", "nth"),
    [(Call.INIT, 1)]
    + [(call, nth) for call in (Call.LOOK, Call.POLL, Call.SEND, Call.COMMIT) for nth in (1, 2, 5)],
)
def test_a_scheduler_stopped_in_a_turn_finds_its_shard_taken(call: Call, nth: int) -> None:
    """Also in its first take-over: what another decides meanwhile is no lost log."""
    fleet, judge = fleet_of(schedulers=2)
    seen = 0

    def at(process: Process, now: Call) -> CommitFault | None:
        nonlocal seen
        if process.name == "scheduler-0" and now is call:
            seen += 1
            if seen == nth:
                fleet.suspend(process, 9_000)
        return None

    fleet.at = at
    arrive(fleet, 30)
    assert run(fleet, judge) == {"succeeded": 30}
    assert seen >= nth
    assert not [event for event, _ in fleet.silence.warnings if event == "shard halted"]


@pytest.mark.parametrize("call", list(Call))
def test_a_worker_killed_at_any_step_loses_nothing(call: Call) -> None:
    fleet, judge = fleet_of(workers=2, attempts_max=50)
    left = {1, 2, 4}
    seen = 0

    def at(process: Process, now: Call) -> CommitFault | None:
        nonlocal seen
        if process.name.startswith("embed") and now is call:
            seen += 1
            if seen in left:
                raise Killed(process.name)
        return None

    fleet.at = at
    arrive(fleet, 30)
    assert run(fleet, judge) == {"succeeded": 30}
    assert seen or call is Call.ABORT


def test_poison_ends_as_attempts_and_kills_nobody_beside_it() -> None:
    fleet, judge = fleet_of(workers=2)
    fleet.poison = {"r7"}
    arrive(fleet, 20, every_ms=0)
    assert run(fleet, judge) == {"succeeded": 19, "failed": 1}
    assert judge.results["r7"].reason == "attempts"
    assert sum("kills its worker" in what for _, what in fleet.events) == 3


@pytest.mark.parametrize("who", ["scheduler-0", "embed-0"])
def test_who_is_cut_off_goes_on_until_the_log_tells_it(who: str) -> None:
    fleet, judge = fleet_of(schedulers=2, workers=2)
    arrive(fleet, 60, every_ms=200)
    fleet.after(1_000, lambda: fleet.deafen(who, 12_000, replace=True))
    assert run(fleet, judge) == {"succeeded": 60}
    assert any(who in what and " ends: " in what for _, what in fleet.events)


def test_a_worker_that_leaves_ends_what_it_runs() -> None:
    fleet, judge = fleet_of(workers=2)
    arrive(fleet, 40)
    fleet.after(300, lambda: fleet.leave("embed-0"))
    assert run(fleet, judge) == {"succeeded": 40}
    assert [worker.name for worker in fleet.workers] == ["embed-1"]
    assert max(result.attempt for result in judge.results.values()) == 0


def test_what_stands_behind_an_open_transaction_comes_when_it_ends() -> None:
    fleet, judge = fleet_of()
    fleet.after(0, lambda: fleet.hang((fleet.topics.requests("gold"), 0), 3_000))
    arrive(fleet, 5)
    assert run(fleet, judge) == {"succeeded": 5}
    first_ms = min(served.at_ms for served in fleet.served)
    assert first_ms - fleet.served[0].result.arrived_ms >= 2_900


@pytest.mark.parametrize("by_ms", [-200_000, 300_000])
def test_clocks_that_jump_lose_nothing(by_ms: int) -> None:
    fleet, judge = fleet_of(workers=2)
    arrive(fleet, 40)

    def jump() -> None:
        for process in fleet.processes.values():
            process.clock.skew_ms += by_ms

    fleet.after(400, jump)
    assert run(fleet, judge).total() == 40
