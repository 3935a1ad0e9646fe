"""Tiers are strict; a floor is kept while its tier is pressed, and is worth nothing else."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.pick.tier import credits_after, first_with_floors

COST_MAX = 30
FLOORS = [(0, 10), (0, 90), (0, 30, 60), (0, 0, 45, 45), (0, 1, 80, 9), (0, 20, 0, 40)]


@dataclass
class Tiers:
    """Tiers that are picked from, and what was picked of each while each was pressed."""

    floors: tuple[int, ...]
    seed: int
    credit: list[int] = field(default_factory=list)
    ready: list[bool] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.credit = [0 for _ in self.floors]
        self.ready = [True for _ in self.floors]
        self.heads = [self.dice.randint(1, COST_MAX) for _ in self.floors]

    def pick(self) -> tuple[int, int]:
        """Rank and cost of the next pick, which is made."""
        rank = first_with_floors(self.ready, self.heads, self.floors, self.credit)
        assert rank is not None
        cost = self.heads[rank]
        self.credit = credits_after(rank, cost, self.ready, self.floors, self.credit)
        self.heads[rank] = self.dice.randint(1, COST_MAX)
        return rank, cost

    def empty(self, rank: int) -> None:
        """As the scheduler does it when the last request of a tier goes."""
        self.ready[rank] = False
        self.credit[rank] = 0

    def shares(self, picks: int) -> list[float]:
        """Parts of the cost that was picked."""
        costs = [0 for _ in self.floors]
        for _ in range(picks):
            rank, cost = self.pick()
            costs[rank] += cost
        return [cost / sum(costs) for cost in costs]

    def is_pressed(self, rank: int) -> bool:
        return self.ready[rank] and any(self.ready[:rank])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("floors", FLOORS)
def test_each_floor_is_kept_while_all_compete_and_the_first_tier_has_the_rest(
    floors: tuple[int, ...], seed: int
) -> None:
    shares = Tiers(floors, seed).shares(20_000)
    for share, floor in zip(shares[1:], floors[1:], strict=True):
        assert share == pytest.approx(floor / 100, abs=0.002)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("floors", FLOORS)
def test_over_any_stretch_in_which_a_tier_is_pressed(floors: tuple[int, ...], seed: int) -> None:
    """With T picked of all, and S of it in the tier: S is f percent of T, up to a constant.

    A single floor waits for nothing but its own head's cost. Several that are due at once
    wait for one another, at most as long as a backlog of one dearest head each takes in what
    the other floors leave.
    """
    tiers = Tiers(floors, seed)
    several = [floor for floor in floors if floor]
    waits = len(several) / (1 - sum(several) / 100) if len(several) > 1 else 0
    drift = [[0] for _ in floors]  # 100 * S - f * T, at each pick of the stretch
    picks = 0
    for _ in range(6_000):
        changed = tiers.dice.randrange(len(floors) * 40)
        if changed < len(floors):
            if tiers.ready[changed]:
                tiers.empty(changed)
                drift[changed] = [0]
            else:
                tiers.ready[changed] = True
        if not any(tiers.ready):
            continue
        pressed = [tiers.is_pressed(rank) for rank in range(len(floors))]
        rank, cost = tiers.pick()
        picks += 1
        for other, floor in enumerate(floors):
            if pressed[other] and floor:
                step = 100 * cost * (other == rank) - floor * cost
                drift[other].append(drift[other][-1] + step)
                assert drift[other][-1] <= 0, "a pick is never lent"
                most = (100 + floor * waits) * COST_MAX
                assert max(drift[other]) - min(drift[other]) <= most
    assert picks > 1_000


def test_a_tier_goes_first_as_soon_as_it_is_owed_its_head() -> None:
    ready, heads, floors, credit = [True, True], [10, 10], [0, 50], [0, 0]
    ranks = []
    for _ in range(6):
        rank = first_with_floors(ready, heads, floors, credit)
        assert rank is not None
        credit = credits_after(rank, 10, ready, floors, credit)
        ranks.append(rank)
    assert ranks == [0, 1] * 3


def test_an_idle_tier_gains_nothing_and_returns_with_nothing() -> None:
    tiers = Tiers((0, 50), 1)
    tiers.empty(1)
    assert tiers.shares(1_000) == [1, 0]
    assert tiers.credit == [0, 0]
    tiers.ready[1] = True
    tiers.heads = [10, 10]
    assert tiers.pick() == (0, 10), "it is owed nothing yet"
    assert tiers.credit == [0, 500]


def test_a_tier_that_nobody_pressed_saves_nothing_for_later() -> None:
    """The first tier is away: the second has the rest. Back again, it has what is left over."""
    tiers = Tiers((0, 45, 45), 1)
    tiers.empty(0)
    assert tiers.shares(10_000) == pytest.approx([0, 0.55, 0.45], abs=0.002)
    assert tiers.credit[1] == 0
    tiers.ready[0] = True
    assert tiers.shares(400) == pytest.approx([0.1, 0.45, 0.45], abs=0.05)


ready = st.lists(st.booleans(), min_size=1, max_size=5)
anything = st.lists(st.integers(0, 10_000), min_size=5, max_size=5)


@given(ready, anything, anything)
def test_without_floors_the_first_that_is_ready(
    ready: list[bool], costs: list[int], earned: list[int]
) -> None:
    floors = [0 for _ in ready]
    expected = ready.index(True) if any(ready) else None
    assert first_with_floors(ready, costs, floors, earned) == expected
    if expected is not None:
        after = credits_after(expected, costs[0], ready, floors, floors)
        assert after == floors, "nobody earns anything"


@given(st.integers(1, 200))
def test_what_is_not_picked_spends_nothing(failed: int) -> None:
    """Heads that are ended at the pick cost their tier nothing; the next head has its turn."""
    tiers = Tiers((0, 40), 1)
    while first_with_floors(tiers.ready, tiers.heads, tiers.floors, tiers.credit) == 0:
        tiers.pick()
    before = list(tiers.credit)
    for _ in range(failed):
        assert first_with_floors(tiers.ready, tiers.heads, tiers.floors, tiers.credit) == 1
        tiers.heads[1] = tiers.dice.randint(1, tiers.heads[1])
    assert tiers.credit == before
    rank, cost = tiers.pick()
    assert rank == 1
    assert tiers.credit == [0, before[1] - 60 * cost]


def test_a_pick_by_strict_order_costs_no_credit() -> None:
    assert credits_after(1, 7, [False, True, True], [0, 30, 20], [0, 90, 50]) == [0, 90, 190]
    assert credits_after(0, 7, [True, True, False], [0, 30, 20], [0, 90, 50]) == [0, 300, 0]
    assert credits_after(2, 7, [True, True, True], [0, 30, 20], [0, 90, 600]) == [0, 300, 40]
    assert credits_after(2, 7, [False, True, True], [0, 30, 20], [0, 90, 600]) == [0, 90, 40]
