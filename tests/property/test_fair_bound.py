"""No interval, however chosen, in which one of two busy tenants gets far ahead of the other.

The bound and why it holds: tests.support.oracle_gap.
"""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracle_gap import broken_bounds
from tests.support.oracle_history import NAMES, History, Move, drawn, one_pool, thrown
from tests.support.oracle_ledger import Ledger

WEIGHTS = (1, 2, 3, 1)
COST_MAX = 30


def books(moves: list[Move], quantum: int, batch: int, weights: tuple[int, ...]) -> Ledger:
    policy = one_pool(
        weights,
        lanes=2,
        prefetch=1,
        quantum=quantum,
        batch_requests=batch,
        batch_tokens=60,
        tokens_max=COST_MAX,
        overtake_max=0,
    )
    history = History(policy)
    return Ledger(history).follow(chain(history.play(moves), history.drain()))


def weighted(weights: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(NAMES, weights, strict=False))


@settings(max_examples=100, deadline=None)
@given(
    moves=drawn(tenants=4, cost_max=COST_MAX, exact=True),
    quantum=st.sampled_from([1, 7, 20, 64]),
    batch=st.sampled_from([1, 3]),
    weights=st.sampled_from([WEIGHTS, (1, 1, 1, 1), (5, 1, 1, 4)]),
)
def test_with_exact_estimates_a_quantum_and_a_cost_each(
    moves: list[Move], quantum: int, batch: int, weights: tuple[int, ...]
) -> None:
    ledger = books(moves, quantum, batch, weights)
    assert broken_bounds(ledger, weighted(weights), quantum, COST_MAX - 1) == []


@pytest.mark.parametrize("seed", range(12))
def test_with_exact_estimates_over_long_histories(seed: int) -> None:
    quantum = [1, 7, 20, 64][seed % 4]
    moves = list(thrown(seed, 250, tenants=4, cost_max=COST_MAX, exact=True))
    ledger = books(moves, quantum, 1 + seed % 3, WEIGHTS)
    assert broken_bounds(ledger, weighted(WEIGHTS), quantum, COST_MAX - 1) == []


@pytest.mark.parametrize("seed", range(12))
def test_with_estimates_that_err_and_batches_that_are_lost(seed: int) -> None:
    quantum = [1, 7, 20, 64][seed % 4]
    moves = list(thrown(seed, 250, tenants=4, cost_max=COST_MAX))
    batch = 1 + seed % 3
    ledger = books(moves, quantum, batch, WEIGHTS)
    assert broken_bounds(ledger, weighted(WEIGHTS), quantum) == []
    in_flight = 2 * 2 * batch  # two lanes, a slot and one batch sent ahead
    spread = (2 * in_flight + 2) * COST_MAX
    assert broken_bounds(ledger, weighted(WEIGHTS), quantum, spread) == []
