"""The core through its door: inputs in, picks and ends out."""

from typing import Any

import pytest

from scheduler.core.cycle import Inputs
from scheduler.core.mismatch import StateMismatchError
from scheduler.core.state import State
from schemas.decisions import Ended
from schemas.policy import encode_policy
from schemas.records import VERSION, Finished, Seen
from tests.support.core import NOW_MS, Core, ended, ids, tenants
from tests.support.policies import embed_policy


def core_of(
    *,
    slots: int = 1,
    batch_requests: int = 4,
    batch_wait_ms: int = 0,
    quantum: int = 100,
    **endpoint: Any,
) -> Core:
    policy = embed_policy(
        batch_requests=batch_requests, batch_wait_ms=batch_wait_ms, quantum=quantum, **endpoint
    )
    return Core(policy, slots=slots)


# --- who goes next


def test_the_higher_tier_goes_first_whatever_waits_below() -> None:
    core = core_of()
    low = [core.request("acme", "standard") for _ in range(4)]
    high = [core.request("globex", "gold") for _ in range(4)]
    assert tenants(core.take(*low, *high))[:4] == ["globex"] * 4


def test_tenants_take_turns_and_weight_is_share() -> None:
    core = core_of(batch_requests=8)
    many = [core.request(name) for name in ("acme", "globex") for _ in range(20)]
    picked = tenants(core.take(*many))
    assert picked[:6] == ["acme", "globex", "globex", "acme", "globex", "globex"]


def test_inside_a_tenant_priority_then_deadline_then_arrival() -> None:
    core = core_of()
    deadline_ms = NOW_MS + 60_000
    core_requests = [
        core.request("acme", id="last"),
        core.request("acme", id="first", priority=0),
        core.request("acme", id="third", deadline_ms=deadline_ms),
        core.request("acme", id="second", deadline_ms=deadline_ms - 1),
    ]
    assert ids(core.take(*core_requests)) == ["first", "second", "third", "last"]


def test_a_dear_tenant_gets_its_share_of_tokens_not_of_requests() -> None:
    core = core_of(batch_requests=100, batch_tokens=4_000)
    core.take(*[core.request("acme", tokens=1_000) for _ in range(30)])
    core.take(*[core.request("initech", tokens=100) for _ in range(300)])
    tokens = {"acme": 0, "initech": 0}
    cycle = core.cycle()
    for _ in range(12):
        for batch in cycle.batches:
            for live in batch.requests:
                tokens[live.tenant] += live.cost
        cycle = core.finish(cycle)
    assert abs(tokens["acme"] - tokens["initech"]) <= 1_000 + 100


def test_what_cost_more_than_estimated_is_paid_back() -> None:
    core = core_of(batch_requests=1)
    first = core.take(*[core.request("acme") for _ in range(20)])
    core.take(*[core.request("initech") for _ in range(20)])
    # two of acme's are in flight on each lane; they turn out to cost 5 times as much
    cycle = core.finish(first, tokens=500)
    served = []
    for _ in range(4):
        served += tenants(cycle)
        cycle = core.finish(cycle)
    assert served.count("initech") > 2 * served.count("acme")


# --- batches


def test_a_batch_waits_until_it_is_full_or_its_oldest_waited_long_enough() -> None:
    core = core_of(batch_wait_ms=50)
    assert not core.take(core.request("acme")).batches
    assert not core.cycle(after_ms=49).batches
    assert len(core.cycle(after_ms=1).batches) == 1
    full = [core.request("acme") for _ in range(4)]
    assert [len(batch.requests) for batch in core.take(*full).batches] == [4]


def test_a_batch_is_full_by_tokens_and_by_bytes() -> None:
    core = core_of(batch_tokens=1_000, tokens_max=1_000)
    dear = [core.request("acme", tokens=400) for _ in range(3)]
    assert [len(batch.requests) for batch in core.take(*dear).batches] == [2, 1]
    core = core_of(batch_bytes=1_000, body_bytes_max=1_000)
    large = [core.request("acme", size=400) for _ in range(3)]
    assert [len(batch.requests) for batch in core.take(*large).batches] == [2, 1]


