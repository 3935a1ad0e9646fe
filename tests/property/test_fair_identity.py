"""Service = grants - change of D*, exactly, after every step, for every tenant.

D* is the deficit (and credit) of the core's own account without what is still to be settled;
grants are counted by walking the ring to each recorded pick. See tests.support.oracle_ledger.
"""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.pick.drr import DeficitRoundRobin
from tests.support.oracle_history import History, Move, drawn, one_pool, thrown
from tests.support.oracle_ledger import Ledger, identity_faults

TENANTS = 4
COST_MAX = 30


def books(moves: list[Move], quantum: int, batch: int, *, tiers: int = 1) -> Ledger:
    policy = one_pool(
        [1, 2, 3, 1],
        lanes=2,
        prefetch=1,
        tiers=tiers,
        quantum=quantum,
        batch_requests=batch,
        batch_tokens=60,
        tokens_max=COST_MAX,
        service_ms=100,
        wait_ms_max=5_000,
    )
    history = History(policy)
    ledger = Ledger(history)
    return ledger.follow(chain(history.play(moves), history.drain()))


@settings(max_examples=60, deadline=None)
@given(
    moves=drawn(tenants=TENANTS, cost_max=COST_MAX),
    quantum=st.sampled_from([1, 7, 20, 64]),
    batch=st.sampled_from([1, 3]),
)
def test_service_is_grants_less_the_change_of_the_balance(
    moves: list[Move], quantum: int, batch: int
) -> None:
    assert identity_faults(books(moves, quantum, batch)) == []


@pytest.mark.parametrize("seed", range(12))
def test_over_long_histories_and_beside_another_tier(seed: int) -> None:
    moves = list(thrown(seed, 250, tenants=TENANTS, cost_max=COST_MAX, tiers=2))
    ledger = books(moves, [1, 7, 20, 64][seed % 4], 1 + seed % 3, tiers=2)
    assert len(ledger.picks) > 30
    assert identity_faults(ledger) == []


def test_without_settlement_the_identity_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeficitRoundRobin, "settle", lambda *_: None)
    moves = list(thrown(1, 120, tenants=TENANTS, cost_max=COST_MAX))
    assert identity_faults(books(moves, 20, 1))
