"""Kinds of unfairness that were met elsewhere, each a short story at the core's door."""

from collections import Counter

import pytest
from msgspec.structs import replace

from scheduler.core.cycle import Inputs
from scheduler.core.decided import Cycle
from scheduler.core.mismatch import StateMismatchError
from schemas.policy import CostModel, Policy, encode_policy
from schemas.policy_check import check
from schemas.records import VERSION, HandedBack, Pause, Resume, Seen
from tests.support.core import Core, ended, ids, tenants
from tests.support.oracle_history import NAMES, Arrive, History, one_pool, with_parents
from tests.support.policies import embed_policy


def serve(history: History, batches: int) -> list[str]:
    """Finish so many batches, the oldest first; tenants in the order of the picks that follow."""
    served: list[str] = []
    for _ in range(batches):
        served += tenants(history.finish(history.out.pop(0)).cycle)
    return served


def limited(*, lanes: int = 1, **limits: dict[str, int]) -> Policy:
    """Ada has limits of her own, bob none."""
    policy = one_pool([1, 1], lanes=lanes, cost=CostModel.REQUEST, quantum=1)
    ada, bob = policy.tenants
    return replace(policy, tenants=(replace(ada, **limits), bob))


def sizes(cycle: Cycle) -> list[int]:
    """Of the cycle's picks: these stories tell requests apart by their size."""
    return [live.size for batch in cycle.batches for live in batch.requests]


# --- one tenant's burst


def test_a_thousand_requests_of_one_leave_the_turns_of_99_others_alone() -> None:
    policy = embed_policy(tenants={f"t{n}": 1 for n in range(100)}, tiers=("only",))
    core = Core(policy)
    cycle = core.take(
        *[core.request("t0", "only", endpoint="chat") for _ in range(1_000)],
        *[core.request(f"t{n}", "only", endpoint="chat") for n in range(1, 100)],
    )
    order = tenants(cycle)
    while len(order) < 100 + 4:
        cycle = core.finish(cycle)
        order += tenants(cycle)
    assert set(order[:100]) == {f"t{n}" for n in range(100)}


def test_an_agent_that_comes_back_each_turn_is_not_starved_by_fresh_arrivals() -> None:
    history = History(one_pool([1, 1], cost=CostModel.REQUEST, quantum=1))
    history.arrive(Arrive(1, 5, 5, copies=200))
    turns = 0
    history.arrive(Arrive(0, 5, 5))
    for _ in range(60):
        for name in serve(history, 1):
            if name == "ada":
                turns += 1
                history.arrive(Arrive(0, 5, 5), Arrive(1, 5, 5, copies=3))
    assert turns >= 29


def test_a_long_answer_is_paid_for_before_the_next_one() -> None:
    """Nothing is taken from a running request, so who ran long lets the others go first."""
    history = History(one_pool([1, 1], quantum=10, tokens_max=500))
    history.arrive(Arrive(0, 10, 500, copies=20))
    history.arrive(Arrive(1, 10, 10, copies=100))
    served = serve(history, 60)
    assert served.index("ada") >= 49


# --- what is counted


def test_tokens_are_counted_where_requests_differ() -> None:
    history = History(one_pool([1, 1], quantum=100))
    history.arrive(Arrive(0, 100, 100, copies=50), Arrive(1, 10, 10, copies=500))
    served = Counter(serve(history, 220))
    assert abs(served["ada"] * 100 - served["bob"] * 10) <= 100 + 99 + 99


def test_an_estimate_beyond_all_reason_is_clamped_and_corrected() -> None:
    history = History(one_pool([1, 1], quantum=100, tokens_max=1_000))
    turn = history.arrive(Arrive(0, 1_170_000, 50))
    assert [live.tokens for batch in turn.cycle.batches for live in batch.requests] == [1_000]
    history.arrive(Arrive(0, 1_170_000, 50, copies=3), Arrive(1, 50, 50, copies=60))
    served = serve(history, 20)  # what was charged too much came back with the first answer
    assert served.count("ada") == 3


