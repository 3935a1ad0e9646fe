"""The heap serves in the order of the textbook's loop, whatever comes, goes and settles."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.pick.drr import Account, DeficitRoundRobin
from tests.support.plain_drr import PlainRing, PlainTenant


class Member:
    """The least that the ring needs of a tenant."""

    def __init__(self, name: str, increment: int) -> None:
        self.name = name
        self.account = Account()
        self.account.increment = increment
        self.queue: list[int] = []


add = st.tuples(st.just("add"), st.integers(0, 4), st.integers(1, 30))
pick = st.tuples(st.just("pick"), st.just(0), st.just(0))
settle = st.tuples(st.just("settle"), st.integers(0, 4), st.integers(-20, 20))


@settings(max_examples=400, deadline=None)
@given(
    increments=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    actions=st.lists(st.one_of(add, add, pick, pick, settle), max_size=120),
)
def test_same_order_as_the_plain_loop(
    increments: list[int], actions: list[tuple[str, int, int]]
) -> None:
    plain = PlainRing()
    plain_tenants = [PlainTenant(str(i), q) for i, q in enumerate(increments)]
    ring = DeficitRoundRobin()
    members = [Member(str(i), q) for i, q in enumerate(increments)]
    for action, who, amount in actions:
        member, tenant = members[who], plain_tenants[who]
        if action == "add":
            member.queue.append(amount)
            plain.add(tenant, amount)
            if len(member.queue) == 1:
                ring.enter(member, amount, 0)
        elif action == "pick":
            assert served(ring) == plain.pick()
        elif member.account.seat:  # settlement of seated tenants; idle ones: next test
            ring.settle(member, amount, 10**9, 30, 0)
            ring.reprice(member, member.queue[0])
            plain.settle(tenant, amount)
    while (expected := plain.pick()) is not None:
        assert served(ring) == expected
    assert ring.peek() is None


def served(ring: DeficitRoundRobin) -> tuple[str, int] | None:
    chosen = ring.peek()
    if chosen is None:
        return None
    member, turn = chosen
    cost = member.queue.pop(0)
    if member.queue:
        ring.serve(member, cost, turn, member.queue[0])
    else:
        ring.charge(member, cost, turn)
        ring.leave(member, 30, 0)
        member.account.credit = 0  # the oracle has none
    return member.name, cost
