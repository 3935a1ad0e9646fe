"""Judging requests by what was published: in time, waiting limits, and when nothing is known."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from schemas.backlog import RATE_MS, STALE_MS
from schemas.front import Ending, RequestName, StoreDownError, Terminal
from schemas.policy import Predict
from schemas.reasons import Reason
from schemas.records import End
from tests.support.predictions import NOW_MS, POLICY, Desk, row, with_endpoint


def reason(desk: Desk, tenant: str = "acme", tier: str = "gold", **fields: int) -> str:
    problem = desk.judge(tenant, tier, **fields)
    return problem.reason.value if problem else "in"


def test_what_would_end_after_its_target_is_refused_with_the_time_to_come_back() -> None:
    desk = Desk()
    desk.publish(row("acme", 2_999))
    problem = desk.judge()
    assert problem is not None
    assert (problem.reason, problem.status) == (Reason.WOULD_WAIT, 503)
    assert problem.retry_after_s == 3  # 2 s too late, a fifth of it by chance, rounded up
    assert reason(desk, "acme", "batch") == "in"  # it has no target


def test_a_deadline_goes_before_the_target_of_the_endpoint() -> None:
    desk = Desk()
    desk.publish(row("acme", 2_999))
    assert reason(desk) == "would_wait"
    assert reason(desk, in_ms=60_000) == "in"
    assert reason(desk, "bolt", in_ms=5_000) == "in"
    desk.now += 1
    desk.publish(row("acme", 2_999), residual_ms=6_000)
    assert reason(desk, "bolt", in_ms=5_000) == "would_wait"


def test_service_and_its_spread_count_for_the_end() -> None:
    desk = Desk()
    desk.publish(service_ms=900, spread_ms=90)
    assert reason(desk) == "in"
    desk.now += 1
    desk.publish(service_ms=900, spread_ms=120)
    assert reason(desk) == "would_wait"


def test_what_a_request_takes_itself_is_service_and_no_wait() -> None:
    desk = Desk()
    one_slot = {"slots": 1, "lanes": 1, "rate": RATE_MS // 600, "service_ms": 600}
    desk.publish(room=1, running=0, **one_slot)
    assert reason(desk) == "in"
    desk.now += 300
    desk.publish(row("acme", 1), residual_ms=300, running=1, **one_slot)
    assert desk.waits_ms() == 300 + 600


def test_empty_slots_take_up_what_waits_at_once() -> None:
    desk = Desk()
    four = {"slots": 4, "lanes": 4, "rate": 4 * RATE_MS // 600, "service_ms": 600}
    desk.publish(room=4, running=0, **four)
    assert [reason(desk) for _ in range(4)] == ["in"] * 4
    assert 149 <= desk.waits_ms() <= 151  # a slot becomes empty so often


def test_an_idle_pool_is_tried_however_slow_it_was() -> None:
    desk = Desk()
    slow = {"slots": 1, "lanes": 1, "rate": RATE_MS // 20_000, "service_ms": 20_000}
    desk.publish(room=1, running=0, **slow)
    assert [reason(desk) for _ in range(3)] == ["in", "would_wait", "would_wait"]
    assert desk.meter.counts["ingress_would_wait", "would_wait", "probe"] == 1
    desk.now += 200
    desk.publish(room=0, running=1, **slow)
    assert reason(desk) == "would_wait"


def test_what_the_policy_says_is_too_slow_is_not_tried() -> None:
    desk = Desk(with_endpoint(service_ms=1_001))
    desk.publish(room=1, running=0, slots=1)
    assert reason(desk) == "would_wait"


def test_neighbours_are_waited_for_by_weight_and_no_longer_than_they_have_work() -> None:
    desk = Desk()
    desk.publish(row("acme", 9), row("bolt", 1_000, weight=3))
    assert desk.waits_ms() == 9 + 30
    desk.now += 1
    desk.publish(row("acme", 9), row("bolt", 12, weight=3))
    assert desk.waits_ms() == 9 + 12


def test_a_debt_lets_neighbours_go_first() -> None:
    desk = Desk()
    desk.publish(row("acme", 0, count=1, debt=100), row("bolt", 1_000, weight=3))
    assert desk.waits_ms() == 3 * 101


def test_siblings_share_the_turns_of_their_parent() -> None:
    desk = Desk()
    desk.publish(row("kid", 9), row("sis", 500), row("acme", 800))
    # 10 of its own with this one, 10 of its sister's, and as much as both of the neighbour's
    assert desk.waits_ms("kid") == 39


def test_more_urgent_than_all_that_wait_is_behind_none_of_them() -> None:
    desk = Desk()
    first = 500 << 48 | (1 << 48) - 1  # the usual priority, without a deadline
    desk.publish(row("acme", 400, head=first))
    assert desk.waits_ms() == 400
    assert desk.waits_ms(priority=400) == 0
    desk.judge(priority=300)
    assert desk.waits_ms(priority=400) == 1
    assert desk.waits_ms(priority=200) == 0


def test_what_was_let_in_since_counts_until_a_later_head_has_it() -> None:
    desk = Desk()
    desk.publish()
    for _ in range(100):
        assert reason(desk) == "in"
    assert desk.waits_ms() == 100
    desk.now += 300
    desk.publish(row("acme", 100))
    assert desk.waits_ms() == 100


def test_what_a_later_step_refused_is_withdrawn() -> None:
    desk = Desk()
    desk.publish()
    submission = desk.submission()
    name = RequestName("acme", submission.request.id)
    assert desk.predictor.judge(name, submission, desk.policy) is None
    assert desk.waits_ms() == 1
    desk.predictor.settle(name, is_in=False)
    assert desk.waits_ms() == 0


def test_many_at_once_are_not_all_let_in_by_the_same_numbers() -> None:
    desk = Desk()
    desk.publish()
    answers = [reason(desk) for _ in range(1_500)]
    assert answers.count("in") == 1_001


def test_time_that_passed_since_the_head_was_made_is_taken_off() -> None:
    desk = Desk()
    desk.publish(row("acme", 1_200))
    assert reason(desk) == "would_wait"
    desk.now += 250
    assert reason(desk) == "in"


@pytest.mark.parametrize("past_ms", [STALE_MS + 1, 10 * STALE_MS])
def test_nothing_is_refused_on_what_is_stale(past_ms: int) -> None:
    desk = Desk()
    desk.publish(row("acme", 10**6), lanes=0)
    assert reason(desk) == "no_workers"
    desk.now += past_ms
    desk.follow()
    assert reason(desk) == "in"


def test_a_scheduler_whose_clock_is_wrong_is_believed_all_the_same() -> None:
    for skew_ms in (-3_600_000, 3_600_000):
        desk = Desk()
        at_ms = NOW_MS + skew_ms
        desk.publish(row("acme", 5_000), at_ms=at_ms, stamps=(at_ms,))
        assert reason(desk) == "would_wait"


def test_without_a_board_and_while_redis_is_away_all_are_let_in() -> None:
    class Away:
        async def fetch(self, names: Sequence[str]) -> list[bytes | None]:
            raise StoreDownError(str(names))

    assert reason(Desk(reader=None)) == "in"
    desk = Desk(reader=Away())
    with pytest.raises(StoreDownError):
        asyncio.run(desk.predictor.follow(POLICY))
    assert reason(desk) == "in"


def test_before_a_rate_was_measured_nothing_is_predicted() -> None:
    desk = Desk()
    desk.publish(row("acme", 10**6), rate=0)
    assert reason(desk) == "in"


def test_an_endpoint_without_workers_is_refused_and_told() -> None:
    desk = Desk()
    desk.publish(lanes=0, slots=0, rate=0)
    problem = desk.judge()
    assert problem is not None
    assert (problem.reason, problem.status) == (Reason.NO_WORKERS, 503)
    assert problem.retry_after_s >= 5
    assert desk.meter.gauges["ingress_endpoint_lanes:chat"] == 0


@pytest.mark.parametrize(("mode", "counted"), [(Predict.SHADOW, 2), (Predict.OFF, 0)])
def test_shadow_refuses_nobody_and_counts(mode: Predict, counted: int) -> None:
    desk = Desk(with_endpoint(predict=mode))
    desk.publish(row("acme", 5_000))
    assert [reason(desk), reason(desk)] == ["in", "in"]
    assert desk.meter.counts.get(("ingress_would_wait", "would_wait", "shadow"), 0) == counted


def test_one_in_a_hundred_is_let_in_as_a_probe() -> None:
    desk, random = Desk(), Random(7)
    desk.publish(row("acme", 10**7))
    answers = []
    for _ in range(10_000):
        desk.chance = random.getrandbits(32)
        answers.append(reason(desk))
    assert 60 <= answers.count("in") <= 140
    assert desk.meter.counts["ingress_would_wait", "would_wait", "probe"] == answers.count("in")


def test_those_refused_together_are_not_told_to_come_back_together() -> None:
    desk, random = Desk(), Random(7)
    desk.publish(row("acme", 60_000))
    told = set()
    for _ in range(200):
        desk.chance = random.getrandbits(32) | 1 << 31
        problem = desk.judge()
        assert problem is not None
        told.add(problem.retry_after_s)
    assert min(told) >= 59
    assert max(told) - min(told) >= 5


def test_advice_follows_the_moment_at_which_the_same_request_would_have_been_let_in() -> None:
    desk = Desk()
    told = []
    for _ in range(60):
        desk.publish(row("acme", 11_000))
        problem = desk.judge()
        assert problem is not None
        told.append(problem.retry_after_s)
        desk.now += 1_000
        desk.publish()  # it is empty after a second, not after ten
        desk.now += 1_000
    assert told[0] >= 10
    assert told[-1] <= 2


@pytest.mark.parametrize("waits", [10**6, 10**9])
def test_nobody_is_told_to_come_back_after_hours(waits: int) -> None:
    desk = Desk(with_endpoint(waiting=10**8))
    desk.publish(row("acme", waits))
    problem = desk.judge()
    assert problem is not None
    assert 600 <= problem.retry_after_s <= 720


def test_a_full_queue_of_a_pool_that_was_not_measured_is_not_empty_in_a_second() -> None:
    desk = Desk(with_endpoint(waiting=10))
    desk.publish(row("acme", 10), rate=0)
    problem = desk.judge()
    assert problem is not None
    assert (problem.reason, problem.retry_after_s) == (Reason.WAITING_LIMIT, 6)


# --- predicted against actual


def test_what_was_predicted_is_told_beside_what_happened() -> None:
    desk = Desk()
    desk.publish(row("acme", 400))
    submission = desk.submission()
    name = RequestName("acme", submission.request.id)
    assert desk.predictor.judge(name, submission, desk.policy) is None
    ended = Terminal("chat", End.SUCCEEDED, "results", 0, 3, arrived_ms=1_000, picked_ms=1_300)
    desk.predictor.ended([Ending(name, ended, None)])
    desk.predictor.ended([Ending(RequestName("acme", "another"), ended, None)])
    desk.now += 200
    desk.publish()
    counts = desk.meter.counts
    assert counts["ingress_predictions",] == 1
    assert counts["ingress_predicted_wait_ms",] == 400
    assert counts["ingress_actual_wait_ms",] == 300
    assert counts["ingress_prediction_error_ms",] == 100
