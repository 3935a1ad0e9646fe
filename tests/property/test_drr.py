"""The heap serves in the order of the textbook's loop, whatever comes, goes and settles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.pick import turns
from scheduler.core.pick.drr import Account, DeficitRoundRobin
from tests.support.plain_drr import PlainRing, PlainTenant

COST_MAX = 30
DEBT_MAX = 70
HALF_LIFE_MS = 1_000


class Member(turns.Member):
    """The least that a ring needs of a tenant."""

    def __init__(self, name: str, increment: int) -> None:
        self.name = name
        self.account = Account()
        self.account.increment = increment
        self.queue: list[int] = []

    def head_order(self) -> int:
        return 0


class Both:
    """The same done to the plain loop and to the heap; two rings beside each other in each.

    In the second ring sits who was sent there, as a burst ring has it.
    """

    def __init__(self, increments: list[int]) -> None:
        self.now_ms = 0
        self.plain = [PlainRing(COST_MAX, DEBT_MAX, HALF_LIFE_MS) for _ in range(2)]
        self.tenants = [PlainTenant(str(i), q) for i, q in enumerate(increments)]
        self.rings = [DeficitRoundRobin() for _ in range(2)]
        for ring in self.rings:
            ring.half_life_ms = HALF_LIFE_MS
        self.members = [Member(str(i), q) for i, q in enumerate(increments)]
        self.home = [0 for _ in increments]
        self.picks = 0

    def add(self, who: int, cost: int) -> None:
        member, tenant, home = self.members[who], self.tenants[who], self.home[who]
        member.queue.append(cost)
        tenant.queue.append(cost)
        if len(member.queue) == 1:
            self.rings[home].enter(member, cost, self.now_ms)
            self.plain[home].enter(tenant, self.now_ms)

    def pick(self, home: int, cost: int = 0) -> None:
        """The cost is ignored: that of the head counts."""
        del cost
        ring, plain = self.rings[home], self.plain[home]
        expected = plain.walk() if plain.seated else None
        chosen = ring.peek()
        if chosen is None or expected is None:
            assert (chosen, expected) == (None, None)
            return
        member, turn = chosen
        assert member.name == expected.name
        cost = member.queue.pop(0)
        assert turn == ring.turn_of(member, cost) == plain.round
        expected.deficit -= expected.queue.pop(0)
        self.picks += 1
        if member.queue and self.picks % 2:
            ring.serve(member, cost, turn, member.queue[0])
        else:
            ring.charge(member, cost, turn)
            self._go_on(int(member.name))
        if not expected.queue:
            plain.leave(expected, self.now_ms)

    def borrow(self, who: int, cost: int) -> None:
        """A pick before the turn: paid like any other, and the pointer stays."""
        del cost
        member, tenant, home = self.members[who], self.tenants[who], self.home[who]
        if member.queue:
            self.rings[home].borrow(member, member.queue.pop(0))
            self._go_on(who)
            tenant.deficit -= tenant.queue.pop(0)
            if not tenant.queue:
                self.plain[home].leave(tenant, self.now_ms)

    def settle(self, who: int, surcharge: int) -> None:
        home = self.home[who]
        member = self.members[who]
        self.rings[home].settle(member, surcharge, DEBT_MAX, COST_MAX, self.now_ms)
        self.plain[home].settle(self.tenants[who], surcharge, self.now_ms)
        if member.queue:
            self.rings[home].reprice(member, member.queue[0])

    def retune(self, who: int, increment: int) -> None:
        member, ring = self.members[who], self.rings[self.home[who]]
        ring.retune(member, increment)
        self.tenants[who].increment = increment
        if member.queue:
            ring.reprice(member, member.queue[0])

    def wait(self, who: int, units: int) -> None:
        del who
        self.now_ms += units * HALF_LIFE_MS // 4

    def move(self, who: int, units: int) -> None:
        """To the sister ring."""
        del units
        member, tenant, home = self.members[who], self.tenants[who], self.home[who]
        self.home[who] = 1 - home
        if member.queue:
            self.rings[home].leave(member, COST_MAX, self.now_ms)
            self.plain[home].leave(tenant, self.now_ms)
        self.rings[1 - home].cross(member.account)
        if member.queue:
            self.rings[1 - home].enter(member, member.queue[0], self.now_ms)
            self.plain[1 - home].enter(tenant, self.now_ms)

    def reload(self, who: int, units: int) -> None:
        """From a snapshot: other objects go on from what the old ones dumped."""
        del who, units
        old = self.rings
        self.rings = [DeficitRoundRobin() for _ in old]
        for ring, before in zip(self.rings, old, strict=True):
            ring.half_life_ms = HALF_LIFE_MS
            ring.load(before.dump())
        for member, home in zip(self.members, self.home, strict=True):
            dumped = old[home].dump_account(member.account)
            member.account = self.rings[home].account()
            self.rings[home].load_account(member.account, dumped)
            if member.queue:
                self.rings[home].reprice(member, member.queue[0])
            assert self.rings[home].dump_account(member.account) == dumped

    def _go_on(self, who: int) -> None:
        member, ring = self.members[who], self.rings[self.home[who]]
        if member.queue:
            ring.reprice(member, member.queue[0])
        else:
            ring.leave(member, COST_MAX, self.now_ms)

    def compare(self) -> None:
        """Balances agree at every moment; so does who follows whom."""
        for tenant, member, home in zip(self.tenants, self.members, self.home, strict=True):
            deficit, credit = self.rings[home].dump_account(member.account)[:2]
            assert (deficit, credit) == (tenant.deficit, tenant.credit), tenant.name
            if member.queue:
                may = self.rings[home].may_borrow(member, member.queue[0], COST_MAX)
                assert may == (tenant.deficit - tenant.cost() >= -COST_MAX)
        for home, ring in enumerate(self.rings):
            seated = [m for m in self.members if m.queue and self.home[int(m.name)] == home]
            seated.sort(key=lambda m: (ring.turn_of(m, m.queue[0]), m.account.seat))
            assert [m.name for m in ring.following(2)] == [m.name for m in seated[1:3]]
            chosen = ring.peek()
            assert (chosen and chosen[0]) == (seated[0] if seated else None)


def act(name: str, *, least: int = 0, most: int = 0) -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.just(name), st.integers(0, 4), st.integers(least, most))


add = act("add", least=1, most=COST_MAX)
pick = st.tuples(st.just("pick"), st.integers(0, 1), st.just(0))
base_pick = st.tuples(st.just("pick"), st.just(0), st.just(0))
settle = act("settle", least=-COST_MAX, most=COST_MAX)
others = st.one_of(
    act("borrow"),
    act("wait", least=1, most=9),
    act("move"),
    act("retune", least=1, most=40),
    act("reload"),
)


@settings(max_examples=400, deadline=None)
@given(
    increments=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    actions=st.lists(st.one_of(add, add, add, base_pick, pick, pick, settle, others), max_size=90),
)
def test_same_order_as_the_plain_loop(
    increments: list[int], actions: list[tuple[str, int, int]]
) -> None:
    both = Both(increments)
    for action, who, amount in actions:
        getattr(both, action)(who, amount)
        both.compare()
    for home in (0, 1):
        while both.plain[home].seated:
            both.pick(home)
        assert both.rings[home].peek() is None


@pytest.mark.parametrize("away", [False, True])
def test_who_returns_within_the_round_is_not_passed_over(away: bool) -> None:
    """Streams of equal weight take turns, though one of them empties with each pick.

    Nor does it matter that it was in the sister ring meanwhile, whose seats are others.
    """
    ring, sister = DeficitRoundRobin(), DeficitRoundRobin()
    guest, steady, brief = Member("guest", 1), Member("steady", 1), Member("brief", 1)
    for member in (guest, brief):
        sister.enter(member, 1, 0)
    sister.leave(brief, COST_MAX, 0)
    sister.cross(brief.account)
    ring.enter(brief, 1, 0)
    ring.enter(steady, 1, 0)
    picked = []
    for _ in range(8):
        chosen = ring.peek()
        assert chosen is not None
        member, turn = chosen
        picked.append(member.name)
        if member is steady:
            ring.serve(member, 1, turn, 1)
            continue
        ring.charge(member, 1, turn)
        ring.leave(member, COST_MAX, 0)
        if away:
            sister.cross(member.account)
            sister.enter(member, 1, 0)
            sister.leave(member, COST_MAX, 0)
            ring.cross(member.account)
        ring.enter(member, 1, 0)
    assert picked == ["brief", "steady"] * 4


def test_a_member_that_was_repriced_to_and_fro_follows_once() -> None:
    ring = DeficitRoundRobin()
    first, second, third = (Member(name, 1) for name in "abc")
    for member in (first, second, third):
        ring.enter(member, 1, 0)
    for cost in (7, 1, 7, 1, 7, 1):
        ring.reprice(second, cost)
    assert ring.following(5) == [second, third]
    assert ring.following(5) == [second, third]


def test_many_members_come_and_go_and_nothing_is_kept_of_them() -> None:
    """Stale entries don't pile up, whether or not anybody peeks."""
    ring = DeficitRoundRobin()
    members = [Member(str(i), 3) for i in range(50)]
    for member in members:
        ring.enter(member, 1, 0)
    for number in range(20_000):
        ring.reprice(members[number % 50], 1 + number * 7919 % 4096)
    assert ring.turns.held < 1_000
    for member in members:
        ring.leave(member, 1, 0)
    assert ring.peek() is None
    assert not ring.turns


def test_a_debt_decays_while_idle_alone_and_for_ever_is_no_longer_than_nothing() -> None:
    ring = DeficitRoundRobin()
    member = Member("a", 10)
    ring.enter(member, 1, 0)
    ring.settle(member, 1_000, 10**6, COST_MAX, 0)
    ring.reprice(member, 1)
    ring.leave(member, COST_MAX, 10**6)
    ring.enter(member, 1, 10**6 + 3 * ring.half_life_ms - 1)
    assert ring.dump_account(member.account)[0] == -250
    ring.leave(member, COST_MAX, 10**7)
    ring.settle(member, 100, 10**6, COST_MAX, 10**7 + ring.half_life_ms)
    assert ring.dump_account(member.account)[0] == -225, "what is posted was not idled away"
    ring.settle(member, 0, 10**6, COST_MAX, 10**7 + 2 * ring.half_life_ms - 1)
    assert ring.dump_account(member.account)[0] == -225
    ring.enter(member, 1, 10**18)
    assert ring.dump_account(member.account)[0] == 0
