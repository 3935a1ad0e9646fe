"""Steps at apply's door: a twin that reads them is the same state; one that does not fit stops."""

from collections.abc import Iterator
from itertools import chain

import pytest
from msgspec.structs import replace

from scheduler.core import apply as applying
from scheduler.core.apply import apply, find_live
from scheduler.core.arrivals import Arrival
from scheduler.core.cycle import Inputs
from scheduler.core.mismatch import StateMismatchError
from scheduler.core.snapshot import dump
from scheduler.core.state import State
from scheduler.core.tenants import Status
from schemas.decisions import (
    Arrived,
    ControlSaid,
    Ended,
    Picked,
    PolicySet,
    Read,
    Released,
    Requeued,
    Sealed,
    Step,
    TopicMet,
    Unpaused,
)
from schemas.policy import Fairness, Policy, Tier
from schemas.records import VERSION, Cancel, Pause, Resume, pack_key
from tests.support.core import NOW_MS, Core
from tests.support.oracle_history import Arrive, History, Tick, Turn, one_pool, with_parents

TOPIC = "requests.tier0"


class Twin:
    """A state that changes by steps alone."""

    def __init__(self, policy: Policy, slots: int = 1) -> None:
        self.state = Core(policy, slots=slots).state

    def read(self, turn: Turn) -> Iterator[Step]:
        """Each step, before it is applied."""
        taken = {(read.topic, read.partition): read.arrivals for read in turn.inputs.requests}
        if turn.cycle.steps:
            self.state.now_ms = turn.now_ms
        for step in turn.cycle.steps:
            yield step
            here = (step.topic, step.partition) if isinstance(step, Arrived) else None
            apply(self.state, step, taken[here] if here is not None else ())
        self.state.seq += bool(turn.cycle.steps)

    def refuses(self, step: Step, why: str) -> None:
        """It stops at the step, says why, and has not changed."""
        picked = list(self.state.open)
        before = b"" if picked else dump(self.state)  # in a batch there is no canonical form
        with pytest.raises(StateMismatchError, match=why):
            apply(self.state, step)
        assert self.state.open == picked
        assert picked or dump(self.state) == before


def wrong(step: Picked, *, is_child: bool) -> Iterator[tuple[Picked, str]]:
    """The same pick with one number that is another, and what is said of it."""
    for cost in (step.cost - 1, step.cost + 1):
        yield replace(step, cost=cost), f"its cost is {step.cost}, not {cost}"
    for seat in (step.seat - 1, step.seat + 1):
        yield replace(step, seat=seat), f"sits on seat {step.seat}, not {seat}"
    if is_child:
        seat = step.inner_seat + 1
        yield replace(step, inner_seat=seat), f"sits on seat {step.inner_seat}, not {seat}"
    if step.round >= 0:
        later = step.round + 1
        why = f"can be served in round {step.round}, not"
        yield replace(step, round=later), f"{why} {later}"
        if step.round:
            yield replace(step, round=0), f"{why} 0"
        if is_child:
            later = step.inner_round + 1
            yield replace(step, inner_round=later), f"round {step.inner_round}, not {later}"


FAMILY = with_parents(one_pool([1, 2, 1, 3], lanes=2), {"bob": "ada", "cleo": "ada"})
PLAIN = one_pool([1, 2, 1, 3], lanes=2, batch_requests=3, batch_tokens=60, tokens_max=60)
FLOORED = replace(
    one_pool([1, 1, 1, 1], lanes=2, tiers=3),
    tiers=(Tier(name="tier0"), Tier(name="tier1", floor=30), Tier(name="tier2", floor=20)),
)


