"""Nobody waits for more than a turn of each neighbour, and no slot for more than nothing.

A light tenant with a head that one grant covers (cost at most quantum * weight) is served at its
first visit, before which the pointer comes to each neighbour j at most once and takes at most
quantum_j + M - 1 there, M the greatest cost: what is granted and what was left over. So, served
at a rate R, it waits at most

    (sum over busy neighbours of quantum_j + M) / R + the service of one batch,

for the batch that was picked before it came. How much of j's waits behind does not enter.
"""

from itertools import chain
from random import Random

import pytest

from schemas.policy import CostModel
from tests.support.oracle_history import (
    NAMES,
    Arrive,
    Finish,
    History,
    Tick,
    Turn,
    one_pool,
    thrown,
)
from tests.support.oracle_ledger import Ledger

COST_MAX = 30


# --- no slot is free while something is due


class Slots:
    """What is out on each lane, and what waits, counted from inputs and steps alone."""

    def __init__(self, history: History, room: int) -> None:
        self.room = room
        self.ledger = Ledger(history, follows_grants=False)

    def idle_with_work(self, turn: Turn) -> str | None:
        """Why a slot is free although something is due; None: no slot is, or nothing is."""
        self.ledger.read(turn)
        policy = self.ledger.history.policy
        endpoint = policy.endpoints[0]
        out = len(self.ledger.flying)
        waiting = [e for e in self.ledger.entries.values() if e.eligible]
        oldest = min((e.arrived_ms for e in waiting), default=turn.now_ms)
        is_due = len(waiting) >= endpoint.batch_requests or (
            bool(waiting) and turn.now_ms - oldest >= endpoint.batch_wait_ms
        )
        if is_due and out < self.room:
            return f"{len(waiting)} wait, the oldest since {oldest}, {out} of {self.room} are out"
        return None


@pytest.mark.parametrize("seed", range(8))
def test_no_slot_is_free_while_something_is_due(seed: int) -> None:
    lanes, prefetch, slots = 1 + seed % 3, seed % 2, 1 + seed // 4
    policy = one_pool(
        [1, 2, 3, 1],
        lanes=lanes,
        prefetch=prefetch,
        tiers=2,
        quantum=[1, 20, 64][seed % 3],
        batch_requests=1 + seed % 4,
        batch_tokens=60,
        batch_wait_ms=[0, 40][seed % 2],
        tokens_max=COST_MAX,
        service_ms=50,
    )
    history = History(policy, slots=slots)
    judge = Slots(history, lanes * (slots + prefetch))
    moves = thrown(seed, 200, tenants=4, cost_max=COST_MAX, tiers=2)
    for turn in chain(history.play(moves), history.drain()):
        assert judge.idle_with_work(turn) is None


# --- a light tenant's wait


def taken_before(history: History, neighbours: int, backlog: int, cost: int) -> int:
    """Cost of what is picked between a light tenant's arrival and its pick."""
    for number in range(1, neighbours + 1):
        history.arrive(Arrive(number, COST_MAX, COST_MAX, copies=backlog))
    for _ in range(37):  # amid a round
        history.finish(history.out.pop(0))
    turn, taken = history.arrive(Arrive(0, cost, cost)), 0
    while True:
        for live in (live for batch in turn.cycle.batches for live in batch.requests):
            if live.tenant == NAMES[0]:
                return taken
            taken += live.tokens
        turn = history.finish(history.out.pop(0))


@pytest.mark.parametrize("quantum", [30, 64, 200])
@pytest.mark.parametrize("neighbours", [1, 3, 8])
def test_a_light_tenant_waits_for_a_turn_of_each_neighbour(quantum: int, neighbours: int) -> None:
    weights = [1, *(1 + number % 3 for number in range(neighbours))]
    policy = one_pool(weights, quantum=quantum, tokens_max=COST_MAX)
    taken = [
        taken_before(History(policy), neighbours, backlog, cost=20) for backlog in (100, 1_000)
    ]
    assert taken[0] == taken[1]
    assert taken[0] <= sum(quantum * weight + COST_MAX for weight in weights[1:])


@pytest.mark.parametrize("quantum", [1, 7])
def test_grants_smaller_than_its_request_cost_it_as_many_rounds(quantum: int) -> None:
    policy = one_pool([1, 1, 2, 3], quantum=quantum, tokens_max=COST_MAX)
    rounds = -(-20 // quantum)
    taken = taken_before(History(policy), 3, 500, cost=20)
    assert taken <= sum(rounds * quantum * weight + COST_MAX for weight in (1, 2, 3))


def test_counted_in_requests_a_fixed_number_of_each_neighbour_goes_first() -> None:
    """One request is one visit's grant: of each neighbour at most its weight, whatever waits."""
    weights = [1, 1, 2, 3]
    policy = one_pool(weights, cost=CostModel.REQUEST, quantum=1)
    for backlog in (50, 2_000):
        history = History(policy)
        for number in (1, 2, 3):
            history.arrive(Arrive(number, 500, 500, copies=backlog))
        turn, first = history.arrive(Arrive(0, 500, 500)), list[str]()
        while NAMES[0] not in first:
            turn = history.finish(history.out.pop(0))
            first += [live.tenant for batch in turn.cycle.batches for live in batch.requests]
        for name, weight in zip(NAMES[1:], weights[1:], strict=False):
            assert first.count(name) <= weight


# --- what a tenant does to itself is its own business


@pytest.mark.parametrize("seed", range(6))
def test_the_priorities_of_one_never_change_the_order_of_another(seed: int) -> None:
    def served(priorities: Random | None) -> tuple[list[str], list[str]]:
        policy = one_pool([1, 2, 1], quantum=20, batch_requests=3, tokens_max=COST_MAX)
        history = History(policy)
        dice = Random(seed)
        order: list[tuple[str, str]] = []
        moves: list[Arrive | Finish | Tick] = []
        for _ in range(120):
            who = dice.randrange(3)
            urgency = priorities.randrange(1_000) if priorities and who == 0 else 500
            cost = 12 if who == 0 else dice.randint(1, COST_MAX)
            moves += [Arrive(who, cost, cost, priority=urgency), Tick(1)]
            moves += [Finish(0)] * dice.choice([0, 1])
        for turn in chain(history.play(moves), history.drain()):
            order += [(x.tenant, x.id) for batch in turn.cycle.batches for x in batch.requests]
        others = [name for tenant, name in order if tenant != NAMES[0]]
        return [tenant for tenant, _ in order], others

    assert served(None) == served(Random(seed))
    assert served(None)[1] == served(Random(seed + 1))[1]
