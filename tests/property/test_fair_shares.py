"""Each tenant gets its max-min fair share, at every pick, and errors don't add up.

The oracle fills with water (tests.support.oracle_shares). Let B be the bound between two busy
tenants (tests.support.oracle_gap), the largest over all pairs. All demands stand there at the
beginning of a phase, so as long as two are busy their weighted services differ by at most B.
Let m be the least weighted service among the busy, and `level` that of the water. Nobody, busy or
content, is above m + B. Were m > level, everybody would have its share and somebody more; were
m + B < level, everybody would have less than its share, or its demand: neither adds up to what was
served. Hence for each tenant, after each pick:

    | service - share |  <=  weight * B

whatever was unequal in the phases before.
"""

from fractions import Fraction
from random import Random

import pytest

from schemas.policy import Fairness
from tests.support.oracle_history import NAMES, Arrive, History, one_pool, with_parents
from tests.support.oracle_shares import fill, fill_families

COST_MAX = 30


def bound(weights: dict[str, int], quantum: int) -> Fraction:
    """The largest over all pairs."""
    low, lower = sorted(weights.values())[:2]
    return quantum + (COST_MAX - 1) * (Fraction(1, low) + Fraction(1, lower))


def worst_excess(
    seed: int, quantum: int, *, phases: int = 6, fairness: Fairness = Fairness.DRR
) -> Fraction:
    """How far beyond its bound a tenant ever was from its share; at most 0 is right.

    In each phase everybody gets a new demand, on top of what was not served before; about half of
    all is served before the next phase begins.
    """
    dice = Random(seed)
    weights = dict(zip(NAMES, [dice.randint(1, 5) for _ in range(5)], strict=False))
    policy = one_pool(
        list(weights.values()), quantum=quantum, tokens_max=COST_MAX, fairness=fairness
    )
    history = History(policy)
    backlog = dict.fromkeys(weights, 0)
    limit = bound(weights, quantum)
    worst = Fraction(-1_000_000)
    for phase in range(phases):
        arrivals = []
        for number, name in enumerate(weights):
            copies, cost = dice.choice([0, 2, 10, 25]), dice.randint(1, COST_MAX)
            backlog[name] += copies * cost
            arrivals.append(Arrive(number, cost, cost, copies=copies))
        turn = history.arrive(*arrivals)
        if not turn.cycle.batches:
            turn = history.finish(history.out.pop(0))
        demands, served = dict(backlog), dict.fromkeys(weights, 0)
        picks = sum(demands.values()) // COST_MAX if phase < phases - 1 else 1_000_000
        while turn.cycle.batches and picks > 0:
            for live in (live for batch in turn.cycle.batches for live in batch.requests):
                served[live.tenant] += live.tokens
                backlog[live.tenant] -= live.tokens
                picks -= 1
            shares = fill(sum(served.values()), demands, weights)
            for name, weight in weights.items():
                worst = max(worst, abs(served[name] - shares[name]) - weight * limit)
            turn = history.finish(history.out.pop(0))
        for live in (live for batch in turn.cycle.batches for live in batch.requests):
            backlog[live.tenant] -= live.tokens  # picked between the phases: in neither
    return worst


@pytest.mark.parametrize("quantum", [1, 16, 64])
@pytest.mark.parametrize("seed", range(5))
def test_every_tenant_is_near_its_share_at_every_pick(seed: int, quantum: int) -> None:
    assert worst_excess(seed, quantum) <= 0


def test_a_queue_without_turns_is_caught() -> None:
    assert max(worst_excess(seed, 16, fairness=Fairness.FIFO) for seed in range(5)) > 0


def test_who_wants_little_gets_it_and_the_rest_is_divided() -> None:
    """Even division would give 100 each and waste 90; max-min gives it to those who want it."""
    assert fill(300, {"ada": 10, "bob": 1_000, "cleo": 1_000}, {"ada": 1, "bob": 1, "cleo": 1}) == {
        "ada": 10,
        "bob": 145,
        "cleo": 145,
    }
    assert fill(300, {"ada": 10, "bob": 1_000, "cleo": 50}, {"ada": 9, "bob": 1, "cleo": 2}) == {
        "ada": 10,
        "bob": 240,
        "cleo": 50,
    }


@pytest.mark.parametrize("quantum", [1, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_families_first_then_their_children(seed: int, quantum: int) -> None:
    """Near the share among families, and near the share of what the own family got."""
    dice = Random(seed)
    weights = dict(zip(NAMES, [dice.randint(1, 5) for _ in range(6)], strict=False))
    parents = {"bob": "ada", "cleo": "ada", "eve": "dan"}
    policy = one_pool(list(weights.values()), quantum=quantum, tokens_max=COST_MAX)
    history = History(with_parents(policy, parents))
    served, demands, arrivals = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0), []
    for number, name in enumerate(weights):
        copies, cost = dice.choice([0, 5, 25, 60]), dice.randint(1, COST_MAX)
        demands[name] = copies * cost
        arrivals.append(Arrive(number, cost, cost, copies=copies))
    families = {
        family: [n for n in weights if parents.get(n, n) == family]
        for family in ["ada", "dan", "fay"]
    }
    inside = {n: 1 if n in families else weight for n, weight in weights.items()}
    turn = history.arrive(*arrivals)
    while turn.cycle.batches:
        for live in (live for batch in turn.cycle.batches for live in batch.requests):
            served[live.tenant] += live.tokens
        among = fill_families(sum(served.values()), demands, weights, parents)
        outer = bound({family: weights[family] for family in families}, quantum)
        for family, children in families.items():
            got = sum(served[name] for name in children)
            share = sum((among[name] for name in children), Fraction(0))
            assert abs(got - share) <= weights[family] * outer
            own = {name: inside[name] for name in children}
            shares = fill(got, {name: demands[name] for name in children}, own)
            inner = bound(own, quantum) if len(own) > 1 else Fraction(0)
            for name in children:
                assert abs(served[name] - shares[name]) <= own[name] * inner
        turn = history.finish(history.out.pop(0))


def test_ten_names_under_one_parent_gain_nothing() -> None:
    names = NAMES[2:]
    policy = one_pool([1] * len(NAMES), quantum=20, tokens_max=COST_MAX)
    history = History(with_parents(policy, dict.fromkeys(names, "bob")))
    arrivals = [Arrive(0, 20, 20, copies=300)]
    arrivals += [Arrive(NAMES.index(name), 20, 20, copies=100) for name in names]
    history.arrive(*arrivals)
    served = [0, 0]
    for _ in range(400):
        batch = history.out.pop(0)
        served[batch.requests[0].tenant == "ada"] += 1
        history.finish(batch)
    assert served == [200, 200]
