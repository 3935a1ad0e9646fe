"""What holds of every selector: one suite over all of them, whatever they choose."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from scheduler.core.pick import Selector, turns
from scheduler.core.pick.drr import DeficitRoundRobin
from scheduler.core.pick.fifo import FirstInFirstOut
from scheduler.core.pick.vtc import VirtualTokenCounter

COST_MAX = 30
MEMBERS = 6

SELECTORS: list[Callable[[], Selector]] = [
    DeficitRoundRobin,
    VirtualTokenCounter,
    FirstInFirstOut,
]


class Member(turns.Member):
    """A tenant whose head is a cost and an order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.account: Any = None
        self.queue: list[tuple[int, int]] = []

    def head_order(self) -> int:
        return self.queue[0][1]

    def cost(self) -> int:
        return self.queue[0][0]


class Ring:
    """A selector under a random history; `style` varies how the same is done."""

    def __init__(self, make: Callable[[], Selector], seed: int, style: str) -> None:
        self.make = make
        self.style = style
        self.selector = make()
        self.selector.half_life_ms = 1_000
        self.dice = Random(seed)
        self.members = [Member(str(i)) for i in range(MEMBERS)]
        for number, member in enumerate(self.members):
            member.account = self.selector.account()
            self.selector.retune(member, 1 + number * 5)
        self.now_ms = self.arrived = 0
        self.picks: list[tuple[str, int, int]] = []

    def run(self, steps: int) -> list[tuple[str, int, int]]:
        for _ in range(steps):
            self.now_ms += self.dice.randrange(200)
            self.step(self.dice.choice(["add", "add", "add", "pick", "pick", "other"]))
            if self.style == "reloaded":
                self.reload()
            if self.style == "looked at":
                self.selector.following(3)
                self.selector.peek()
        return self.picks

    def step(self, action: str) -> None:
        member = self.dice.choice(self.members)
        cost = self.dice.randint(1, COST_MAX)
        if action == "add":
            self.arrived += 1
            member.queue.append((cost, self.arrived))
            if len(member.queue) == 1:
                self.selector.enter(member, cost, self.now_ms)
        elif action == "pick":
            self.pick()
        elif cost < COST_MAX // 2:
            self.selector.settle(member, cost - 8, 100, COST_MAX, self.now_ms)
            if member.queue:
                self.selector.reprice(member, member.cost())
        elif member.queue:
            self.selector.borrow(member, member.queue.pop(0)[0])
            self.go_on(member)

    def pick(self) -> None:
        chosen = self.selector.peek()
        seated = [member for member in self.members if member.queue]
        if chosen is None:
            assert not seated, "somebody waits, so somebody is next"
            return
        member, turn = chosen
        assert member in seated
        assert self.selector.turn_of(member, member.cost()) == turn
        cost, arrived = member.queue.pop(0)
        self.picks.append((member.name, turn, arrived))
        if member.queue and self.style != "in two calls":
            self.selector.serve(member, cost, turn, member.cost())
        else:
            self.selector.charge(member, cost, turn)
            self.go_on(member)

    def go_on(self, member: Member) -> None:
        if member.queue:
            self.selector.reprice(member, member.cost())
        else:
            self.selector.leave(member, COST_MAX, self.now_ms)

    def reload(self) -> None:
        old, self.selector = self.selector, self.make()
        self.selector.half_life_ms = old.half_life_ms
        self.selector.load(old.dump())
        for member in self.members:
            dumped = old.dump_account(member.account)
            assert all(isinstance(number, int) for number in dumped)
            member.account = self.selector.account()
            self.selector.load_account(member.account, dumped)
            if member.queue:
                self.selector.reprice(member, member.cost())
        assert self.selector.dump() == old.dump()


@pytest.mark.parametrize("style", ["in two calls", "reloaded", "looked at"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", SELECTORS)
def test_the_same_history_in_another_way_gives_the_same_picks(
    make: Callable[[], Selector], seed: int, style: str
) -> None:
    plain = Ring(make, seed, "in one call").run(600)
    assert len(plain) > 100
    assert Ring(make, seed, style).run(600) == plain


@pytest.mark.parametrize("make", SELECTORS)
def test_following_is_who_comes_after_the_first(make: Callable[[], Selector]) -> None:
    ring = Ring(make, 1, "in one call")
    for number in range(40):
        ring.step("add")
        if number % 3 == 0:
            ring.step("pick")
    chosen = ring.selector.peek()
    assert chosen is not None
    seated = [member for member in ring.members if member.queue]
    after = ring.selector.following(MEMBERS)
    assert len(after) == len(seated) - 1
    assert {member.name for member in [chosen[0], *after]} == {member.name for member in seated}
    for limit in range(MEMBERS):
        assert ring.selector.following(limit) == after[:limit]
    assert ring.selector.peek() == chosen
    ring.selector.leave(chosen[0], COST_MAX, 0)
    following = ring.selector.peek()
    assert following is not None
    assert following[0] is after[0]
    assert ring.selector.following(MEMBERS) == after[1:]


@pytest.mark.parametrize("make", SELECTORS)
def test_two_sister_rings_never_mistake_each_other_s_entries(
    make: Callable[[], Selector],
) -> None:
    """A member is in one of them at a time, however often it moves."""
    dice = Random(5)
    rings = [make(), make()]
    members = [Member(str(i)) for i in range(MEMBERS)]
    home = [0] * MEMBERS
    for number, member in enumerate(members):
        member.account = rings[0].account()
        member.queue = [(1, number)]
        rings[0].enter(member, 1, 0)
    for number in range(MEMBERS, 2_000):
        who = dice.randrange(MEMBERS)
        member, ring = members[who], rings[home[who]]
        member.queue[0] = (dice.randint(1, COST_MAX), dice.choice([number, member.queue[0][1]]))
        if dice.random() < 1 / 2:
            ring.leave(member, COST_MAX, 0)
            home[who] = 1 - home[who]
            rings[home[who]].cross(member.account)
            rings[home[who]].enter(member, member.cost(), 0)
        else:
            ring.reprice(member, member.cost())
        for side, one in enumerate(rings):
            chosen = one.peek()
            here = [chosen[0], *one.following(MEMBERS)] if chosen else []
            expected = [member.name for member, at in zip(members, home, strict=True) if at == side]
            assert sorted(member.name for member in here) == expected


def test_a_head_that_moves_to_another_member_before_the_first_is_repriced() -> None:
    """As when a tenant leaves its family: for a moment both are said to have the head."""
    queue = FirstInFirstOut()
    family, child = Member("family"), Member("child")
    for member in (family, child):
        member.account = queue.account()
        member.queue = [(1, 7)]
    queue.enter(family, 1, 0)
    queue.enter(child, 1, 0)
    family.queue = [(1, 9)]
    queue.reprice(family, 1)
    assert queue.peek() == (child, 0)
    assert queue.following(1) == [family]
    queue.leave(family, 1, 0)
    queue.leave(child, 1, 0)
    assert queue.peek() is None