def test_nothing_is_sent_before_a_holder_was_seen_and_beyond_its_slots() -> None:
    core = core_of(slots=1)  # 2 lanes, 1 slot and 1 prefetched batch each
    many = core.take(*[core.request("acme") for _ in range(40)])
    assert sorted(batch.lane for batch in many.batches) == [0, 0, 1, 1]
    assert not core.cycle(after_ms=600_000 - 1).batches
    unseen = Core(embed_policy(batch_requests=4), slots=0)
    assert not unseen.take(*[unseen.request("acme") for _ in range(8)]).batches


def lanes_of(core: Core, *, batches: int) -> list[int]:
    """Lanes of so many full batches that are decided in one cycle."""
    many = core.take(*[core.request("acme") for _ in range(4 * batches)])
    return [batch.lane for batch in many.batches]


def test_batches_of_a_cycle_share_a_lane_while_it_is_about_as_free_as_others() -> None:
    assert lanes_of(core_of(slots=64), batches=8) == [0] * 8  # an eighth of its slots
    assert lanes_of(core_of(slots=64), batches=24) == [0] * 8 + [1] * 16
    assert lanes_of(core_of(slots=4), batches=6) == [0, 1, 0, 1, 0, 1]


def test_a_lane_whose_slots_are_taken_gets_nothing_that_another_could_run_at_once() -> None:
    lanes = lanes_of(core_of(slots=64), batches=130)  # 64 slots and 1 prefetched batch each
    assert [lanes.count(0), lanes.count(1)] == [65, 65]
    running = {0: 0, 1: 0}
    for lane in lanes:
        running[lane] += 1
        other = running[1 - lane]
        assert running[lane] <= 64 or other >= 64, "prefetched beside a free slot"


def test_seen_again_sets_capacity_and_frees_nothing() -> None:
    core = core_of()
    core.take(*[core.request("acme") for _ in range(40)])
    assert not core.say("embed", 0, Seen(VERSION, 1)).batches
    assert [batch.lane for batch in core.say("embed", 0, Seen(VERSION, 2)).batches] == [0]


# --- how requests end


def test_cancel_in_every_state() -> None:
    core = core_of()
    dispatched = core.take(*[core.request("acme") for _ in range(16)])
    core.take(core.request("acme", id="waiting"))
    assert ended(core.cancel("standard", 16)) == [("waiting", "cancelled")]
    marked = core.cancel("standard", 0)
    assert not marked.ended
    assert [cancel[:2] for cancel in marked.cancels] == [("embed", dispatched.batches[0].lane)]
    back = core.hand_back(dispatched, started=False)
    assert ended(back) == [("standard-0", "cancelled")]
    core.cancel("standard", 17)
    early = core.take(core.request("acme", id="early"))
    assert [
        (arrival.meta.id, reason) for _, _, arrival, reason in early.refused if arrival.meta
    ] == [("early", "cancelled")]


def test_a_cancel_that_names_a_dropped_duplicate_ends_its_twin() -> None:
    core = core_of(batch_wait_ms=1_000)
    core.take(core.request("acme", id="same"))
    core.take(core.request("acme", id="same"))
    assert ended(core.cancel("standard", 1)) == [("same", "cancelled")]


def test_an_id_that_is_live_or_just_ended_is_dropped() -> None:
    core = core_of()
    first = core.take(core.request("acme", id="same"))
    assert ids(first) == ["same"]
    assert not core.take(core.request("acme", id="same")).batches
    core.finish(first)
    again = core.take(core.request("acme", id="same"))
    assert not again.batches
    assert not again.refused  # no second result


def test_expiry_ends_what_waits_and_spares_what_runs() -> None:
    core = core_of(wait_ms_max=5_000)
    many = core.take(*[core.request("acme") for _ in range(18)])
    in_flight = {live.id for batch in many.batches for live in batch.requests}
    assert not core.cycle(after_ms=4_000).ended
    late = core.cycle(after_ms=1_000)
    assert {reason for _, reason in ended(late)} == {"expired"}
    assert {name for name, _ in ended(late)} == {
        f"standard-{number}" for number in range(18)
    } - in_flight