@pytest.mark.parametrize(
    "policy",
    [FAMILY, PLAIN, FLOORED, one_pool([1, 2, 1, 3], fairness=Fairness.VTC)],
    ids=["family", "plain", "floors", "vtc"],
)
def test_a_twin_follows_and_refuses_each_pick_that_is_another(policy: Policy) -> None:
    history, twin = History(policy), Twin(policy)
    last = len(policy.tiers) - 1
    moves = [
        Arrive(who, cost, cost + 3 * who, copies=3, tier=tier)
        for cost in (5, 30, 12)
        for who in range(4)
        for tier in {0, last, last // 2}
    ]
    rounds: list[int] = []
    for turn in chain(history.play(moves), history.drain()):
        for step in twin.read(turn):
            if isinstance(step, Picked):
                live = twin.state.find(step.key)
                assert live is not None
                rounds.append(step.round)
                if len(rounds) % 4 == 1:
                    for other, why in wrong(step, is_child=live.queue.family is not None):
                        twin.refuses(other, why)
        assert dump(twin.state) == dump(history.core.state)
    assert len(set(rounds)) > 2
    assert -1 in rounds or policy is not PLAIN, "batches are small there: some overtake"
    assert not list(twin.state.lives())


def test_only_the_head_of_a_queue_is_picked() -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    for turn in history.play([Arrive(0, 5, 5, copies=9)]):
        for step in twin.read(turn):
            if isinstance(step, Picked):
                behind = replace(step, key=step.key + 1)
                twin.refuses(behind, "is not the head of ada")
                twin.refuses(replace(step, key=step.key + 99), "is not live")


@pytest.mark.parametrize("who", ["ada", "bob"])
def test_who_is_paused_is_not_picked(who: str) -> None:
    """Bob is ada's child: where she is paused, so is he; and she alone where he is."""
    policy = with_parents(one_pool([1, 1, 1]), {"bob": "ada"})
    history, twin = History(policy), Twin(policy)
    history.core.state.pools["run"].lanes[0].slots = 0  # what comes waits
    for turn in history.play([Arrive(0, 5, 5), Arrive(1, 5, 5), Arrive(2, 5, 5)]):
        for _ in twin.read(turn):
            pass
    apply(twin.state, ControlSaid(Pause(VERSION, who, "")))
    for live in list(twin.state.lives()):
        if live.tenant == who:
            twin.refuses(Picked(live.key, 5, 1, 1, 1, 1), f"{who} is blocked")


def test_a_pick_is_income_of_the_floors_below_that_have_work() -> None:
    """A single request that waits is work; a tier without any earns nothing."""
    history = History(replace(FLOORED, pools=(replace(FLOORED.pools[0], lanes=1),)))
    turn = history.arrive(Arrive(1, 7, 7, tier=1), Arrive(0, 5, 5, copies=2))
    assert [batch.requests[0].tenant for batch in turn.cycle.batches] == ["ada"]
    rings = history.core.state.pools["run"].rings
    assert [ring.waiting for ring in rings.values()] == [1, 1, 0]
    assert [ring.credit for ring in rings.values()] == [0, 30 * 5, 0]


# --- batches


def test_a_batch_is_the_next_one_and_has_requests() -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    twin.refuses(Sealed("run", 0, 1), "the next batch is 1, with 0 requests picked")
    for turn in history.play([Arrive(0, 5, 5, copies=3)]):
        for step in twin.read(turn):
            if isinstance(step, Sealed):
                twin.refuses(replace(step, number=2), "the next batch is 1, with 1 requests")
                twin.refuses(replace(step, lane=1), "there is no lane 1 of pool 'run'")
                twin.refuses(replace(step, pool="other"), "there is no lane 0 of pool 'other'")
                twin.refuses(Ended(pack_key(0, 0), "expired"), "is picked")
    assert twin.state.next_number == 2
    assert (twin.state.open, twin.state.open_costs) == ([], [])
    (flight,) = twin.state.pools["run"].lanes[0].flights.values()
    assert flight.charged == [(pack_key(0, 0), 5)]
    twin.refuses(Ended(pack_key(0, 0), "expired"), "is dispatched")


def test_a_waiting_one_is_in_nobodys_hands_until_it_is_handed_back() -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    for turn in history.play([Arrive(0, 5, 5, copies=3)]):
        for _ in twin.read(turn):
            pass
    twin.refuses(Requeued(pack_key(0, 1), 1), "is waiting")
    twin.refuses(Released(pack_key(0, 1)), "is waiting")
    apply(twin.state, Ended(pack_key(0, 1), "expired"))
    twin.refuses(Ended(pack_key(0, 1), "expired"), "is not live")


# --- arrivals


def arrival(offset: int, tenant: str = "ada") -> Arrival:
    core = Core(one_pool([1, 1]))
    made = core.request(tenant, "tier0", id=f"r{offset}", tokens=5)[1]
    return made._replace(offset=offset)


def test_requests_are_taken_in_where_the_last_ones_ended() -> None:
    twin = Twin(one_pool([1, 1]))
    first = Arrived(TOPIC, 0, "tier0", 4, 6, ((5, "expired"),))
    apply(twin.state, first, [arrival(4), arrival(5)])
    assert [live.id for live in twin.state.lives()] == ["r4"]
    assert twin.state.parts[0].position == 6
    assert list(twin.state.recent) == ["r5"]
    for start in (5, 7):
        twin.refuses(Arrived(TOPIC, 0, "tier0", start, 8), "the position there is 6")
    lost = Arrival(6, NOW_MS, 10, None, "unreadable", "no such field")
    with pytest.raises(StateMismatchError, match="offset 6 can't be read any more: no such field"):
        apply(twin.state, Arrived(TOPIC, 0, "tier0", 6, 7), [lost])
    apply(twin.state, Arrived(TOPIC, 0, "tier0", 6, 7, ((6, "unreadable"),)), [lost])
    assert twin.state.parts[0].position == 7


# --- handed back


@pytest.mark.parametrize("attempt", [0, 2])
@pytest.mark.parametrize("later_ms", [-1, 0, 1])
def test_what_comes_back_waits_at_once_or_is_held(later_ms: int, attempt: int) -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    for turn in history.play([Arrive(0, 5, 5)]):
        for _ in twin.read(turn):
            pass
    back = history.back(history.out.pop(), started=False)
    steps = twin.read(back)
    assert not isinstance(next(steps), Requeued)
    assert isinstance(next(steps), Requeued)
    key = pack_key(0, 0)
    timed = twin.state.timed
    before = twin.state.find(key)
    assert before is not None
    assert list(twin.state.returned) == [key]
    apply(twin.state, Requeued(key, attempt, twin.state.now_ms + later_ms))
    live = twin.state.find(key)
    assert live is not None
    assert not twin.state.returned
    assert live.attempt == attempt
    assert twin.state.timed == timed + 1, "its expiry is watched again"
    assert live.status == (Status.HELD if later_ms > 0 else Status.WAITING)
    assert live.not_before_ms == (twin.state.now_ms + later_ms if later_ms > 0 else 0)
    use = live.queue.use
    assert use.waiting == 1
    if later_ms > 0:
        twin.refuses(Requeued(key, 0), "is held")
        apply(twin.state, Released(key))
        assert (use.waiting, live.status) == (1, Status.WAITING)
    apply(twin.state, Ended(key, "expired"))
    assert use.waiting == 0
    assert dict(twin.state.recent.items()) == {live.id: twin.state.now_ms}


def test_what_is_held_may_end_and_waits_no_longer() -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    for turn in history.play([Arrive(0, 5, 5)]):
        for _ in twin.read(turn):
            pass
    for step in twin.read(history.back(history.out.pop(), started=True)):
        if isinstance(step, Requeued):
            assert step.attempt == 1
    live = twin.state.find(pack_key(0, 0))
    assert live is not None
    assert (live.status, live.attempt) == (Status.HELD, 1)
    apply(twin.state, Ended(live.key, "expired"))
    assert live.queue.use.waiting == 0
    assert not list(twin.state.lives())


# --- what else is read


def test_positions_topics_and_policies_are_kept_as_they_are_said() -> None:
    twin = Twin(one_pool([1]))
    apply(twin.state, Read("workers.run", 3, 17))
    apply(twin.state, TopicMet("requests.other", "another"))
    assert twin.state.positions["workers.run", 3] == 17
    assert twin.state.topics["requests.other"] == "another"
    document = twin.state.document.replace(b'"version":1', b'"version":2')
    apply(twin.state, PolicySet(document))
    assert twin.state.policy is not None
    assert twin.state.policy.version == 2


def test_a_place_names_a_request_its_twin_or_nobody() -> None:
    twin = Twin(one_pool([1, 1]))
    assert find_live(twin.state, TOPIC, 0, 0) is None
    again = arrival(1)._replace(meta=arrival(0).meta)
    refused = ((1, "duplicate"),)
    apply(twin.state, Arrived(TOPIC, 0, "tier0", 0, 2, refused), [arrival(0), again])
    live = twin.state.find(pack_key(0, 0))
    assert live is not None
    assert find_live(twin.state, TOPIC, 0, 0) is live
    assert find_live(twin.state, TOPIC, 0, 1) is live
    assert find_live(twin.state, TOPIC, 0, 2) is None
    assert find_live(twin.state, TOPIC, 1, 0) is None


# --- control


def test_a_cancel_that_comes_before_its_request_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "CANCELS_MAX", 2)
    state: State = Twin(one_pool([1, 1])).state
    apply(state, ControlSaid(Cancel(VERSION, "requests.nowhere", 0, 0)))
    assert not state.cancels
    for offset in (7, 3, 5):
        apply(state, ControlSaid(Cancel(VERSION, TOPIC, 0, offset)))
    assert list(state.cancels[TOPIC, 0]) == [7, 3], "no more than so many"
    apply(state, Arrived(TOPIC, 0, "tier0", 0, 4), [arrival(0)])
    assert list(state.cancels[TOPIC, 0]) == [7]
    apply(state, ControlSaid(Cancel(VERSION, TOPIC, 0, 4)))
    assert list(state.cancels[TOPIC, 0]) == [7, 4], "4 is still to come"
    apply(state, ControlSaid(Cancel(VERSION, TOPIC, 0, 3)))
    assert list(state.cancels[TOPIC, 0]) == [7, 4], "3 has come, and it is no request"