def test_many_requests_of_one_millisecond_are_as_many_in_the_order_of_their_arrival() -> None:
    history = History(one_pool([1], batch_requests=100))
    turn = history.arrive(*[Arrive(0, 1, 1, size=n) for n in range(1, 21)])
    assert sizes(turn.cycle) == list(range(1, 21))


# --- urgency


def test_a_tiny_urgent_request_passes_its_own_tenants_huge_batch() -> None:
    history = History(one_pool([1]))
    history.arrive(Arrive(0, 100, 100, copies=50, size=2))
    history.arrive(Arrive(0, 1, 1, priority=0, size=1))
    assert sizes(history.finish(history.out.pop(0)).cycle) == [1]


def test_urgency_helps_although_everything_was_busy_when_it_came() -> None:
    """What is picked late is not bound early: the next free slot is the urgent one's."""
    history = History(one_pool([1, 1], lanes=3, tiers=2))
    history.arrive(Arrive(0, 5, 5, copies=50, size=2, tier=1))
    history.arrive(Arrive(1, 5, 5, size=1, tier=0))
    assert sizes(history.finish(history.out.pop(1)).cycle) == [1]


def test_who_lost_its_worker_keeps_its_place() -> None:
    history = History(one_pool([1]))
    history.arrive(*[Arrive(0, 5, 5, size=n) for n in (1, 2, 3)])
    assert sizes(history.back(history.out.pop(0), started=False).cycle) == [1]


def test_waiting_counts_for_a_tenants_own_old_requests_without_end() -> None:
    """Each second is a step of priority: 500 steps behind, it goes first after 500 s, not 10."""
    policy = one_pool([1, 1], wait_ms_max=3_600_000)
    ada, bob = policy.tenants
    history = History(replace(policy, tenants=(replace(ada, aging_ms=1_000), bob)))
    history.arrive(Arrive(0, 5, 5, size=1), Arrive(0, 5, 5, priority=600, size=2))
    history.turn(after_ms=90_000)
    history.arrive(Arrive(0, 5, 5, priority=500, size=3))
    history.turn(after_ms=20_000)
    history.arrive(Arrive(0, 5, 5, priority=500, size=4))
    order = [sizes(history.finish(history.out.pop(0)).cycle) for _ in range(3)]
    assert order == [[3], [2], [4]]


def test_waiting_counts_for_nothing_against_another_tenant() -> None:
    policy = one_pool([1, 1], wait_ms_max=3_600_000, cost=CostModel.REQUEST, quantum=1)
    ada, bob = policy.tenants
    history = History(replace(policy, tenants=(replace(ada, aging_ms=1), bob)))
    history.arrive(Arrive(0, 5, 5, copies=50))
    history.turn(after_ms=600_000)
    history.arrive(Arrive(1, 5, 5, copies=50))
    assert Counter(serve(history, 40)) == {"ada": 20, "bob": 20}


# --- what cannot run holds nobody up


def test_a_pool_without_a_worker_holds_no_other_pool_up() -> None:
    core = Core(embed_policy(batch_wait_ms=0), slots=0)
    core.take(core.request("acme"))
    core.say("chat", 0, Seen(VERSION, 1))
    cycle = core.take(core.request("acme", id="free", endpoint="chat"))
    assert ids(cycle) == ["free"]


def test_a_head_that_is_too_late_ends_and_the_next_goes() -> None:
    history = History(one_pool([1, 1], service_ms=1_000))
    turn = history.arrive(
        Arrive(0, 5, 5, deadline_ms=500, size=1), Arrive(0, 5, 5, size=2), Arrive(1, 5, 5, size=3)
    )
    assert [reason for _, reason in ended(turn.cycle)] == ["deadline"]
    assert sizes(turn.cycle) == [2]


def test_a_request_that_fits_with_no_other_runs_alone() -> None:
    history = History(one_pool([1], batch_requests=4, batch_tokens=1_000))
    turn = history.arrive(Arrive(0, 1_000, 1_000, size=1), Arrive(0, 1, 1, size=2))
    assert sizes(turn.cycle) == [1]


