"""One pool as an ingress sees it: what was published last, and what it let in since.

Pure: published records, times and what was let in come in, numbers for `core.predicted` go out.
A request counts as let in since until the scheduler has read it (`core.let_in`); then it waits in
the published queues, or has been picked. What other ingresses let in meanwhile is not known: it
is in the next head. Sums of each ring's member are kept, so that a request costs as much
whatever the number of its siblings.

A scheduler whose clock is off is not believed about
time: a head was made between the moments at which this ingress met it and the one before.
"""

from typing import NamedTuple

from producers.core.let_in import LETS_MAX, Let, LetIns, Place
from producers.core.predicted import PERCENT, Levels, Ring, Standing, wait_ms
from schemas.backlog import (
    RATE_MS,
    STALE_LOOKS,
    STALE_MS,
    PoolBacklog,
    QueueRow,
    QueueSlice,
    TierBacklog,
)
from schemas.log import Partition
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


class Prediction(NamedTuple):
    """Milliseconds from now to a request's pick, and to its end: likely, and at the latest."""

    wait_ms: int
    end_ms: int
    latest_ms: int


class _Since:
    """What was let in since of one queue, or of all queues of one member of a ring."""

    __slots__ = ("by_head", "count", "tokens", "work")

    def __init__(self) -> None:
        self.count = self.tokens = self.work = 0
        self.by_head: dict[int, int] = {}  #: work, by `head`

    def add(self, let: Let, sign: int) -> None:
        self.count += sign
        self.tokens += sign * let.tokens
        self.work += sign * let.work

    def place(self, let: Let) -> Let:
        """The request as it is told apart: of too many orders the last ones are all the first."""
        is_known = let.head in self.by_head or len(self.by_head) < HEADS_MAX
        return let if is_known else let._replace(head=-1)

    def order(self, let: Let, sign: int) -> None:
        work = self.by_head.pop(let.head, 0) + sign * let.work
        if work > 0:
            self.by_head[let.head] = work

    def before(self, head: int) -> int:
        """Work of those that go before a request that comes now."""
        return sum([work for other, work in self.by_head.items() if other <= head])


class _Family:
    """What is published of a parent: its own queue and its children's, in one tier."""

    __slots__ = ("children", "count", "own", "tokens", "work")

    def __init__(self) -> None:
        self.count = self.tokens = self.work = 0
        self.own: QueueRow | None = None
        self.children: Levels | None = None  #: the ring inside, without the own queue

    def add(self, row: QueueRow) -> None:
        self._sum(row, 1)
        self.own = row

    def add_child(self, row: QueueRow) -> None:
        self._sum(row, 1)
        if self.children is None:
            self.children = Levels()
        self.children.add(row.work, row.weight)

    def remove(self, row: QueueRow) -> None:
        self._sum(row, -1)
        if row is self.own:
            self.own = None
        elif self.children is not None:
            self.children.remove(row.work, row.weight)

    def _sum(self, row: QueueRow, sign: int) -> None:
        self.count += sign * row.count
        self.tokens += sign * row.tokens
        self.work += sign * row.work


