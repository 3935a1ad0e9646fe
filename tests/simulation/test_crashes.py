"""Crashes, aborts and doubt at any commit: every request ends once, recovery equals life."""

import os
from collections import Counter
from random import Random

import pytest

from schemas.records import End
from simulation.faults import CommitChaos
from simulation.world import Arrival, Workers, World
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings

#: `FAIRLANE_SEEDS=7,8 pytest tests/simulation/test_crashes.py` repeats a failing history.
SEEDS = [int(seed) for seed in os.environ.get("FAIRLANE_SEEDS", "").split(",") if seed] or [
    *range(20)
]
TENANTS = ("acme", "globex", "initech")


def traffic(random: Random, requests: int) -> list[Arrival]:
    return [
        Arrival(
            at_ms=random.randrange(4_000),
            tenant=random.choice(TENANTS),
            endpoint=random.choice(("embed", "embed", "chat")),
            tier=random.choice(("gold", "standard")),
            body=b"x" * random.randrange(1, 3_000),
            output_tokens_max=random.choice((0, 50)),
            priority=random.choice((100, 500)),
            deadline_ms=random.choice((0, 0, 0, 60)),
        )
        for _ in range(requests)
    ]


def world_of(seed: int) -> World:
    random = Random(seed)
    engine = SimulatedSettings(fixed_ms=30, per_token_us=40, seed=seed)
    world = World(
        embed_policy(attempts_max=50),
        [Workers("embed", 2, 2, engine), Workers("chat", 1, 2, engine)],
    )
    world.log.faults = CommitChaos(random)
    world.expect(traffic(random, 150))
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_once_and_recovery_equals_life(seed: int) -> None:
    world = world_of(seed)
    chaos = world.log.faults
    assert isinstance(chaos, CommitChaos)
    world.run()
    ended = Counter(served.result.id for served in world.served)
    assert len(ended) == world.submitted == 150
    assert set(ended.values()) == {1}
    assert chaos.history, "the history has no fault: nothing was tried"
    world.log.faults = None
    world.settle()
    live = world.state_dump()
    world.crash_scheduler()
    world.settle()
    assert world.state_dump() == live


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_one_seed_is_one_history(seed: int) -> None:
    histories = []
    for _ in range(2):
        world = world_of(seed)
        world.run()
        histories.append([(served.at_ms, served.result) for served in world.served])
    assert histories[0] == histories[1]


def test_recovery_equals_life_in_the_middle_of_a_backlog() -> None:
    world = world_of(1)
    world.log.faults = None
    world.settle()
    for _ in range(60):
        world.step()
        live = world.state_dump()
        world.crash_scheduler()
        world.settle()
        assert world.state_dump() == live
        assert not world.silence.warnings


def test_all_ends_are_met() -> None:
    """The traffic above is rich enough: it meets success, expiry by deadline, and retries."""
    ends: Counter[End] = Counter()
    attempts = 0
    for seed in SEEDS[:5]:
        world = world_of(seed)
        world.run()
        ends.update(served.result.end for served in world.served)
        attempts = max(attempts, *(served.result.attempt for served in world.served))
    assert ends[End.SUCCEEDED]
    assert ends[End.EXPIRED]
