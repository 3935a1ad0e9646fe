"""Policies change, snapshots are written, processes die: every request ends, nothing drifts."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from schemas.policy import Fairness, Policy, Tenant
from simulation.faults import CommitChaos
from simulation.world import Arrival, World
from tests.simulation.test_crashes import SEEDS, world_of
from tests.support.policies import embed_policy


def changed(random: Random, policy: Policy) -> Policy:
    """Another valid policy: weights, fairness, quantum, cost model, tenants, tiers."""
    fairness = random.choice(list(Fairness))
    weights = {name: random.randint(1, 4) for name in ("acme", "globex", "initech")}
    if random.randrange(4) == 0:
        del weights[random.choice(list(weights))]
    tiers = random.choice((("gold", "standard"), ("gold", "standard"), ("standard",)))
    after = embed_policy(
        tenants=weights,
        tiers=tiers,
        fairness=fairness,
        version=policy.version + 1,
        quantum=random.choice((100, 2_000)),
        batch_requests=random.choice((2, 8)),
        attempts_max=50,
    )
    if random.randrange(3) == 0:  # the endpoints change places: the backlog moves along
        first, second = after.endpoints
        swapped = (
            msgspec.structs.replace(first, pool=second.pool),
            msgspec.structs.replace(second, pool=first.pool),
        )
        after = msgspec.structs.replace(after, endpoints=swapped)
    return after


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_once_whatever_the_policy_becomes(seed: int) -> None:
    world = world_of(seed)
    random = Random(seed + 1_000)
    world.settle()
    for _ in range(12):
        for _ in range(random.randrange(1, 12)):
            world.step()
        match random.randrange(4):
            case 0:
                shard = world.scheduler.shards.get(0)
                if shard is not None and shard.ready:
                    without_faults(world, shard.write_snapshot)
            case 1:
                compare_with_recovery(world)
            case _:
                world.publish_policy(changed(random, world.policy))
                world.settle()
    world.publish_policy(embed_policy(version=world.policy.version + 1, attempts_max=50))
    world.run()
    ended = Counter(served.result.id for served in world.served)
    assert len(ended) == world.submitted == 150
    assert set(ended.values()) == {1}
    compare_with_recovery(world)


def without_faults(world: World, action: object) -> None:
    faults, world.log.faults = world.log.faults, None
    assert callable(action)
    action()
    world.log.faults = faults


def compare_with_recovery(world: World) -> None:
    faults, world.log.faults = world.log.faults, None
    world.settle()
    while 0 not in world.scheduler.shards or not world.scheduler.shards[0].ready:
        world.step()
    live = world.state_dump()
    world.crash_scheduler()
    world.settle()
    assert world.state_dump() == live
    world.log.faults = faults


def test_a_removed_tier_ends_what_still_comes_to_it() -> None:
    world = world_of(1)
    world.log.faults = None
    world.settle()
    for _ in range(20):
        world.step()
    world.publish_policy(embed_policy(tiers=("standard",), version=2))
    world.run()
    reasons = Counter(served.result.reason for served in world.served)
    assert len(world.served) == world.submitted
    assert reasons["tier_not_allowed"]


def test_a_tier_that_was_removed_before_anybody_looked_is_answered_too() -> None:
    world = World(embed_policy(), [])
    asked = world.submit(Arrival(0, "acme", "embed", "gold", b"x"))
    world.publish_policy(embed_policy(tiers=("standard",), version=2))
    world.run()
    (served,) = world.served
    assert (served.result.id, served.result.reason) == (asked, "tier_not_allowed")


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [("quantum", 0, "quantum"), ("batch_requests", 0, "batch_requests")],
)
def test_a_policy_with_a_fault_is_reported_and_never_applied(
    field: str, value: Any, fault: str
) -> None:
    world = world_of(2)
    world.log.faults = None
    world.settle()
    world.publish_policy(embed_policy(version=2, **{field: value}))
    world.policy = embed_policy()
    world.run()
    assert len(world.served) == world.submitted
    notes = [str(facts) for event, facts in world.silence.warnings if event == "fault"]
    assert any(fault in note for note in notes)


def test_a_tenant_may_not_use_a_tier_that_its_policy_does_not_list() -> None:
    base = embed_policy()
    narrow = tuple(Tenant(name=t.name, tiers=("standard",)) for t in base.tenants)
    world = world_of(3)
    world.log.faults = None
    world.publish_policy(msgspec.structs.replace(base, tenants=narrow, version=2))
    world.run()
    by_reason = Counter(served.result.reason for served in world.served)
    assert by_reason["tier_not_allowed"] > 0
    assert len(world.served) == world.submitted


def test_chaos_was_there() -> None:
    world = world_of(SEEDS[0])
    world.run()
    assert isinstance(world.log.faults, CommitChaos)
    assert world.log.faults.history