def test_a_blocked_tenant_holds_no_other_up_and_gathers_no_turns() -> None:
    history = History(limited(in_flight={"run": 0}))
    history.arrive(Arrive(0, 5, 5, copies=50), Arrive(1, 5, 5, copies=50))
    assert serve(history, 20) == ["bob"] * 20
    history.turn(Inputs(policies=[encode_policy(limited(in_flight={"run": 1}))]))
    served = Counter(serve(history, 20))
    assert served == {"ada": 10, "bob": 10}


def test_a_limit_of_zero_lets_not_even_one_through() -> None:
    history = History(limited(in_flight={"run": 0}))
    assert not history.arrive(Arrive(0, 5, 5)).cycle.batches
    history = History(limited(waiting={"run": 0}))
    turn = history.arrive(Arrive(0, 5, 5))
    assert [reason for _, _, _, reason in turn.cycle.refused] == ["waiting_limit"]
    assert not turn.cycle.batches


def test_a_lower_limit_acts_at_once_and_freezes_nothing() -> None:
    history = History(limited(lanes=4, in_flight={"run": 3}))
    assert len(history.arrive(Arrive(0, 5, 5, copies=20)).cycle.batches) == 3
    lower = limited(lanes=4, in_flight={"run": 1})
    assert not history.turn(Inputs(policies=[encode_policy(lower)])).cycle.batches
    assert serve(history, 2) == []
    assert serve(history, 5) == ["ada"] * 5


def test_above_its_guarantee_a_tenant_runs_only_what_nobody_else_wants() -> None:
    policy = limited(lanes=4, in_flight={"run": 1}, burst={"run": 9})
    history = History(policy)
    assert len(history.arrive(Arrive(0, 5, 5, copies=20)).cycle.batches) == 4
    history.arrive(Arrive(1, 5, 5, copies=2))
    assert serve(history, 3)[:2] == ["bob", "bob"]


def test_a_paused_tenant_waits_and_nobody_else_does() -> None:
    history = History(one_pool([1, 1]))
    history.arrive(Arrive(0, 5, 5, copies=4), Arrive(1, 5, 5, copies=3))
    until_ms = history.core.now_ms + 5_000
    history.turn(Inputs(control=[Pause(VERSION, "ada", "run", until_ms)]))
    assert serve(history, 4) == ["bob", "bob", "bob"]
    assert not history.turn(after_ms=4_999).cycle.batches
    assert tenants(history.turn(after_ms=1).cycle) == ["ada"]


# --- what ended never runs


def test_what_expired_or_was_cancelled_while_it_waited_is_never_sent() -> None:
    history = History(one_pool([1], wait_ms_max=5_000, batch_requests=4))
    history.arrive(Arrive(0, 5, 5))
    history.arrive(*[Arrive(0, 5, 5, size=n) for n in (2, 3, 4)])
    cancelled = history.core.cancel("tier0", 2)
    assert len(cancelled.ended) == 1
    late = history.turn(after_ms=6_000)
    assert [reason for _, reason in ended(late.cycle)] == ["expired", "expired"]
    assert not history.finish(history.out.pop(0)).cycle.batches


def test_a_cancelled_one_in_a_workers_hands_frees_its_slot_once_it_is_given_up() -> None:
    """The abandoned one must not hold the only slot; nor may it be sent again."""
    history = History(one_pool([1]))
    history.arrive(Arrive(0, 5, 5, size=1), Arrive(0, 5, 5, size=2))
    assert not history.core.cancel("tier0", 0).batches
    turn = history.back(history.out.pop(0), started=True)
    assert [reason for _, reason in ended(turn.cycle)] == ["cancelled"]
    assert sizes(turn.cycle) == [2]


def test_a_slow_requests_slot_is_not_freed_by_its_age() -> None:
    history = History(one_pool([1], wait_ms_max=7_200_000))
    history.arrive(Arrive(0, 5, 5, copies=5))
    assert not history.turn(after_ms=3_600_000).cycle.batches
    assert history.finish(history.out.pop(0)).cycle.batches