def test_what_cannot_finish_by_its_deadline_is_dropped_at_the_pick() -> None:
    core = core_of(service_ms=500)
    late = core.request("acme", id="late", deadline_ms=NOW_MS + 499)
    good = core.request("acme", id="good", deadline_ms=NOW_MS + 500)
    cycle = core.take(late, good)
    assert ended(cycle) == [("late", "deadline")]
    assert ids(cycle) == ["good"]


def test_a_request_that_kills_its_workers_runs_alone_then_ends_with_a_reason() -> None:
    core = core_of(attempts_max=3)
    cycle = core.take(*[core.request("acme") for _ in range(4)])
    assert len(cycle.batches) == 1
    for attempt in (1, 2):
        core.hand_back(cycle, started=True)
        cycle = core.cycle(after_ms=100 << attempt)
        assert [len(batch.requests) for batch in cycle.batches] == [1, 1, 1, 1], attempt
    assert {reason for _, reason in ended(core.hand_back(cycle, started=True))} == {"attempts"}
    assert not core.state.ids


def test_a_batch_that_nobody_started_costs_no_attempt() -> None:
    core = core_of(attempts_max=1)
    cycle = core.take(*[core.request("acme") for _ in range(4)])
    for _ in range(5):
        cycle = core.hand_back(cycle, started=False)
        assert [len(batch.requests) for batch in cycle.batches] == [4]


def test_a_lost_workers_batch_is_refunded() -> None:
    """Who lost four batches is served in the end as if they had not been lost."""

    def served(*, lost: bool) -> dict[str, int]:
        core = core_of()
        cycle = core.take(*[core.request("acme") for _ in range(40)])
        core.take(*[core.request("initech") for _ in range(40)])
        if lost:
            cycle = core.hand_back(cycle, started=False)
        finished = {"acme": 0, "initech": 0}
        while sum(finished.values()) < 64:
            for live in (live for batch in cycle.batches for live in batch.requests):
                finished[live.tenant] += 1
            cycle = core.finish(cycle)
        return finished

    assert served(lost=True) == served(lost=False)


# --- policy


def test_a_new_policy_applies_to_the_backlog() -> None:
    core = core_of(batch_wait_ms=60_000, batch_requests=40)
    core.take(*[core.request(name) for name in ("acme", "globex") for _ in range(8)])
    weights = {"acme": 3, "globex": 1, "initech": 1}
    changed = embed_policy(
        tenants=weights, version=2, batch_requests=8, batch_wait_ms=0, quantum=100
    )
    picked = tenants(core.cycle(Inputs(policies=[encode_policy(changed)])))
    assert picked[:8] == ["acme"] * 3 + ["globex"] + ["acme"] * 3 + ["globex"]


def test_a_tenant_that_is_removed_has_its_backlog_ended_with_a_reason() -> None:
    core = core_of(batch_wait_ms=60_000, batch_requests=40)
    core.take(core.request("acme"), core.request("globex"))
    without = embed_policy(tenants={"globex": 1}, version=2, batch_wait_ms=60_000)
    cycle = core.cycle(Inputs(policies=[encode_policy(without)]))
    assert ended(cycle) == [("standard-0", "unknown_tenant")]
    assert [live.tenant for live in core.state.lives()] == ["globex"]


def test_a_policy_that_is_none_changes_nothing_and_is_reported() -> None:
    core = core_of()
    cycle = core.cycle(Inputs(policies=[b'{"tiers": 1}']))
    assert not cycle.steps
    assert "the last one stays" in cycle.faults[0]
    assert ids(core.take(core.request("acme"))) == ["standard-0"]


# --- what must not be


def test_a_record_of_a_batch_that_is_not_in_flight_stops_the_shard() -> None:
    core = core_of()
    with pytest.raises(StateMismatchError, match="batch 7 is not in flight"):
        core.say("embed", 0, Finished(VERSION, 7, ()))


def test_a_step_that_does_not_fit_tells_the_story() -> None:
    from scheduler.core.apply import apply

    with pytest.raises(StateMismatchError, match=r"shard 0, decision 1: request .* is not live"):
        apply(State(0), Ended(5, "expired"))


def test_an_idle_cycle_decides_nothing() -> None:
    core = core_of()
    before = core.state.now_ms
    assert not core.cycle(after_ms=50).steps
    assert core.state.now_ms == before
