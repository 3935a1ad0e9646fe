"""The predicted wait against the textbook's loop played to its end.

A fluid's wait differs from the loop's by what one visit may hold: a request of each neighbour,
and its weight. Levels of neighbours differ by a quarter of what they have waiting at most.
"""

from hypothesis import given
from hypothesis import strategies as st

from producers.core.predicted import (
    AFTER_MS_MAX,
    CHANCES,
    JITTER_PERCENT,
    Levels,
    Ring,
    Standing,
    retry_after_s,
    wait_ms,
)
from schemas.backlog import RATE_MS, level
from tests.support.oracle_wait import Waiting, served_until

COST_MAX = 5
tenants = st.builds(
    Waiting,
    weight=st.integers(1, 5),
    queue=st.lists(st.integers(1, COST_MAX), min_size=1, max_size=60).map(tuple),
    debt=st.integers(0, 40),
)


def standing(own: Waiting, neighbours: list[tuple[int, int]], **fields: int) -> Standing:
    levels = Levels()
    for work, weight in neighbours:
        levels.add(work, weight)
    levels.add(sum(own.queue[:-1]), own.weight)
    values = {"residual_ms": 0, "higher": 0, "rate": RATE_MS, "lost": 0, "floor": 0} | fields
    return Standing(
        ahead=sum(own.queue[:-1]),
        debt=own.debt,
        cost=own.queue[-1],
        rings=(Ring(levels, own.weight, sum(own.queue[:-1])),),
        **values,
    )


@given(own=tenants, others=st.lists(tenants, max_size=6))
def test_the_work_before_a_request_is_what_the_loop_serves(
    own: Waiting, others: list[Waiting]
) -> None:
    others = [each._replace(debt=0) for each in others]
    served = served_until([own, *others], 0)
    waits = wait_ms(standing(own, [(sum(each.queue), each.weight) for each in others]))
    told = waits + own.queue[-1]  # the loop ends with it
    visits = sum(each.weight + COST_MAX for each in others)
    # what an own visit is granted too much is granted to the others as well
    shares = sum(each.weight for each in others) * (COST_MAX + own.weight) // own.weight
    granted = level(sum(own.queue) + own.debt, own.weight)
    alike = [each for each in others if level(sum(each.queue), each.weight) == granted]
    coarse = sum(sum(each.queue) for each in alike) // 4
    assert abs(told - served) <= visits + shares + coarse + len(others), (told, served)


@given(own=tenants, others=st.lists(tenants, max_size=30))
def test_neighbours_in_sum_are_a_quarter_off_at_most(own: Waiting, others: list[Waiting]) -> None:
    exact = sum(own.queue[:-1]) + sum(
        min(sum(each.queue), each.weight * (sum(own.queue) + own.debt) // own.weight)
        for each in others
    )
    told = wait_ms(standing(own, [(sum(each.queue), each.weight) for each in others]))
    assert exact <= told + len(others)
    assert told <= exact * 5 // 4 + len(others)


@given(work=st.integers(1, 10**9), weight=st.integers(1, 1_000), more=st.integers(0, 10**9))
def test_levels_rise_with_work_for_weight(work: int, weight: int, more: int) -> None:
    assert level(work, weight) <= level(work + more, weight)


@given(own=tenants, higher=st.integers(0, 500), lost=st.integers(0, RATE_MS))
def test_a_tier_above_goes_first_and_takes_its_part(own: Waiting, higher: int, lost: int) -> None:
    quiet = wait_ms(standing(own, []))
    assert wait_ms(standing(own, [], higher=higher)) == quiet + higher
    assert wait_ms(standing(own, [], higher=higher, lost=lost)) >= quiet + higher


@given(own=tenants, floor=st.integers(1, 90), lost=st.integers(0, 2 * RATE_MS))
def test_a_floor_bounds_the_wait_whatever_the_tiers_above_want(
    own: Waiting, floor: int, lost: int
) -> None:
    told = wait_ms(standing(own, [], higher=10**9, lost=lost, floor=floor))
    assert told <= sum(own.queue) * 100 // floor


@given(after_ms=st.integers(0, AFTER_MS_MAX), chance=st.integers(0, CHANCES - 1))
def test_come_back_is_whole_seconds_never_earlier_and_a_fifth_later_at_most(
    after_ms: int, chance: int
) -> None:
    told_s = retry_after_s(after_ms, chance)
    assert retry_after_s(AFTER_MS_MAX + after_ms, chance) == retry_after_s(AFTER_MS_MAX, chance)
    assert told_s >= 1
    assert told_s * 1_000 >= after_ms
    assert told_s * 1_000 < max(1_001, after_ms * (100 + JITTER_PERCENT) // 100 + 1_001)
