"""Two rings, one inside the other, serve in the order of two loops, one inside the other.

As the scheduler composes them: the outer ring's members are families, each with a ring of
its children. The outer ring is asked first, the inner one names the head; a pick and a
settlement are posted in both; whatever changes inside may change the outer head's cost.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.pick import turns
from scheduler.core.pick.drr import Account, DeficitRoundRobin
from tests.support.plain_drr import PlainFamily, PlainRing, PlainTenant, PlainTwoLevels

COST_MAX = 30
CHILDREN = 3
FAMILIES = 3


class Child(turns.Member):
    """The least that a ring needs of a tenant."""

    def __init__(self, name: str, increment: int) -> None:
        self.name = name
        self.account = Account()
        self.account.increment = increment
        self.queue: list[int] = []

    def head_order(self) -> int:
        return 0


class Family(Child):
    """A parent: its head is that of the child that is next."""

    def __init__(self, name: str, increment: int, increments: list[int]) -> None:
        super().__init__(name, increment)
        self.ring = DeficitRoundRobin()
        self.children = [Child(str(i), q) for i, q in enumerate(increments)]

    def cost(self) -> int:
        chosen = self.ring.peek()
        assert chosen is not None
        cost: int = chosen[0].queue[0]
        return cost


class TwoLevels:
    def __init__(self) -> None:
        self.ring = DeficitRoundRobin()

    def add(self, family: Family, child: Child, cost: int) -> None:
        child.queue.append(cost)
        if len(child.queue) == 1:
            family.ring.enter(child, cost, 0)
            self._changed(family)

    def pick(self) -> tuple[str, str, int] | None:
        chosen = self.ring.peek()
        if chosen is None:
            return None
        family, turn = chosen
        inner = family.ring.peek()
        assert inner is not None
        child, inner_turn = inner
        cost: int = child.queue.pop(0)
        self.ring.charge(family, cost, turn)
        if child.queue:
            family.ring.serve(child, cost, inner_turn, child.queue[0])
        else:
            family.ring.charge(child, cost, inner_turn)
            family.ring.leave(child, COST_MAX, 0)
        self._changed(family)
        return family.name, child.name, cost

    def settle(self, family: Family, child: Child, surcharge: int) -> None:
        family.ring.settle(child, surcharge, 10**9, COST_MAX, 0)
        if child.queue:
            family.ring.reprice(child, child.queue[0])
        self.ring.settle(family, surcharge, 10**9, COST_MAX, 0)
        if family.account.seat:
            self._changed(family)

    def _changed(self, family: Family) -> None:
        if family.ring.peek() is None:
            self.ring.leave(family, COST_MAX, 0)
        elif family.account.seat:
            self.ring.reprice(family, family.cost())
        else:
            self.ring.enter(family, family.cost(), 0)


who = st.tuples(st.integers(0, FAMILIES - 1), st.integers(0, CHILDREN - 1))
add = st.tuples(st.just("add"), who, st.integers(1, COST_MAX))
pick = st.tuples(st.just("pick"), who, st.just(0))
settle = st.tuples(st.just("settle"), who, st.integers(-COST_MAX, COST_MAX))
increment = st.integers(1, 40)
family = st.tuples(increment, st.lists(increment, min_size=CHILDREN, max_size=CHILDREN))


@settings(max_examples=250, deadline=None)
@given(
    families=st.lists(family, min_size=FAMILIES, max_size=FAMILIES),
    actions=st.lists(st.one_of(add, add, add, pick, pick, settle), max_size=90),
)
def test_same_order_as_two_plain_loops(
    families: list[tuple[int, list[int]]],
    actions: list[tuple[str, tuple[int, int], int]],
) -> None:
    plain = PlainTwoLevels(COST_MAX)
    parents = [
        PlainFamily(str(i), grant, children=PlainRing(COST_MAX))
        for i, (grant, _) in enumerate(families)
    ]
    kin = [[PlainTenant(str(i), q) for i, q in enumerate(each)] for _, each in families]
    levels = TwoLevels()
    members = [Family(str(i), grant, each) for i, (grant, each) in enumerate(families)]
    for action, (parent, child), amount in actions:
        member, young = members[parent], members[parent].children[child]
        if action == "add":
            levels.add(member, young, amount)
            plain.add(parents[parent], kin[parent][child], amount)
        elif action == "settle":
            levels.settle(member, young, amount)
            plain.settle(parents[parent], kin[parent][child], amount)
        else:
            assert levels.pick() == plain.pick()
    while (expected := plain.pick()) is not None:
        assert levels.pick() == expected
    assert levels.pick() is None


def test_shares_are_divided_among_parents_first_then_among_their_children() -> None:
    """Ten keys under one parent get what one key gets; and a third of it each, by weight."""
    levels = TwoLevels()
    alone = Family("alone", 30, [30])
    many = Family("many", 30, [30] * 10)
    heavy = Family("heavy", 60, [30, 60])
    served: dict[tuple[str, str], int] = {}
    for each in (alone, many, heavy):
        for child in each.children:
            for number in range(1_500):
                levels.add(each, child, 1 + number * 7 % COST_MAX)
    for _ in range(3_000):
        picked = levels.pick()
        assert picked is not None
        parent, name, cost = picked
        served[parent, name] = served.get((parent, name), 0) + cost
    by_parent = {
        each.name: sum(cost for (parent, _), cost in served.items() if parent == each.name)
        for each in (alone, many, heavy)
    }
    assert abs(by_parent["alone"] - by_parent["many"]) <= 2 * (30 + COST_MAX)
    assert abs(by_parent["heavy"] - 2 * by_parent["many"]) <= 4 * (30 + COST_MAX)
    assert abs(served["heavy", "1"] - 2 * served["heavy", "0"]) <= 4 * (30 + COST_MAX)
    ten = [served["many", str(i)] for i in range(10)]
    assert max(ten) - min(ten) <= 2 * (30 + COST_MAX)


def test_a_child_s_visit_goes_on_across_its_parent_s() -> None:
    """Small turns outside, large ones inside: the child is not interrupted by the neighbour."""
    levels = TwoLevels()
    left = Family("left", 1, [3, 3])
    right = Family("right", 1, [1])
    for each in (left, right):
        for child in each.children:
            for _ in range(6):
                levels.add(each, child, 1)
    picks = [levels.pick() for _ in range(12)]
    assert [picked[0] for picked in picks if picked] == ["left", "right"] * 6
    inside = [picked[1] for picked in picks if picked and picked[0] == "left"]
    assert inside == ["0", "0", "0", "1", "1", "1"]
