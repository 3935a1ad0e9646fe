"""What the fairness benchmark claims, small, each beside a control that must look unfair."""

import pytest

from benchmarks import fairness_claims as claims
from benchmarks.fairness_load import (
    SLOTS,
    US_PER_TOKEN,
    Estimator,
    core_run,
    cost,
    model_of,
    policy,
    slot_server,
    workload,
)
from benchmarks.fairness_measure import Gap, backlogged_gaps, bound, entitled, percentile
from benchmarks.peers import PublishedVtc
from schemas.policy import CostModel, Fairness
from simulation.direct import Ask, Direct, Job, Moment

#: 256 tokens in and 256 out, twice: one request of VTC's workloads.
REQUEST = 768
SECONDS = 150


@pytest.mark.parametrize("name", ["overload2", "overload8"])
@pytest.mark.parametrize("estimator", [Estimator.EXACT, Estimator.LEARNED])
@pytest.mark.parametrize("quantum", [256, REQUEST])
def test_who_waits_beside_another_gets_as_much(
    name: str, estimator: Estimator, quantum: int
) -> None:
    load = workload(name, 1, SECONDS, estimator)
    weights = dict.fromkeys(load.tenants, 1)
    ours = core_run(load.asks, policy(weights, model=model_of(estimator), quantum=quantum))
    for settled in (0, 20):
        for gap in backlogged_gaps(ours.moments, weights, cost, settled):
            assert gap.tokens <= bound(gap, ours.moments, weights, cost, quantum), gap
    mine = _gap(ours, weights)
    assert mine <= 1.5 * REQUEST
    vtc = Direct(PublishedVtc(SLOTS, US_PER_TOKEN), slot_server()).run(load.asks)
    fifo = core_run(load.asks, policy(weights, fairness=Fairness.FIFO, model=CostModel.TOKEN))
    assert mine <= _gap(vtc, weights)
    assert _gap(fifo, weights) >= 20 * mine


def _gap(ran: Direct, weights: dict[str, int]) -> float:
    return max(backlogged_gaps(ran.moments, weights, cost, 20)).tokens


def test_a_flood_makes_nobody_else_wait_longer() -> None:
    small, large = (claims.light_wait(0, backlog, asked=15) for backlog in (200, 3_000))
    assert large["p99_ms"] == small["p99_ms"] <= small["bound_ms"]
    assert claims.requests_first(0, 3_000, asked=15) <= 1
    queued = claims.light_wait(0, 3_000, Fairness.FIFO, asked=15)
    assert queued["p99_ms"] > 10 * large["p99_ms"]


@pytest.mark.parametrize("weights", ["4:1", "5:3:2"])
def test_shares_are_the_weights(weights: str) -> None:
    assert claims.weights_error(0, weights, 1_000) < 1


def test_ten_keys_of_one_organisation_get_what_one_gets() -> None:
    assert abs(claims.split_gain(0, 1_500)) < 0.01
    assert claims.split_gain(0, 1_500, with_parent=False) > 0.7


@pytest.mark.parametrize(("told", "pause_us"), [(1, 0), (1, 200_000), (10, 0)])
def test_leaving_and_coming_back_gains_nothing(told: int, pause_us: int) -> None:
    assert claims.rejoin_gain(0, 2_000, told=told, pause_us=pause_us) < 0.01


@pytest.mark.parametrize("fairness", [Fairness.DRR, Fairness.VTC])
@pytest.mark.parametrize("estimator", [Estimator.FLAT, Estimator.LEARNED])
def test_long_outputs_get_no_more_than_short_ones(estimator: Estimator, fairness: Fairness) -> None:
    assert claims.long_share(0, 4_000, estimator, fairness) == pytest.approx(0.5, abs=0.015)


def test_without_settlement_long_outputs_get_more() -> None:
    arguments = (0, 4_000, Estimator.FLAT, Fairness.DRR)
    assert claims.long_share(*arguments, settles=False) > 0.7


def test_nothing_runs_that_cannot_end_in_time_and_capacity_is_used() -> None:
    found = claims.deadlines(0, 30)
    assert found["late_dispatched"] == 0
    assert found["goodput"] >= 0.95


def test_batches_are_as_full_as_of_one_queue() -> None:
    ours, fifo = (claims.batch_fill(0, 1.3, f) for f in (Fairness.DRR, Fairness.FIFO))
    assert ours >= 0.95 * fifo


def test_streams_take_turns() -> None:
    assert claims.stream_twice(0, 1_500) == 0
    assert claims.stream_twice(0, 1_500, fairness=Fairness.FIFO) > 0


def test_priorities_are_a_tenants_own_matter() -> None:
    assert claims.priorities_matter(0, 1_500) == 0
    assert claims.priorities_matter(0, 1_500, fairness=Fairness.FIFO) > 0


# --- the measures themselves


def test_a_gap_is_the_worst_of_all_intervals() -> None:
    asks = {name: Ask(0, name, 1, 0, 1) for name in "ab"}
    jobs = {name: [Job(n, ask) for n in range(6)] for name, ask in asks.items()}
    moments = [Moment("arrived", 0, job) for name in "ab" for job in jobs[name]]
    moments += [
        Moment("picked", at_us, jobs[name][n])
        for at_us, (name, n) in enumerate(
            [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("b", 2), ("b", 3), ("a", 2)], start=1
        )
    ]
    gaps = backlogged_gaps(moments, {"a": 1, "b": 1}, lambda job: job.tokens)
    assert gaps == [Gap(3, "a", "b", 0)]
    weighted = backlogged_gaps(moments, {"a": 1, "b": 2}, lambda job: job.tokens)
    assert weighted == [Gap(1, "a", "b", 0)]


def test_entitled_is_max_min() -> None:
    assert entitled({"a": 1, "b": 5, "c": 9}, 9) == {"a": 1, "b": 4, "c": 4}


def test_percentiles_are_nearest_ranks() -> None:
    values = list(range(1, 201))
    assert (percentile(values, 50), percentile(values, 99)) == (100, 198)
    assert percentile([], 99) == 0
