"""Schedulers that are wrong on purpose: the judges must catch each of them.

What is right stands in the first test: the same histories, with nothing changed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.core.pick.drr import DeficitRoundRobin
from schemas.policy import Fairness
from tests.support.oracle_gap import Interval, broken_bounds
from tests.support.oracle_history import Arrive, Finish, History, Move, Tick, one_pool
from tests.support.oracle_ledger import Ledger

COST_MAX = 30
QUANTUM = 64
EQUAL = {"ada": 1, "bob": 1}


def a_burst_before_a_light_tenant() -> Iterator[Move]:
    """All of ada's work is there before bob's."""
    yield Arrive(0, 20, 20, copies=60)
    yield Arrive(1, 20, 20, copies=30)
    yield from (Finish(0) for _ in range(80))


def in_two_tiers() -> Iterator[Move]:
    """The same in the upper tier, beside work in the lower."""
    yield Arrive(0, 20, 20, copies=40, tier=1)
    yield from a_burst_before_a_light_tenant()


def long_and_short_answers() -> Iterator[Move]:
    """Estimated alike; ada's turn out to be dear, bob's cheap."""
    yield Arrive(0, 15, COST_MAX, copies=60)
    yield Arrive(1, 15, 2, copies=200)
    yield from (Finish(0) for _ in range(150))


def in_and_out() -> Iterator[Move]:
    """Ada comes with one cheap request again and again, then stays."""
    yield Arrive(1, 20, 20, copies=80)
    for _ in range(8):
        yield Arrive(0, 1, 1)
        yield from (Finish(0) for _ in range(5))
    yield Arrive(0, 20, 20, copies=40)
    yield from (Finish(0) for _ in range(40))


def away_for_long() -> Iterator[Move]:
    """Ada comes again after bob alone was served for many rounds."""
    yield Arrive(0, 1, 1)
    yield Arrive(1, 20, 20, copies=100)
    yield from (Finish(0) for _ in range(50))
    yield Arrive(0, 20, 20, copies=40)
    yield from (Finish(0) for _ in range(60))


HISTORIES = [
    a_burst_before_a_light_tenant,
    in_two_tiers,
    long_and_short_answers,
    in_and_out,
    away_for_long,
]


def faults(
    moves: Callable[[], Iterator[Move]], fairness: Fairness, *, aging_ms: int = 0
) -> list[Interval]:
    policy = one_pool(
        [1, 1], tiers=2, quantum=QUANTUM, batch_requests=1, tokens_max=COST_MAX, fairness=fairness
    )
    tenants = tuple(replace(tenant, aging_ms=aging_ms) for tenant in policy.tenants)
    history = History(replace(policy, tenants=tenants))
    ledger = Ledger(history, follows_grants=False).follow(history.play(moves()))
    assert len(ledger.picks) > 40
    in_flight = 1
    spread = COST_MAX - 1 if moves is not long_and_short_answers else (2 * in_flight + 2) * COST_MAX
    return broken_bounds(ledger, EQUAL, QUANTUM, spread)


@pytest.mark.parametrize("moves", HISTORIES)
def test_what_is_right_passes(moves: Callable[[], Iterator[Move]]) -> None:
    assert faults(moves, Fairness.DRR) == []


def test_fifo_is_caught() -> None:
    worst = max(faults(a_burst_before_a_light_tenant, Fairness.FIFO), key=lambda one: one.gap)
    assert worst.gap > 5 * worst.bound


def test_tiers_without_turns_inside_are_caught() -> None:
    assert faults(in_two_tiers, Fairness.FIFO)


def test_an_aging_that_crosses_tenants_is_caught() -> None:
    """One queue by urgency and age: more waiting earns more service, so the burst wins."""

    def urgent_but_younger() -> Iterator[Move]:
        yield Arrive(0, 20, 20, copies=60, priority=900)
        yield Tick(60_000)
        yield Arrive(1, 20, 20, copies=30, priority=500)
        yield from (Finish(0) for _ in range(80))

    assert faults(urgent_but_younger, Fairness.FIFO, aging_ms=10)
    assert faults(urgent_but_younger, Fairness.DRR, aging_ms=10) == []


def test_turns_without_settlement_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeficitRoundRobin, "settle", lambda *_: None)
    assert faults(long_and_short_answers, Fairness.DRR)


def test_settlement_of_surcharges_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was charged too much has to come back as well."""
    settle = DeficitRoundRobin.settle

    def one_way(self: Any, member: Any, surcharge: int, *rest: Any) -> None:
        if surcharge > 0:
            settle(self, member, surcharge, *rest)

    monkeypatch.setattr(DeficitRoundRobin, "settle", one_way)
    assert faults(long_and_short_answers, Fairness.DRR)


def test_a_tenant_that_brings_its_credit_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = DeficitRoundRobin.leave

    def keeps(self: Any, member: Any, *rest: Any) -> None:
        account = member.account
        self.retune(member, account.increment)  # adds the grants implied so far
        kept = account.deficit
        leave(self, member, *rest)
        account.deficit, account.credit = kept, 0

    monkeypatch.setattr(DeficitRoundRobin, "leave", keeps)
    assert faults(in_and_out, Fairness.DRR)


def test_grants_to_who_has_no_work_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that is away must not find the rounds it missed."""
    enter = DeficitRoundRobin.enter

    def with_all_rounds(self: Any, member: Any, *rest: Any) -> None:
        account = member.account
        missed = max(0, self.round - 1 - account.granted)
        account.deficit += missed * account.increment
        enter(self, member, *rest)

    monkeypatch.setattr(DeficitRoundRobin, "enter", with_all_rounds)
    assert faults(away_for_long, Fairness.DRR)