def test_a_cancel_marks_what_is_in_a_workers_hands_alone() -> None:
    policy = one_pool([1, 1])
    history, twin = History(policy), Twin(policy)
    for turn in history.play([Arrive(0, 5, 5, copies=2)]):
        for _ in twin.read(turn):
            pass
    for offset in (0, 1, 2):
        apply(twin.state, ControlSaid(Cancel(VERSION, TOPIC, 0, offset)))
    assert [live.cancelled for live in twin.state.lives()] == [True, False]


def seated(state: State) -> list[str]:
    """Tenants that may be picked, of those that wait."""
    ring = state.pools["run"].rings["tier0"]
    return [name for name, queue in ring.active.items() if queue.seated is not None]


@pytest.mark.parametrize(
    ("pause", "left"),
    [
        (("ada", "run"), ["bob"]),
        (("ada", ""), ["bob"]),
        (("", "run"), []),
        (("ada", "other"), ["ada", "bob"]),
        (("nobody", "run"), ["ada", "bob"]),
    ],
)
@pytest.mark.parametrize("by_time", [True, False])
def test_a_pause_takes_seats_and_its_end_gives_them_back(
    pause: tuple[str, str], left: list[str], by_time: bool
) -> None:
    policy = one_pool([1, 1])
    history = History(policy)
    history.core.state.pools["run"].lanes[0].slots = 0  # what comes waits
    for _ in history.play([Arrive(0, 5, 5), Arrive(1, 5, 5), Tick(1)]):
        pass
    state = history.core.state
    assert seated(state) == ["ada", "bob"]
    apply(state, ControlSaid(Pause(VERSION, *pause, 77)))
    assert state.pauses == {pause: 77}
    assert seated(state) == left
    over = Unpaused(*pause) if by_time else ControlSaid(Resume(VERSION, *pause))
    apply(state, over)
    apply(state, over)  # twice is once
    assert not state.pauses
    assert seated(state) == ["ada", "bob"]
    assert len(history.turn(Inputs()).cycle.batches) == 0


def test_so_many_pauses_are_made_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "PAUSES_MAX", 2)
    state = Twin(one_pool([1, 1])).state
    for name in ("x", "y", "z"):
        apply(state, ControlSaid(Pause(VERSION, name, "", 0)))
    assert list(state.pauses) == [("x", ""), ("y", "")]
