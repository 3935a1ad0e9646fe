"""Waiting limits at the door, and until when who was let in counts for them."""

from sys import setprofile

import pytest
from msgspec.structs import replace

from producers.core.let_in import UNHEARD_MS, Place
from schemas.backlog import STALE_MS
from schemas.front import RequestName
from schemas.policy import Inbox, Predict, Tenant
from schemas.reasons import TABLE, Reason
from tests.support.predictions import POLICY, Desk, row, with_endpoint


def reason(desk: Desk, tenant: str = "acme", tier: str = "gold", **fields: int) -> str:
    problem = desk.judge(tenant, tier, **fields)
    return problem.reason.value if problem else "in"


def test_no_more_wait_than_may() -> None:
    desk = Desk(with_endpoint(waiting=12, predict=Predict.OFF))
    desk.publish(row("acme", 10))
    assert [reason(desk) for _ in range(4)] == ["in", "in", "waiting_limit", "waiting_limit"]
    problem = desk.judge()
    assert problem is not None
    assert problem.status == TABLE[Reason.WAITING_LIMIT].status == 429
    numbers = {"limit_name": "waiting", "limit": 12, "used": 12, "remaining": 0}
    assert dict(problem.extra) == numbers
    (state,) = problem.limits
    assert state == ("waiting", 12, 12, 0, 0, problem.retry_after_s)
    assert problem.retry_after_s >= 1
    assert reason(desk, "bolt") == "in"


def test_tokens_that_wait_are_limited_and_too_many_never_fit() -> None:
    desk = Desk(with_endpoint(waiting_tokens=150, predict=Predict.OFF))
    desk.publish(row("acme", 10))
    problem = desk.judge(input_tokens=151)
    assert problem is not None
    assert (problem.reason, problem.retry_after_s) == (Reason.NEVER_FITS, 0)
    assert reason(desk, input_tokens=51) == "waiting_limit"
    assert reason(desk, input_tokens=50) == "in"
    assert reason(desk, input_tokens=1) == "waiting_limit"


def test_nothing_may_wait_where_the_limit_is_zero() -> None:
    desk = Desk(with_endpoint(waiting=0, predict=Predict.OFF))
    desk.publish()
    assert reason(desk) == "never_fits"


def test_a_parents_limit_counts_its_children() -> None:
    desk = Desk(with_endpoint(waiting=20, predict=Predict.OFF))
    desk.publish(row("kid", 10), row("sis", 9))
    assert [reason(desk, "kid"), reason(desk, "kid")] == ["in", "waiting_limit"]
    assert reason(desk, "acme") == "in"


def test_a_family_with_many_children_is_looked_at_in_a_few_steps() -> None:
    children = tuple(Tenant(name=f"k{n}", tiers=("gold",), parent="big") for n in range(3_000))
    big = Tenant(name="big", tiers=("gold",))
    desk = Desk(replace(with_endpoint(waiting=10**6), tenants=(*POLICY.tenants, big, *children)))
    rows = [row(child.name, 2) for child in children]
    desk.publish(*rows, row("big", 5))
    desk.judge("k7", in_ms=10**8)
    view = desk.predictor.views["chat"]
    for tenant, waiting in (("big", 6_006), ("k7", 3), ("k8", 2)):
        assert view.waiting(Place(0, tenant, "big"))[0] == waiting
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    submission = desk.submission("k8", in_ms=10**8)
    setprofile(count)
    try:
        desk.predictor.judge(RequestName("k8", "x"), submission, desk.policy)
    finally:
        setprofile(None)
    assert calls < 500


def test_a_child_that_moves_to_another_parent_leaves_nothing_behind() -> None:
    desk = Desk(with_endpoint(waiting=100, predict=Predict.OFF))
    desk.publish(row("kid", 10), row("sis", 9))
    others = [replace(each, parent="") if each.name == "kid" else each for each in POLICY.tenants]
    desk.policy = replace(desk.policy, tenants=tuple(others))
    desk.now += 200
    desk.publish(row("kid", 10), row("sis", 9))
    view = desk.predictor.views["chat"]
    assert view.waiting(Place(0, "home", "home"))[0] == 9
    assert view.waiting(Place(0, "kid", "kid"))[0] == 10


