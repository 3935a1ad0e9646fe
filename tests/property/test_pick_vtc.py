"""Virtual token counters serve in the order of the plain loop, and keep the paper's bound."""

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.pick import turns
from scheduler.core.pick.vtc import VirtualTokenCounter
from tests.support.plain_vtc import PlainClient, PlainCounters

COST_MAX = 30
#: What a record holds of a number.
RECORDED_MAX = 2**63 - 1


class Member(turns.Member):
    """The least that the counters need of a tenant."""

    def __init__(self, ring: VirtualTokenCounter, name: str, increment: int) -> None:
        self.name = name
        self.account = ring.account()
        self.queue: list[int] = []
        ring.retune(self, increment)

    def head_order(self) -> int:
        return 0


class Both:
    """The same done to the plain loop and to the heap."""

    def __init__(self, increments: list[int]) -> None:
        self.plain = PlainCounters()
        self.clients = [PlainClient(str(i), q) for i, q in enumerate(increments)]
        self.ring = VirtualTokenCounter()
        self.members = [Member(self.ring, str(i), q) for i, q in enumerate(increments)]
        self.picks = 0

    def add(self, who: int, cost: int) -> None:
        member, client = self.members[who], self.clients[who]
        member.queue.append(cost)
        client.queue.append(cost)
        if len(member.queue) == 1:
            self.ring.enter(member, cost, 0)
            self.plain.enter(client)

    def pick(self, who: int, cost: int = 0) -> None:
        del who, cost
        client, chosen = self.plain.next(), self.ring.peek()
        if chosen is None or client is None:
            assert (chosen, client) == (None, None)
            return
        member, turn = chosen
        assert member.name == client.name
        cost = member.queue.pop(0)
        assert turn == self.ring.turn_of(member, cost)
        assert 0 <= turn <= RECORDED_MAX
        self.picks += 1
        if member.queue and self.picks % 2:
            self.ring.serve(member, cost, turn, member.queue[0])
        else:
            self.ring.charge(member, cost, turn)
            self._go_on(member)
        client.charge(client.queue.pop(0))
        if not client.queue:
            self.plain.leave(client)

    def borrow(self, who: int, cost: int) -> None:
        del cost
        member, client = self.members[who], self.clients[who]
        if member.queue:
            self.ring.borrow(member, member.queue.pop(0))
            self._go_on(member)
            client.charge(client.queue.pop(0))
            if not client.queue:
                self.plain.leave(client)

    def settle(self, who: int, surcharge: int) -> None:
        member = self.members[who]
        self.ring.settle(member, surcharge, 1, 1, 0)
        if member.queue:
            self.ring.reprice(member, member.queue[0])
        self.plain.settle(self.clients[who], surcharge)

    def retune(self, who: int, increment: int) -> None:
        self.ring.retune(self.members[who], increment)
        self.clients[who].reweigh(increment)

    def reload(self, who: int, amount: int) -> None:
        """From a snapshot: other objects go on from what the old ones dumped."""
        del who, amount
        old, self.ring = self.ring, VirtualTokenCounter()
        self.ring.load(old.dump())
        for member in self.members:
            dumped = old.dump_account(member.account)
            assert max(dumped) <= RECORDED_MAX
            member.account = self.ring.account()
            self.ring.load_account(member.account, dumped)
            if member.queue:
                self.ring.reprice(member, member.queue[0])
            assert self.ring.dump_account(member.account) == dumped

    def _go_on(self, member: Member) -> None:
        if member.queue:
            self.ring.reprice(member, member.queue[0])
        else:
            self.ring.leave(member, 1, 0)

    def compare(self) -> None:
        """Counters agree at every moment; so does who follows whom."""
        for client, member in zip(self.clients, self.members, strict=True):
            assert client.counter() == member.account.counter, client.name
        seated = sorted(self.plain.present, key=PlainClient.counter)
        assert [m.name for m in self.ring.following(2)] == [c.name for c in seated[1:3]]


def act(name: str, least: int, most: int) -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.just(name), st.integers(0, 4), st.integers(least, most))


