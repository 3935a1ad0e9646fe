"""The selectors at their edges: what is exact, what is bounded, where a number is at its limit."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.pick import Selector, turns
from scheduler.core.pick.drr import DeficitRoundRobin
from scheduler.core.pick.fifo import FirstInFirstOut
from scheduler.core.pick.order import DEADLINE_BITS, arrived_of, deadline_of, key_of, order
from scheduler.core.pick.tier import credits_after, first_with_floors
from scheduler.core.pick.vtc import VirtualTokenCounter

COST_MAX = 100
#: What a record holds of a number.
RECORDED_MAX = 2**63 - 1


class Member(turns.Member):
    """A tenant; `at` is the order of its head."""

    def __init__(self, ring: Selector, increment: int = 10, at: int = 0) -> None:
        self.account: Any = ring.account()
        self.at = at
        ring.retune(self, increment)

    def head_order(self) -> int:
        return self.at


def push_back(ring: Selector, member: Member) -> None:
    """Move a member that is not the first by one place in the index: an entry is stale."""
    if isinstance(ring, FirstInFirstOut):
        member.at += 1
    else:
        ring.borrow(member, 10)
    ring.reprice(member, 1)


# --- the index


@pytest.mark.parametrize("make", [DeficitRoundRobin, VirtualTokenCounter, FirstInFirstOut])
@pytest.mark.parametrize("members", [3, 7])
def test_stale_entries_are_64_beside_three_a_member(make: Callable[[], Any], members: int) -> None:
    ring = make()
    seated = [Member(ring, at=1_000 * number) for number in range(members)]
    for member in seated:
        ring.enter(member, 1, 0)
    longest = 0
    for number in range(500):
        push_back(ring, seated[1 + number * 5 % (members - 1)])
        held = len(ring._heap) if make is FirstInFirstOut else ring.turns.held
        longest = max(longest, held)
        chosen = ring.peek()
        assert chosen is not None
        assert chosen[0] is seated[0]
    assert set(ring.following(members)) == set(seated[1:])
    assert longest == 64 + 4 * members


@pytest.mark.parametrize("make", [DeficitRoundRobin, VirtualTokenCounter])
@pytest.mark.parametrize("in_one_call", [True, False])
def test_the_index_is_tidied_into_the_right_order(
    make: Callable[[], Any], in_one_call: bool
) -> None:
    """Who has the larger debt was put in first: a list that is no heap would show."""
    ring = make()
    first, *others = seated = [Member(ring) for _ in range(8)]
    for member in seated:
        ring.enter(member, 1, 0)
    for number, member in enumerate(others):
        ring.borrow(member, 1_000 - 100 * number)
        ring.reprice(member, 1)
    for _ in range(200):
        push_back(ring, others[0])
    expected = [first, *others[:0:-1], others[0]]
    assert [ring.peek()[0], *ring.following(7)] == expected
    served = []
    for _ in range(8):
        member, turn = ring.peek()
        served.append(member)
        if in_one_call:
            ring.serve(member, 100_000, turn, 1)
        else:
            ring.charge(member, 100_000, turn)
            ring.reprice(member, 1)
    assert served == expected


def test_the_largest_seat_is_no_counter_and_no_round() -> None:
    for ring in (DeficitRoundRobin(), VirtualTokenCounter()):
        ring.next_seat = 2**48 - 2
        a, b = Member(ring), Member(ring)
        for member in (a, b):
            ring.enter(member, 25, 0)
        assert b.account.seat == 2**48 - 1
        if isinstance(ring, DeficitRoundRobin):
            assert ring.peek() == (a, 3)
        else:
            a.account.counter = b.account.counter = 2**40 + 1  # an odd one: its bits are apart
            ring.reprice(a, 25)
            ring.reprice(b, 25)
            assert ring.peek() == (a, 2**40 + 1)
        assert ring.following(1) == [b]
        ring.leave(a, COST_MAX, 0)
        chosen = ring.peek()
        assert chosen is not None
        assert chosen[0] is b


def test_what_is_new_has_had_nothing() -> None:
    drr, vtc, fifo = DeficitRoundRobin(), VirtualTokenCounter(), FirstInFirstOut()
    assert drr.dump_account(drr.account()) == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert vtc.dump_account(vtc.account()) == [0, 0, 0, 0, 0, 0, 0, 1]
    assert fifo.dump_account(fifo.account()) == [0, 1]
    assert (drr.dump(), vtc.dump(), fifo.dump()) == ([1, 0, 1], [0, 0, 1], [])
    for ring in (drr, vtc, fifo):
        assert ring.peek() is None
        assert ring.following(3) == []


# --- deficit round robin


@pytest.mark.parametrize(
    ("idle_ms", "debt"), [(0, 80), (59_999, 80), (60_000, 40), (179_999, 20), (420_000, 0)]
)
def test_a_debt_is_halved_with_each_minute_unless_told_otherwise(idle_ms: int, debt: int) -> None:
    ring = DeficitRoundRobin()
    member = Member(ring)
    ring.enter(member, 1, 0)
    ring.borrow(member, 80)
    ring.leave(member, COST_MAX, 5_000)
    ring.enter(member, 1, 5_000 + idle_ms)
    assert member.account.deficit == -debt


def test_who_has_no_seat_settles_what_is_older_first() -> None:
    ring = DeficitRoundRobin()
    member = Member(ring)
    ring.enter(member, 1, 0)
    ring.borrow(member, 80)
    ring.leave(member, COST_MAX, 0)
    ring.settle(member, 7, 1_000, COST_MAX, 60_000)
    assert member.account.deficit == -47, "half of what was idled away, all of what is new"
    ring.settle(member, 1, 1_000, COST_MAX, 119_999)
    assert member.account.deficit == -48
    ring.settle(member, 5_000, 1_000, COST_MAX, 119_999)
    assert member.account.deficit == -1_000, "a debt has a floor"
    ring.settle(member, -1_060, 1_000, COST_MAX, 119_999)
    assert (member.account.deficit, member.account.credit) == (0, 60)
    ring.settle(member, -90, 1_000, COST_MAX, 119_999)
    assert (member.account.deficit, member.account.credit) == (0, COST_MAX)
    ring.settle(member, 30, 1_000, COST_MAX, 119_999)
    assert (member.account.deficit, member.account.credit) == (0, 70)
    ring.settle(member, 71, 1_000, COST_MAX, 119_999)
    assert (member.account.deficit, member.account.credit) == (-1, 0)


def test_it_may_borrow_until_it_owes_a_dearest_request() -> None:
    ring = DeficitRoundRobin()
    a, b, c = (Member(ring) for _ in range(3))
    for member in (a, b, c):
        ring.enter(member, 10, 0)
    assert [ring.may_borrow(b, cost, COST_MAX) for cost in (99, 100, 101)] == [True, True, False]
    ring.charge(a, 10, 4)  # the pointer is on a in round 4: the others had three grants
    ring.reprice(a, 10)
    assert [ring.may_borrow(a, cost, COST_MAX) for cost in (130, 131)] == [True, False]
    assert [ring.may_borrow(b, cost, COST_MAX) for cost in (130, 131)] == [True, False]
    ring.charge(b, 10, 4)
    ring.reprice(b, 10)
    assert [ring.may_borrow(b, cost, COST_MAX) for cost in (130, 131)] == [True, False]
    assert [ring.may_borrow(c, cost, COST_MAX) for cost in (130, 131)] == [True, False]
    ring.charge(c, 10, 4)
    ring.reprice(c, 10)
    assert [ring.may_borrow(c, cost, COST_MAX) for cost in (130, 131)] == [True, False]


def test_another_weight_acts_from_the_next_grant_on() -> None:
    ring = DeficitRoundRobin()
    a, b = Member(ring), Member(ring)
    for member in (a, b):
        ring.enter(member, 100, 0)
    ring.charge(a, 100, 10)
    ring.reprice(a, 100)
    ring.retune(b, 1)
    ring.reprice(b, 100)
    assert ring.dump_account(b.account)[:5] == [90, 0, 9, 2, 1]
    assert ring.turn_of(b, 100) == 19
    ring.leave(b, COST_MAX, 0)
    ring.retune(b, 50)
    assert ring.dump_account(b.account)[:5] == [0, 90, 9, 0, 50]


def test_a_turn_counts_the_grants_that_nobody_has_written_down_yet() -> None:
    ring = DeficitRoundRobin()
    a, b = Member(ring), Member(ring)
    for member in (a, b):
        ring.enter(member, 100, 0)
    ring.charge(a, 60, 10)  # 40 are left, and its visit goes on
    assert [ring.turn_of(a, cost) for cost in (40, 41, 51)] == [10, 11, 12]
    assert [ring.turn_of(b, cost) for cost in (25, 90, 91, 100, 101)] == [10, 10, 10, 10, 11]
    ring.charge(b, 100, 10)  # the pointer has passed a
    assert [ring.turn_of(a, cost) for cost in (40, 50, 51)] == [11, 11, 12]
    assert [ring.turn_of(b, cost) for cost in (0, 10, 11)] == [10, 11, 12]


@pytest.mark.parametrize("make", [DeficitRoundRobin, VirtualTokenCounter])
def test_a_turn_that_came_and_went_is_named_once(make: Callable[[], Any]) -> None:
    """Its entry stands in the index twice: it is the one of before again."""
    ring = make()
    first, second, third = seated = [Member(ring) for _ in range(3)]
    for member in seated:
        ring.enter(member, 1, 0)
    for member in (second, third):
        for cost in (50, -50):
            ring.borrow(member, cost)
            ring.reprice(member, 1)
    assert ring.following(9) == [second, third]
    assert ring.following(1) == [second]
    assert ring.peek()[0] is first


def test_who_leaves_takes_the_grants_of_the_rounds_that_passed() -> None:
    ring = DeficitRoundRobin()
    a, b, c = (Member(ring) for _ in range(3))
    for member in (a, b):
        ring.enter(member, 100, 0)
    ring.charge(a, 100, 10)
    ring.reprice(a, 100)
    ring.leave(b, COST_MAX, 0)
    assert (b.account.deficit, b.account.credit) == (0, 90)
    ring.enter(c, 25, 0)  # and who comes now has had none of them
    assert ring.turn_of(c, 25) == 12
    assert ring.dump_account(c.account)[:4] == [0, 0, 9, 3]


def test_rounds_and_seats_of_a_sister_ring_are_others() -> None:
    here, there = DeficitRoundRobin(), DeficitRoundRobin()
    there.next_seat = 5
    member = Member(here)
    here.enter(member, 10, 0)
    here.charge(member, 10, 1)
    here.leave(member, COST_MAX, 0)
    here.cross(member.account)
    there.enter(member, 10, 0)
    assert (member.account.seat, member.account.granted) == (5, 0)
    there.charge(member, 10, 1)
    there.leave(member, COST_MAX, 0)
    there.cross(member.account)
    here.enter(member, 10, 0)
    assert (member.account.seat, member.account.granted) == (1, 1)
    assert here.peek() == (member, 2), "it had its grant of round 1"
    assert here.dump() == [1, 1, 2]


# --- virtual token counters


def test_a_counter_beyond_a_record_is_dumped_in_two_and_a_turn_is_its_end() -> None:
    ring = VirtualTokenCounter()
    member = Member(ring)
    member.account.counter = (5 << 62) + 2**61 + 3
    ring.enter(member, 1, 0)
    assert ring.peek() == (member, 2**61 + 3)
    assert ring.turn_of(member, 1) == 2**61 + 3
    assert ring.dump_account(member.account) == [5, 2**61 + 3, 0, 0, 0, 0, 1, 10]
    again = ring.account()
    ring.load_account(again, [5, 2**61 + 3, 0, 0, 4, 0, 1, 10])
    assert (again.counter, again.rest) == (member.account.counter, 4)
    ring.leave(member, COST_MAX, 0)
    assert ring.dump() == [5, 2**61 + 3, 2]
    other = VirtualTokenCounter()
    other.load(ring.dump())
    assert (other.last, other.next_seat) == (member.account.counter, 2)


def test_what_a_division_leaves_over_is_kept() -> None:
    ring = VirtualTokenCounter()
    a, b = Member(ring, 3), Member(ring, 3)
    ring.enter(a, 1, 0)
    for _ in range(2):
        ring.serve(a, 1, 0, 1)
    ring.charge(a, 1, 0)
    assert (a.account.counter, a.account.rest) == (1 << 40, 0)
    ring.reprice(a, 1)
    b.account.rest = 2
    ring.enter(b, 1, 0)
    assert (b.account.counter, b.account.rest) == (1 << 40, 0), "lifted: nothing is left over"
    ring.charge(b, 1, 0)
    left = b.account.rest
    assert left
    ring.retune(b, 3)
    assert b.account.rest == left, "the same weight"
    ring.retune(b, 4)
    assert b.account.rest == 0, "of another weight it would be worth something else"
    ring.settle(b, -9, 0, 0, 0)
    assert (b.account.counter, b.account.rest) == (0, 0), "nobody falls below zero"
    b.account.rest = 2
    ring.settle(b, 0, 0, 0, 0)
    assert (b.account.counter, b.account.rest) == (0, 2)


def test_who_left_last_settles_what_a_return_is_lifted_to() -> None:
    ring = VirtualTokenCounter()
    a, b = Member(ring, 1), Member(ring, 1)
    ring.enter(a, 1, 0)
    ring.charge(a, 5, 0)
    ring.leave(a, COST_MAX, 0)
    ring.settle(a, 2, 0, 0, 0)
    assert ring.last == 7 << 40
    ring.settle(a, -4, 0, 0, 0)
    assert ring.last == 7 << 40, "it never falls"
    ring.enter(b, 1, 0)
    assert b.account.counter == 7 << 40
    ring.settle(a, 50, 0, 0, 0)
    assert ring.last == 7 << 40, "somebody has work: nothing is lifted to it"
    ring.enter(a, 1, 0)
    assert a.account.counter == 53 << 40, "who is ahead stays there"


# --- one queue


def test_in_one_queue_there_is_one_seat_and_no_turn() -> None:
    ring = FirstInFirstOut()
    member = Member(ring, at=7)
    ring.enter(member, 1, 0)
    assert (member.account.seat, ring.turn_of(member, 1)) == (1, 0)
    assert ring.dump_account(member.account) == [1, 10]
    assert ring.peek() == (member, 0)
    ring.leave(member, COST_MAX, 0)
    assert (member.account.seat, member.account.entry) == (0, -1)
    assert ring.may_borrow(member, 10**9, 1) is True


def test_one_queue_charges_nothing_and_sorts_anew_what_it_tidied() -> None:
    ring = FirstInFirstOut()
    seated = [Member(ring, at=1_000 * (9 - number)) for number in range(9)]
    for member in seated:
        ring.enter(member, 1, 0)
    for _ in range(200):
        push_back(ring, seated[0])
    seated[4].at = 0
    ring.serve(seated[4], 1, 0, 1)
    expected = [seated[4], *seated[:4:-1], *seated[3::-1]]
    assert [ring.peek(), ring.following(8)] == [(expected[0], 0), expected[1:]]


# --- tiers and the order


@pytest.mark.parametrize(("credit", "rank"), [(699, 0), (700, 1), (701, 1)])
def test_a_floor_is_due_when_its_credit_is_exactly_its_heads(credit: int, rank: int) -> None:
    assert first_with_floors([True, True], [3, 10], [0, 30], [0, credit]) == rank
    assert credits_after(1, 10, [True, True], [0, 30], [0, credit]) == [0, credit - 700]
    assert credits_after(0, 10, [True, True], [0, 30], [0, credit]) == [0, credit + 300]


def test_an_order_is_laid_out_as_it_is_recorded() -> None:
    packed = order(3, 5, 7, 11)
    assert packed == 3 << 160 | 5 << 112 | 7 << 64 | 11
    assert order(3, 0, 7, 11) == 3 << 160 | (2**48 - 1) << 112 | 7 << 64 | 11
    assert order(3, 5, 7, 11, 20) == 67 << 160 | 5 << 112 | 7 << 64 | 11
    assert DEADLINE_BITS == (2**48 - 1) << 112
    assert order(3, 0, 7, 11) & DEADLINE_BITS == DEADLINE_BITS
    assert order(0, 0, 0, 2**64 - 1) & ~DEADLINE_BITS == 2**64 - 1


@pytest.mark.parametrize(
    ("deadline_ms", "arrived_ms", "deadline", "arrived"),
    [
        (-1, 9, 1, 9),
        (9, -1, 9, 0),
        (-5, 0, 1, 0),
        (2**48, 0, 0, 0),
        (9, 2**48, 9, 2**48 - 1),
        (0, -1, 0, 0),
        (1, -1, 1, 0),
        (2**48 - 2, 2**48, 2**48 - 2, 2**48 - 1),
    ],
)
def test_the_first_time_that_no_clock_shows(
    deadline_ms: int, arrived_ms: int, deadline: int, arrived: int
) -> None:
    packed = order(4, deadline_ms, arrived_ms, 6)
    assert packed >> 160 == 4
    assert (deadline_of(packed), arrived_of(packed), key_of(packed)) == (deadline, arrived, 6)


def waiting_for_nine_rounds() -> tuple[DeficitRoundRobin, Member]:
    """A ring whose pointer stands on its first seat in round 10, and who sits behind it."""
    ring = DeficitRoundRobin()
    first, second = Member(ring, 10), Member(ring, 10)
    ring.enter(first, 100, 0)
    ring.enter(second, 1_000, 0)
    ring.charge(first, 100, ring.turn_of(first, 100))
    assert (ring.round, ring.seat) == (10, first.account.seat)
    return ring, second


def test_grants_that_are_implied_stand_in_a_dump() -> None:
    ring, second = waiting_for_nine_rounds()
    assert ring.dump_account(second.account)[:3] == [90, 0, 9]


def test_grants_that_are_implied_are_paid_with_before_a_debt_is_cut_off() -> None:
    ring, second = waiting_for_nine_rounds()
    ring.settle(second, 1_000, 50, 1_000, 0)
    assert ring.dump_account(second.account)[0] == -50


def test_one_is_enough_to_be_kept_to_be_cancelled_and_to_be_forgiven() -> None:
    ring = DeficitRoundRobin()
    member = Member(ring, 10)
    ring.enter(member, 9, 0)
    ring.charge(member, 9, ring.turn_of(member, 9))
    ring.leave(member, COST_MAX, 0)
    assert ring.dump_account(member.account)[:2] == [0, 1]
    ring.settle(member, 1, COST_MAX, COST_MAX, 0)
    assert ring.dump_account(member.account)[:2] == [0, 0]
    ring.settle(member, 1, COST_MAX, COST_MAX, 0)
    assert ring.dump_account(member.account)[:2] == [-1, 0]
    ring.enter(member, 9, ring.half_life_ms)
    assert member.account.deficit == 0


# --- sister rings of counters


def test_a_counter_stands_in_each_ring_of_its_own() -> None:
    """What was served in one ring counts in it alone, and is there again after a way back."""
    base, burst = VirtualTokenCounter(), VirtualTokenCounter()
    member = Member(base, 3)
    base.enter(member, 1, 0)
    base.charge(member, 1, 0)
    base.leave(member, COST_MAX, 0)
    there = base.dump_account(member.account)
    burst.cross(member.account)
    assert burst.dump_account(member.account)[:2] == [0, 0]
    burst.enter(member, 1, 0)
    burst.charge(member, 2, 0)
    burst.leave(member, COST_MAX, 0)
    base.cross(member.account)
    here = base.dump_account(member.account)
    assert (here[:2], here[4]) == (there[:2], there[4])
    again = base.account()
    base.load_account(again, here)
    assert base.dump_account(again) == here
    base.cross(again)
    assert again.counter == 2 * (1 << 40) // 3
    assert again.rest == 2 * (1 << 40) % 3


def test_a_counter_of_the_other_ring_beyond_a_record_is_loaded_whole() -> None:
    ring = VirtualTokenCounter()
    account = ring.account()
    account.counter_there = (7 << 62) + 5
    again = ring.account()
    ring.load_account(again, ring.dump_account(account))
    assert again.counter_there == account.counter_there


def test_counters_may_always_borrow() -> None:
    ring = VirtualTokenCounter()
    assert ring.may_borrow(Member(ring), COST_MAX, 1) is True
