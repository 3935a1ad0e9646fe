"""The textbook's deficit round robin as a plain loop, in one level and in two.

The oracle of the heap in scheduler/core/pick/drr.py, written from its header alone and kept
slow and obvious: a list of chairs, a pointer, and grants made one by one as it moves.
"""

from dataclasses import dataclass, field


@dataclass(eq=False)
class PlainTenant:
    """What waits, and what it may spend. A parent stands for the child that is next in it."""

    name: str
    increment: int
    queue: list[int] = field(default_factory=list)
    deficit: int = 0
    credit: int = 0
    idle_since_ms: int = 0

    def cost(self) -> int:
        """Of the head."""
        return self.queue[0]


class PlainRing:
    """Chairs in a row; `at` is the one that the pointer stands on."""

    def __init__(self, cost_max: int, debt_max: int = 10**9, half_life_ms: int = 60_000) -> None:
        self.cost_max = cost_max
        self.debt_max = debt_max
        self.half_life_ms = half_life_ms
        self.chairs: list[PlainTenant] = []
        self.seated: list[PlainTenant] = []  # the other chairs are empty, until the round ends
        self.granted: dict[str, int] = {}  # the last round in which each was visited
        self.at = -1
        self.round = 1

    def enter(self, tenant: PlainTenant, now_ms: int = 0) -> None:
        """Sit down at the tail, or where one was visited in this round already."""
        self._decay(tenant, now_ms)
        if tenant not in self.chairs:
            self.chairs.append(tenant)
        self.seated.append(tenant)

    def leave(self, tenant: PlainTenant, now_ms: int = 0) -> None:
        """Stand up. The chair stays until the round ends, if it was visited in it."""
        self.seated.remove(tenant)
        if self.granted.get(tenant.name, 0) < self.round:
            assert self.chairs.index(tenant) > self.at, "it was not visited, so it is ahead"
            self.chairs.remove(tenant)
        self._keep(tenant)
        tenant.idle_since_ms = now_ms

    def next(self) -> PlainTenant | None:
        """Who is served next; nothing is changed."""
        if not self.seated:
            return None
        deficits = [(tenant, tenant.deficit) for tenant in self.chairs]
        before = self.chairs, self.granted, self.at, self.round
        self.chairs, self.granted = list(self.chairs), dict(self.granted)
        found = self.walk()
        self.chairs, self.granted, self.at, self.round = before
        for tenant, deficit in deficits:
            tenant.deficit = deficit
        return found

    def walk(self) -> PlainTenant:
        """Move the pointer to who is served next."""
        while True:
            if 0 <= self.at < len(self.chairs):
                tenant = self.chairs[self.at]
                if tenant in self.seated and tenant.cost() <= tenant.deficit:
                    return tenant
            self.at += 1
            if self.at >= len(self.chairs):
                self.at = 0
                self.round += 1
                self.chairs = [tenant for tenant in self.chairs if tenant in self.seated]
            tenant = self.chairs[self.at]
            if tenant in self.seated:
                assert self.granted.get(tenant.name, 0) < self.round, "one visit a round"
                self.granted[tenant.name] = self.round
                tenant.deficit += tenant.increment

    def settle(self, tenant: PlainTenant, surcharge: int, now_ms: int = 0) -> None:
        """Post true minus estimated cost."""
        if tenant not in self.seated:
            self._decay(tenant, now_ms)
            tenant.idle_since_ms = now_ms
        if surcharge > 0:
            cancelled = min(surcharge, tenant.credit)
            tenant.credit -= cancelled
            surcharge -= cancelled
        tenant.deficit = max(tenant.deficit - surcharge, -self.debt_max)
        if tenant not in self.seated:
            self._keep(tenant)

    def _keep(self, tenant: PlainTenant) -> None:
        if tenant.deficit > 0:
            tenant.credit = min(tenant.credit + tenant.deficit, self.cost_max)
            tenant.deficit = 0

    def _decay(self, tenant: PlainTenant, now_ms: int) -> None:
        idle_ms = now_ms - tenant.idle_since_ms
        while idle_ms >= self.half_life_ms and tenant.deficit < 0:
            tenant.deficit = -(-tenant.deficit // 2)
            idle_ms -= self.half_life_ms


@dataclass(eq=False)
class PlainFamily(PlainTenant):
    """A parent: a seat in the outer ring, and a ring of its children."""

    children: PlainRing = field(default_factory=lambda: PlainRing(10**9))
    named: PlainTenant | None = None

    def cost(self) -> int:
        assert self.named is not None
        return self.named.cost()


class PlainTwoLevels:
    """The loop of families; each visit spends the family's grant in the loop of its children."""

    def __init__(self, cost_max: int) -> None:
        self.ring = PlainRing(cost_max)

    def add(self, family: PlainFamily, child: PlainTenant, cost: int) -> None:
        child.queue.append(cost)
        if child not in family.children.seated:
            family.children.enter(child)
        if family not in self.ring.seated:
            self.ring.enter(family)

    def pick(self) -> tuple[str, str, int] | None:
        for family in self.ring.seated:
            assert isinstance(family, PlainFamily)
            family.named = family.children.next()
        if not self.ring.seated:
            return None
        family = self.ring.walk()
        assert isinstance(family, PlainFamily)
        child = family.children.walk()
        assert child is family.named
        cost = child.queue.pop(0)
        family.deficit -= cost
        child.deficit -= cost
        if not child.queue:
            family.children.leave(child)
        if not family.children.seated:
            self.ring.leave(family)
        return family.name, child.name, cost

    def settle(self, family: PlainFamily, child: PlainTenant, surcharge: int) -> None:
        """The parent is paid back, and so is the child in the parent's own ring."""
        family.children.settle(child, surcharge)
        self.ring.settle(family, surcharge)
