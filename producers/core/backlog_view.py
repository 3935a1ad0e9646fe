"""One pool as an ingress sees it: what was published last, and what it let in since.

Pure: published records, times and what was let in come in, numbers for `core.predicted` go out.
A request counts as let in since for as long as no head is known that was made after it; then it
waits in the published queues, or has been picked. What other ingresses let in meanwhile is not
known: it is in the next head.

Queues older than `STALE_MS` are not read. A scheduler whose clock is off is not believed about
time: a head was made between the moments at which this ingress met it and the one before.
"""

from typing import NamedTuple

from producers.core.predicted import PERCENT, Levels, Ring, Standing, wait_ms
from schemas.backlog import (
    RATE_MS,
    STALE_MS,
    PoolBacklog,
    QueueRow,
    QueueSlice,
    TierBacklog,
)
from schemas.policy import CostModel, Endpoint, Policy
from schemas.records import Request

#: A head is older than what it says by this at the most, if clocks agree: a read, a cycle.
LAG_MS = 50
#: ... and it was made so long before it was met at the most.
AGE_MS_MAX = 500
#: Orders of requests that are told apart among those let in since, for each queue.
HEADS_MAX = 64
#: An estimate is at least one token for so many bytes: the scheduler's floor.
FLOOR_BYTES_PER_TOKEN = 16


class Place(NamedTuple):
    """Whose queue a request waits in: rank of the tier, the tenant, its family or itself."""

    rank: int
    tenant: str
    member: str


class Let(NamedTuple):
    """A request that was let in: when, where, and what it adds."""

    at_ms: int
    place: Place
    work: int
    tokens: int
    head: int


class Prediction(NamedTuple):
    """Milliseconds from now to a request's pick, and to its end: likely, and at the latest."""

    wait_ms: int
    end_ms: int
    latest_ms: int


class _Since:
    """What was let in since of one queue."""

    __slots__ = ("by_head", "count", "tokens", "work")

    def __init__(self) -> None:
        self.count = self.tokens = self.work = 0
        self.by_head: dict[int, int] = {}  #: work, by `head`

    def add(self, let: Let, sign: int) -> None:
        self.count += sign
        self.tokens += sign * let.tokens
        self.work += sign * let.work
        head = let.head
        if head not in self.by_head and len(self.by_head) >= HEADS_MAX:
            head = -1  # before everything
        self.by_head[head] = self.by_head.get(head, 0) + sign * let.work

    def before(self, head: int) -> int:
        """Work of those that go before a request that comes now."""
        return sum([work for other, work in self.by_head.items() if other <= head])