def test_a_dead_workers_slot_is_free_at_once() -> None:
    history = History(one_pool([1], attempts_max=1))
    history.arrive(Arrive(0, 5, 5, copies=2))
    turn = history.back(history.out.pop(0), started=True)
    assert [reason for _, reason in ended(turn.cycle)] == ["attempts"]
    assert len(turn.cycle.batches) == 1


def test_an_id_that_failed_may_come_again_when_it_is_forgotten() -> None:
    core = Core(embed_policy(batch_wait_ms=0))
    core.finish(core.take(core.request("acme", id="again")))
    assert not core.take(core.request("acme", id="again")).batches
    core.finish(core.take(core.request("acme", id="other"), after_ms=3_700_000))
    assert ids(core.take(core.request("acme", id="again"))) == ["again"]


# --- ten keys of one customer


def test_splitting_into_ten_keys_under_one_parent_gains_nothing() -> None:
    policy = one_pool([1] * 10, cost=CostModel.REQUEST, quantum=1)
    policy = with_parents(policy, dict.fromkeys(NAMES[2:], "bob"))
    history = History(policy)
    history.arrive(*[Arrive(number, 5, 5, copies=50) for number in range(10) if number != 1])
    served = Counter(serve(history, 40))
    assert served["ada"] == 20
    assert {served[name] for name in NAMES[2:]} == {2, 3}


# --- settings that would switch fairness off


def test_a_half_life_of_zero_is_a_fault_and_not_off() -> None:
    assert any("half_life_ms" in fault for fault in check(one_pool([1], half_life_ms=0)))


# --- tenants that come and go


def test_a_tenant_that_is_idle_for_long_loses_nothing_that_waits() -> None:
    history = History(one_pool([1, 1], wait_ms_max=7_200_000, prefetch=0))
    history.arrive(Arrive(0, 5, 5))
    history.arrive(Arrive(1, 5, 5, copies=3))
    history.turn(after_ms=7_000_000)
    assert serve(history, 3) == ["bob"] * 3


def test_a_new_weight_is_a_new_share_of_what_waits_already() -> None:
    history = History(one_pool([1, 1], cost=CostModel.REQUEST, quantum=1))
    history.arrive(Arrive(0, 5, 5, copies=200), Arrive(1, 5, 5, copies=200))
    assert Counter(serve(history, 20)) == {"ada": 10, "bob": 10}
    changed = one_pool([4, 1], cost=CostModel.REQUEST, quantum=1)
    history.turn(Inputs(policies=[encode_policy(changed)]))
    assert Counter(serve(history, 100)) == {"ada": 80, "bob": 20}


def test_a_worker_that_gives_back_twice_stops_the_shard() -> None:
    """A slot that is freed twice is a slot too many."""
    history = History(one_pool([1]))
    batch = history.arrive(Arrive(0, 5, 5, copies=2)).cycle.batches[0]
    history.say(batch, HandedBack(VERSION, batch.number))
    with pytest.raises(StateMismatchError, match="not in flight"):
        history.say(batch, HandedBack(VERSION, batch.number))


def test_who_never_came_can_be_paused_before() -> None:
    history = History(one_pool([1, 1]))
    history.turn(Inputs(control=[Pause(VERSION, "ada", "run"), Pause(VERSION, "nobody", "run")]))
    assert not history.arrive(Arrive(0, 5, 5)).cycle.batches
    history.turn(Inputs(control=[Resume(VERSION, "ada", "run")]))
    assert [batch.requests[0].tenant for batch in history.out] == ["ada"]


def test_who_filled_what_nobody_could_use_is_not_starved_for_it() -> None:
    """Rests of batches are charged; the debt that they make is at most one dearest request."""
    history = History(
        one_pool([1, 100, 1], quantum=1, batch_requests=16, batch_tokens=60, tokens_max=40)
    )
    history.arrive(Arrive(0, 5, 5, copies=3_000), Arrive(1, 40, 40, copies=200))
    serve(history, 190)
    history.arrive(Arrive(2, 5, 5, copies=3_000))
    served = serve(history, 300)
    alone = served[len(served) - served[::-1].index("bob") :]
    assert alone.index("ada") <= 1 + 2 * 40 // 5
