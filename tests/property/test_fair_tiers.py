"""Tiers: strict, but for a floor, which a lower one gets while it has work, and no more.

With a floor of f percent, of what is picked while the tier and one above it have eligible work,

    f percent of all - M  <=  the tier's part  <=  f percent of all + M

over any interval, M the greatest cost: the tier goes first as soon as it is owed its head.
"""

from itertools import chain
from random import Random

import pytest
from msgspec.structs import replace

from schemas.policy import Tier
from tests.support.oracle_history import Arrive, Finish, History, Move, one_pool
from tests.support.oracle_ledger import Ledger

COST_MAX = 30
BOTH = 2


def picked(floor: int, seed: int) -> list[list[tuple[str, int]]]:
    """Tier and cost of each pick, in stretches over which both tiers have eligible work."""
    dice = Random(seed)
    policy = one_pool([1, 1], tiers=2, quantum=20, tokens_max=COST_MAX)
    tiers = (policy.tiers[0], Tier(name=policy.tiers[1].name, floor=floor))
    history = History(replace(policy, tiers=tiers))
    moves: list[Move] = []
    for _ in range(300):
        if dice.random() < 0.25:
            cost = dice.randint(1, COST_MAX)
            moves.append(Arrive(dice.randrange(2), cost, cost, 4, dice.randrange(2)))
        moves.append(Finish(0))
    ledger = Ledger(history, follows_grants=False)
    found: list[list[tuple[str, int]]] = [[]]
    for turn in chain(history.play(moves), history.drain()):
        for batch in turn.cycle.batches:
            (live,) = batch.requests
            came = {read.tier for read in turn.inputs.requests}
            if len(waiting(ledger) | came) == BOTH:
                found[-1].append((live.tier, live.tokens))
        ledger.read(turn)
        if len(waiting(ledger)) < BOTH:
            found.append([])
    return found


def waiting(ledger: Ledger) -> set[str]:
    return {entry.tier for entry in ledger.entries.values() if entry.eligible}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("floor", [5, 30, 90])
def test_a_floor_is_kept_and_not_exceeded(floor: int, seed: int) -> None:
    stretches = picked(floor, seed)
    assert sum(map(len, stretches)) > 40
    for stretch in stretches:
        part = most = least = 0  # 100 * (the tier's part - f percent), and where it has been
        for tier, cost in stretch:
            part += 100 * cost * (tier == "tier1") - floor * cost
            most, least = max(most, part), min(least, part)
            assert most - least <= 100 * COST_MAX


@pytest.mark.parametrize("seed", range(4))
def test_without_a_floor_the_upper_tier_goes_first(seed: int) -> None:
    assert {tier for stretch in picked(0, seed) for tier, _ in stretch} == {"tier0"}