add = act("add", 1, COST_MAX)
pick = act("pick", 0, 0)
others = st.one_of(
    act("borrow", 0, 0), act("settle", -40, 40), act("retune", 1, 12), act("reload", 0, 0)
)


@settings(max_examples=300, deadline=None)
@given(
    increments=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    actions=st.lists(st.one_of(add, add, pick, pick, others), max_size=90),
)
def test_same_order_as_the_plain_loop(
    increments: list[int], actions: list[tuple[str, int, int]]
) -> None:
    both = Both(increments)
    for action, who, amount in actions:
        getattr(both, action)(who, amount)
        both.compare()
    while both.plain.present:
        both.pick(0)
    assert both.ring.peek() is None


def test_counters_beyond_a_recorded_number_go_on_exactly() -> None:
    """2**62 units are 4 million of cost at a quantum of one: a few seconds of tokens."""
    both = Both([1, 1, 3, 7, 10**9])
    for who in range(5):
        both.add(who, 10**6)
    for number in range(300):
        both.pick(0)
        both.add(number % 5, 10**6 + number)
        both.compare()
    assert max(client.counter() for client in both.clients) > 2**65
    both.reload(0, 0)
    both.compare()
    both.pick(0)


@pytest.mark.parametrize("seed", range(4))
def test_over_any_interval_two_busy_tenants_stay_together(seed: int) -> None:
    """With exact estimates the gap of weighted service is at most two of the dearest requests."""
    dice = Random(seed)
    weights = [1, 2, 3, 1]
    both = Both(weights)
    bound = 2 * COST_MAX
    served = [Fraction(0) for _ in weights]
    gaps: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    widest = Fraction(0)
    for _ in range(3_000):
        if dice.random() < 1 / 16:
            who = dice.randrange(4)
            for _ in range(dice.randint(1, 30)):
                both.add(who, dice.randint(1, COST_MAX))
        chosen = both.ring.peek()
        if chosen is not None:
            who = int(chosen[0].name)
            served[who] += Fraction(chosen[0].queue[0], weights[who])
        both.pick(0)
        for i in range(4):
            for j in range(i):
                if not (both.members[i].queue and both.members[j].queue):
                    gaps.pop((i, j), None)
                    continue
                gap = served[i] - served[j]
                least, most = gaps.get((i, j), (gap, gap))
                gaps[i, j] = min(least, gap), max(most, gap)
                widest = max(widest, gaps[i, j][1] - gaps[i, j][0])
    assert COST_MAX / 2 < widest <= bound


def test_who_is_away_is_not_repaid_for_it() -> None:
    both = Both([1, 1, 1, 1, 1])
    for _ in range(50):
        both.add(0, 10)
    for _ in range(20):
        both.pick(0)
    for _ in range(20):
        both.add(1, 10)
    before = [len(both.members[who].queue) for who in (0, 1)]
    for _ in range(20):
        both.pick(0)
    assert [n - len(both.members[who].queue) for who, n in enumerate(before)] == [10, 10]


def test_a_refund_of_what_others_were_charged_buys_nothing() -> None:
    both = Both([1, 1, 1, 1, 1])
    both.settle(0, -1_000)
    for _ in range(10):
        both.add(0, 10)
        both.add(1, 10)
    order = []
    for _ in range(10):
        chosen = both.ring.peek()
        assert chosen is not None
        order.append(chosen[0].name)
        both.pick(0)
    assert order == ["0", "1"] * 5


def test_nothing_is_kept_of_who_left() -> None:
    ring = VirtualTokenCounter()
    members = [Member(ring, str(i), 1) for i in range(20)]
    for number in range(10_000):
        member = members[number % 20]
        if number % 3 == 0 and member.account.seat:
            ring.leave(member, 1, 0)
        elif not member.account.seat:
            ring.enter(member, 1, 0)
        else:
            ring.charge(member, number % 7 + 1, 0)
            ring.reprice(member, 1)
    assert ring.turns.held < 500
    for member in members:
        if member.account.seat:
            ring.leave(member, 1, 0)
    assert ring.peek() is None
    assert not ring.turns