class PoolView:
    """What is known of one pool. Rows are kept by their slice: each replaces what it told."""

    def __init__(self) -> None:
        """Know nothing."""
        self.head: PoolBacklog | None = None
        self.slices: list[QueueSlice] = []
        self._made_ms = 0
        self._met_ms = 0
        self._rows: dict[tuple[int, str], tuple[QueueRow, int]] = {}
        self._families: dict[tuple[int, str], dict[str, QueueRow]] = {}
        self._let: dict[int, Let] = {}  #: in the order in which they came
        self._number = 0
        self._since: dict[tuple[int, str], _Since] = {}
        self._extra: dict[tuple[int, str], int] = {}
        self._levels: list[Levels] = []
        self._work: list[int] = []

    # --- what is published

    def take(
        self, head: PoolBacklog, slices: dict[int, QueueSlice], policy: Policy, now_ms: int
    ) -> None:
        """Take over a head, and those slices that are others than before."""
        is_new = self.head is None or self.head.at_ms != head.at_ms
        self.head = head
        for index, written in slices.items():
            self._replace(index, written, policy)
        for index in range(len(head.stamps), len(self.slices)):
            self._replace(index, QueueSlice(head.v, 0, ()), policy)
        del self.slices[len(head.stamps) :]
        if is_new:
            self._met_ms = now_ms
            self._made_ms = min(max(head.at_ms, now_ms - AGE_MS_MAX), now_ms)
        self._start_over(policy)

    def is_fresh(self, now_ms: int) -> bool:
        """Whether anything may be concluded from it."""
        return self.head is not None and now_ms - self._met_ms <= STALE_MS

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits, and nothing was let in since."""
        head = self.head
        if head is None or head.running or self._let:
            return False
        return not any(tier.count for tier in head.tiers)

    def _replace(self, index: int, written: QueueSlice, policy: Policy) -> None:
        while len(self.slices) <= index:
            self.slices.append(QueueSlice(written.v, 0, ()))
        for row in self.slices[index].queues:
            name = row.tier, row.tenant
            known = self._rows.get(name)
            if known is not None and known[1] == index:
                del self._rows[name]
                self._families.get((row.tier, policy.root(row.tenant)), {}).pop(row.tenant, None)
        self.slices[index] = written
        for row in written.queues:
            self._rows[row.tier, row.tenant] = (row, index)
            member = policy.root(row.tenant)
            self._families.setdefault((row.tier, member), {})[row.tenant] = row

    def _start_over(self, policy: Policy) -> None:
        """Levels and sums as published, and what was let in since on top of them."""
        assert self.head is not None
        self._levels = [Levels(tier.levels) for tier in self.head.tiers]
        self._work = [tier.work for tier in self.head.tiers]
        self._since.clear()
        self._extra.clear()
        before_ms = self._made_ms - LAG_MS
        self._let = {number: let for number, let in self._let.items() if let.at_ms > before_ms}
        for let in self._let.values():
            self._add(let, policy, 1)

    # --- what is let in

    def let_in(self, let: Let, policy: Policy) -> int:
        """Count a request; returns the number to withdraw it by."""
        self._number += 1
        self._let[self._number] = let
        self._add(let, policy, 1)
        return self._number

    def withdraw(self, number: int, policy: Policy) -> None:
        """It was not let in after all."""
        let = self._let.pop(number, None)
        if let is not None:  # else it was so long ago that it is not counted any more
            self._add(let, policy, -1)

    def _add(self, let: Let, policy: Policy, sign: int) -> None:
        rank, tenant, member = let.place
        if rank >= len(self._levels):
            return
        since = self._since.get((rank, tenant))
        if since is None:
            since = self._since[rank, tenant] = _Since()
        since.add(let, sign)
        self._work[rank] += sign * let.work
        levels, weight = self._levels[rank], _weight(policy, member)
        waits = self._waits(rank, member)
        self._extra[rank, member] = self._extra.get((rank, member), 0) + sign * let.work
        levels.remove(waits, weight)
        levels.add(waits + sign * let.work, weight)

    def _waits(self, rank: int, member: str) -> int:
        """What a member of a ring has waiting."""
        family = self._families.get((rank, member))
        told = sum([row.work for row in family.values()]) if family else 0
        return told + self._extra.get((rank, member), 0)

    # --- what follows

    def place(self, tenant: str, tier: str, policy: Policy) -> Place | None:
        """Where a request waits; None: the scheduler does not know the tier yet."""
        assert self.head is not None
        for rank, known in enumerate(self.head.tiers):
            if known.name == tier:
                return Place(rank, tenant, policy.root(tenant))
        return None

    def work_of(self, request: Request, size: int, endpoint: Endpoint) -> tuple[int, int]:
        """What a request adds: work in the pool's unit, and tokens, as the scheduler counts."""
        assert self.head is not None
        given = request.input_tokens + request.output_tokens_max
        most = min(request.inputs * endpoint.tokens_max, endpoint.batch_tokens)
        tokens = min(max(given, size // FLOOR_BYTES_PER_TOKEN + 1), most)
        if self.head.unit is CostModel.REQUEST:
            return request.inputs, tokens
        if self.head.unit is CostModel.TOKEN:
            return tokens, tokens
        learned_ms = tokens * self.head.us_per_token // 1_000
        return min(max(1, learned_ms), endpoint.service_ms_max), tokens

    def waiting(self, place: Place) -> tuple[int, int]:
        """Requests and tokens of a tenant that wait, in all tiers."""
        count = tokens = 0
        for rank in range(len(self._levels)):
            since = self._since.get((rank, place.tenant))
            if since is not None:
                count += since.count
                tokens += since.tokens
            row = self._row(rank, place.tenant)
            if row is not None:
                count += row.count
                tokens += row.tokens
        return count, tokens

    def _row(self, rank: int, tenant: str) -> QueueRow | None:
        """A queue, unless what is known of it is old."""
        known = self._rows.get((rank, tenant))
        if known is None or self.head is None:
            return None
        is_old = self.head.at_ms - self.slices[known[1]].at_ms > STALE_MS
        return None if is_old else known[0]

    def predict(self, place: Place, work: int, head: int, policy: Policy, now_ms: int) -> int:
        """Milliseconds until a request of this work would be picked, if it were let in now."""
        assert self.head is not None
        return self.passes_ms(self.standing(place, work, head, policy), now_ms)

    def passes_ms(self, standing: Standing, now_ms: int) -> int:
        """Milliseconds from now until all of it was served."""
        return max(0, wait_ms(standing) - (now_ms - self._made_ms))

    def standing(self, place: Place, work: int, head: int, policy: Policy) -> Standing:
        """What stands between a request and its start."""
        assert self.head is not None
        rank, tenant, _ = place
        row = self._row(rank, tenant)
        since = self._since.get((rank, tenant))
        is_first = row is None or head < row.head
        ahead = 0 if is_first or row is None else row.work
        published = self.head
        return Standing(
            residual_ms=published.residual_ms,
            higher=sum(self._work[:rank]),
            ahead=ahead + (since.before(head) if since else 0),
            debt=row.debt if row else 0,
            cost=work,
            rings=self._rings(place, policy),
            rate=published.rate,
            lost=_lost(published.tiers, rank, published.rate),
            floor=published.tiers[rank].floor,
            empty=_empty(published),
        )

    def _rings(self, place: Place, policy: Policy) -> tuple[Ring, ...]:
        rank, tenant, member = place
        weight = _weight(policy, member)
        outer = Ring(self._levels[rank], weight, self._waits(rank, member))
        if member == tenant and not policy.children(tenant):
            return (outer,)
        siblings = Levels()
        for name, row in self._families.get((rank, member), {}).items():
            if name != tenant:
                siblings.add(row.work, row.weight)
        # a parent's own requests are one more child, of weight 1
        return Ring(siblings, 1 if member == tenant else _weight(policy, tenant)), outer


def _weight(policy: Policy, tenant: str) -> int:
    known = policy.tenant(tenant)
    return known.weight if known else 1


def _empty(head: PoolBacklog) -> int:
    """What slots that nothing runs in take up at once: a batch of the usual size each."""
    empty = min(head.room, head.slots - head.running)
    parts = max(1, head.slots) * RATE_MS
    return (max(0, empty) * head.rate * head.service_ms + parts // 2) // parts


def _lost(tiers: tuple[TierBacklog, ...], rank: int, rate: int) -> int:
    """What other tiers take of the rate: those above as lately, those below their floors."""
    above = sum([tier.taken for tier in tiers[:rank]])
    below = sum([tier.floor for tier in tiers[rank + 1 :] if tier.count])
    return above + below * rate // PERCENT
