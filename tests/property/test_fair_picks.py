"""The core makes the picks of a scheduler that does everything the long way, one by one.

Judged by tests.support.oracle_scheduler: a list of all requests, sorted at each pick, and the
plain loop of deficit round robin.
"""

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.policy import CostModel
from tests.support.oracle_history import History, Move, Turn, drawn, one_pool, with_parents
from tests.support.oracle_scheduler import Expected, PlainScheduler

TENANTS = 4
COST_MAX = 30


def did(turn: Turn) -> Expected:
    return Expected(
        [
            (batch.pool, batch.lane, batch.number, [live.key for live in batch.requests])
            for batch in turn.cycle.batches
        ],
        sorted((live.key, str(reason)) for live, reason in turn.cycle.ended),
    )


@settings(max_examples=120, deadline=None)
@given(
    weights=st.lists(st.integers(1, 5), min_size=TENANTS, max_size=TENANTS),
    moves=drawn(tenants=TENANTS, cost_max=COST_MAX, tiers=2),
    quantum=st.sampled_from([1, 7, 20, 64]),
    batch=st.sampled_from([(1, 100, 1_000), (3, 40, 150), (8, 60, 10_000)]),
    wait_ms=st.sampled_from([0, 50]),
    cost=st.sampled_from([CostModel.TOKEN, CostModel.TOKEN, CostModel.REQUEST]),
    lanes=st.integers(1, 3),
)
def test_same_picks_in_the_same_order_in_the_same_batches(
    weights: list[int],
    moves: list[Move],
    quantum: int,
    batch: tuple[int, int, int],
    wait_ms: int,
    cost: CostModel,
    lanes: int,
) -> None:
    policy = one_pool(
        weights,
        lanes=lanes,
        prefetch=1,
        tiers=2,
        cost=cost,
        quantum=quantum,
        batch_requests=batch[0],
        batch_tokens=batch[1],
        batch_bytes=batch[2],
        body_bytes_max=100,
        batch_wait_ms=wait_ms,
        tokens_max=COST_MAX,
        service_ms=100,
        wait_ms_max=5_000,
        overtake_max=0,
    )
    history = History(policy)
    plain = PlainScheduler(policy, slots=history.slots)
    for turn in chain(history.play(moves), history.drain()):
        expected = plain.turn(turn)
        expected.ended.sort()
        assert did(turn) == expected, turn


FAMILY = {"bob": "ada", "cleo": "ada", "eve": "dan"}


@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.integers(1, 4), min_size=6, max_size=6),
    moves=drawn(tenants=6, cost_max=COST_MAX),
    quantum=st.sampled_from([1, 7, 20, 64]),
    batch=st.sampled_from([1, 3]),
)
def test_with_parents_the_ring_of_families_and_then_the_familys_own(
    weights: list[int], moves: list[Move], quantum: int, batch: int
) -> None:
    policy = with_parents(
        one_pool(
            weights,
            lanes=2,
            prefetch=1,
            quantum=quantum,
            batch_requests=batch,
            batch_tokens=60,
            tokens_max=COST_MAX,
            overtake_max=0,
        ),
        FAMILY,
    )
    history = History(policy)
    plain = PlainScheduler(policy, slots=history.slots)
    for turn in chain(history.play(moves), history.drain()):
        expected = plain.turn(turn)
        expected.ended.sort()
        assert did(turn) == expected, turn