# --- who was let in, and is not read yet

REQUESTS = ("t.requests.gold", 3)


def let_in(desk: Desk, tenant: str = "acme") -> RequestName:
    """A request is let in, and its publish is under way."""
    submission = desk.submission(tenant)
    name = RequestName(tenant, submission.request.id)
    assert desk.predictor.judge(name, submission, desk.policy) is None
    return name


def test_who_was_let_in_counts_until_the_scheduler_has_read_it() -> None:
    desk = Desk(with_endpoint(waiting=3, predict=Predict.OFF))
    desk.publish(read=((*REQUESTS, 40),))
    names = [let_in(desk) for _ in range(3)]
    for name in names:
        desk.now += 700
        desk.publish(read=((*REQUESTS, 40),))  # a head, and none of them is read
        assert reason(desk) == "waiting_limit"
        desk.predictor.published(name, REQUESTS, 40 + names.index(name))
        desk.predictor.settle(name, is_in=True)
    desk.now += 700
    desk.publish(row("acme", 1), read=((*REQUESTS, 41),))
    assert reason(desk) == "waiting_limit"
    desk.now += 700
    desk.publish(row("acme", 1), read=((*REQUESTS, 43),))
    assert [reason(desk) for _ in range(3)] == ["in", "in", "waiting_limit"]


def test_what_the_head_has_already_is_counted_once() -> None:
    desk = Desk()
    desk.publish(read=((*REQUESTS, 40),))
    name = let_in(desk)
    desk.now += 5  # it is read at once, and its acknowledgement comes later
    desk.publish(row("acme", 1), read=((*REQUESTS, 41),))
    desk.predictor.published(name, REQUESTS, 40)
    desk.predictor.settle(name, is_in=True)
    assert desk.waits_ms() == 1


def test_a_head_whose_queues_were_written_again_meanwhile_is_left_to_the_next_one() -> None:
    desk = Desk()
    desk.publish(row("acme", 7))
    head = desk.board.values["chat"]
    desk.now += 200
    desk.publish(row("acme", 9))
    newer = Desk()
    newer.board.values = {**desk.board.values, "chat": head}
    newer.follow()
    assert newer.predictor.views == {}
    newer.board.values = desk.board.values
    newer.follow()
    assert newer.waits_ms() == 9


def test_a_caller_who_left_before_its_request_was_in_is_not_counted_for_ever() -> None:
    desk = Desk(with_endpoint(waiting=1, predict=Predict.OFF))
    desk.publish()
    name = let_in(desk)
    desk.now += UNHEARD_MS
    desk.publish()
    assert reason(desk) == "waiting_limit"
    desk.now += 1_000
    desk.publish()
    assert reason(desk) == "in"
    desk.predictor.settle(name, is_in=False)
    assert reason(desk) == "waiting_limit"


def test_who_was_let_in_while_nothing_fresh_was_known_counts_as_well() -> None:
    desk = Desk(with_endpoint(waiting=2, predict=Predict.OFF))
    desk.publish(read=((*REQUESTS, 40),))
    desk.now += 10 * STALE_MS
    for offset in range(40, 45):
        name = let_in(desk)
        desk.predictor.published(name, REQUESTS, offset)
        desk.predictor.settle(name, is_in=True)
    desk.publish(read=((*REQUESTS, 40),))
    assert reason(desk) == "waiting_limit"
    desk.now += 200
    desk.publish(read=((*REQUESTS, 45),))
    assert reason(desk) == "in"


@pytest.mark.parametrize(
    ("inbox", "limit", "told"),
    [
        (Inbox.HOLD, 5, "unavailable"),
        (Inbox.REFUSE, 5, "in"),
        (Inbox.HOLD, None, "in"),
    ],
)
def test_an_inbox_that_holds_is_held_while_it_is_not_known_what_waits(
    inbox: Inbox, limit: int | None, told: str
) -> None:
    tenants = [replace(each, inbox=inbox) for each in POLICY.tenants]
    desk = Desk(replace(with_endpoint(waiting=limit), tenants=tuple(tenants)), may_hold=True)
    assert reason(desk) == told
    desk.publish()
    assert reason(desk) == "in"
    desk.now += 10 * STALE_MS
    assert reason(desk) == told