class PoolView:
    """What is known of one pool. Rows are kept by their slice: each replaces what it told."""

    def __init__(self) -> None:
        """Know nothing."""
        self.head: PoolBacklog | None = None
        self.slices: list[QueueSlice] = []
        self._made_ms = 0
        self._met_ms = 0
        self._rows: dict[tuple[int, str], tuple[QueueRow, int, str]] = {}  #: slice, family
        self._families: dict[tuple[int, str], _Family] = {}
        self._let = LetIns()
        self._since: dict[tuple[int, str], _Since] = {}  #: by queue
        self._since_of: dict[tuple[int, str], _Since] = {}  #: by member
        self._levels: list[Levels] = []
        self._work: list[int] = []

    # --- what is published

    def take(
        self, head: PoolBacklog, slices: dict[int, QueueSlice], policy: Policy, now_ms: int
    ) -> None:
        """Take over a head, and those slices that are others than before."""
        known, self.head = self.head, head
        for index, written in slices.items():
            self._replace(index, written, policy)
        for index in range(len(head.stamps), len(self.slices)):
            self._replace(index, QueueSlice(head.v, 0, ()), policy)
        del self.slices[len(head.stamps) :]
        if known is None or known.at_ms != head.at_ms:
            self._met_ms = now_ms
            self._made_ms = min(max(head.at_ms, now_ms - AGE_MS_MAX), now_ms)
        if known is None or [t.name for t in known.tiers] != [t.name for t in head.tiers]:
            self._let.clear()  # ranks are others now
            self._since.clear()
            self._since_of.clear()
        self._start_over(policy, now_ms)

    def is_fresh(self, now_ms: int) -> bool:
        """Whether anything may be concluded from it."""
        if self.head is None:
            return False
        return now_ms - self._met_ms <= max(STALE_MS, STALE_LOOKS * self.head.every_ms)

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
            known = self._rows.get((row.tier, row.tenant))
            if known is not None and known[1] == index:
                self._remove(row.tier, row.tenant)
        self.slices[index] = written
        for row in written.queues:
            if (row.tier, row.tenant) in self._rows:
                self._remove(row.tier, row.tenant)  # another slice told it before
            tenant = row.tenant
            root = policy.root(tenant)
            is_alone = root == tenant and not policy.children(tenant)
            self._rows[row.tier, tenant] = (row, index, "" if is_alone else root)
            if is_alone:
                continue
            family = self._families.get((row.tier, root))
            if family is None:
                family = self._families[row.tier, root] = _Family()
            (family.add if root == tenant else family.add_child)(row)

    def _remove(self, rank: int, tenant: str) -> None:
        row, _, root = self._rows.pop((rank, tenant))
        if root:
            family = self._families[rank, root]
            family.remove(row)
            if not family.count:
                del self._families[rank, root]

    def _told(self, rank: int, member: str) -> "QueueRow | _Family | None":
        """What is published of a member of a ring."""
        return self._families.get((rank, member)) or self._row(rank, member)

    def _start_over(self, policy: Policy, now_ms: int) -> None:
        """Levels and sums as published, and what was let in since on top of them."""
        assert self.head is not None
        for let in self._let.read(self.head.read, self._made_ms - LAG_MS, now_ms):
            self._count(let, -1)
        self._levels = [Levels(tier.levels) for tier in self.head.tiers]
        self._work = [tier.work for tier in self.head.tiers]
        for (rank, member), since in self._since_of.items():
            self._pile(rank, member, 0, since.work, policy)

    # --- what is let in

    def let_in(self, let: Let, policy: Policy) -> int:
        """Count a request; returns the number to tell of it by."""
        if len(self._let) >= LETS_MAX:
            return 0
        rank, tenant, _ = let.place
        since = self._since.get((rank, tenant))
        let = since.place(let) if since else let
        self._add(let, policy, 1)
        return self._let.add(let)

    def withdraw(self, number: int, policy: Policy) -> None:
        """It was not let in after all."""
        let = self._let.drop(number)
        if let is not None:  # else it was so long ago that it is not counted any more
            self._add(let, policy, -1)

    def stands(self, number: int, partition: Partition, offset: int, policy: Policy) -> None:
        """It is in the log there."""
        let = self._let.stands(number, partition, offset)
        if let is not None:
            self._add(let, policy, -1)

    def counts(self, number: int) -> bool:
        """Whether a request still counts as let in since."""
        return number in self._let

    def doubt(self, number: int) -> None:
        """It may be in the log, unless `stands` says where."""
        self._let.doubt(number)

    def _add(self, let: Let, policy: Policy, sign: int) -> None:
        rank, _, member = let.place
        since = self._since_of.get((rank, member))
        before = since.work if since else 0
        self._count(let, sign)
        self._pile(rank, member, before, before + sign * let.work, policy)

    def _count(self, let: Let, sign: int) -> None:
        """Count a request among those of its queue and its ring's member."""
        rank, tenant, member = let.place
        for all_of, name in ((self._since, tenant), (self._since_of, member)):
            since = all_of.get((rank, name))
            if since is None:
                since = all_of[rank, name] = _Since()
            since.add(let, sign)
            if all_of is self._since:
                since.order(let, sign)
            if not since.count:
                del all_of[rank, name]

    def _pile(self, rank: int, member: str, before: int, after: int, policy: Policy) -> None:
        """What was let in since of a member changes from `before` to `after`."""
        levels, weight = self._levels[rank], _weight(policy, member)
        told = self._told(rank, member)
        work = told.work if told else 0
        self._work[rank] += after - before
        levels.remove(work + before, weight)
        levels.add(work + after, weight)

    def _waits(self, rank: int, member: str) -> int:
        """What a member of a ring has waiting."""
        told, since = self._told(rank, member), self._since_of.get((rank, member))
        return (told.work if told else 0) + (since.work if since else 0)

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
        """Requests and tokens of a tenant and its children that wait, in all tiers."""
        count = tokens = 0
        is_member = place.tenant == place.member
        for rank in range(len(self._levels)):
            name = rank, place.tenant
            told = self._told(*name) if is_member else self._row(*name)
            since = (self._since_of if is_member else self._since).get(name)
            for part in (told, since):
                if part is not None:
                    count += part.count
                    tokens += part.tokens
        return count, tokens

    def _row(self, rank: int, tenant: str) -> QueueRow | None:
        """A queue as it was told last: with very many that is some time ago."""
        known = self._rows.get((rank, tenant))
        return known[0] if known else None

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
        told, row = self._families.get((rank, member)), self._row(rank, tenant)
        siblings = told.children.copy() if told and told.children else Levels()
        if member == tenant:  # a parent's own requests are one more child, of weight 1
            return Ring(siblings, 1), outer
        if row is not None:
            siblings.remove(row.work, row.weight)
        if told and told.own:
            siblings.add(told.own.work, told.own.weight)
        return Ring(siblings, _weight(policy, tenant)), outer


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
