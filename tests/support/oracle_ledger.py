"""Books kept from what the core recorded: grants, service, and what is still to be settled.

The books of one pool and tier follow the recorded steps alone. Grants come from a plain walk
of the ring to each recorded pick (its round, its tenant's seat); service is the true cost of
the picks, as it came out at their settlement, 0 for what was handed back or never ran. The
core's own accounts are looked at after every step, and only compared.

For each tenant, with D* = deficit + credit - unsettled, where unsettled is the sum of (true -
estimated) over its picks in flight:

    pick:        deficit -= estimate,          unsettled += true - estimate    D* -= true
    settlement:  deficit -= true - estimate,   unsettled -= true - estimate    D* stays
    visit:       deficit += grant                                              D* += grant

hence, after every step: service = grants - (change of D*) - what the credit's cap took.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.core.apply import apply
from scheduler.core.arrivals import Arrival
from scheduler.core.state import State
from schemas.decisions import Arrived, Ended, Picked, Released, Requeued, Sealed, Step, WorkerSaid
from schemas.policy import Policy
from schemas.records import Finished, HandedBack, pack_key
from tests.support.core import Core
from tests.support.oracle_history import History, Turn
from tests.support.oracle_ring import PlainRing
from tests.support.oracle_scheduler import dearest, true_cost


@dataclass
class Entry:
    """One request: whose it is, its estimate, and whether it may be picked now."""

    tenant: str
    tier: str
    arrived_ms: int
    cost: int = 0
    eligible: bool = False


@dataclass
class Pick:
    """One selection; the truth is known when it is settled, at a later moment."""

    moment: int
    tenant: str
    estimate: int
    truth: int = 0
    settled: int = 1 << 62


@dataclass
class Account:
    """One tenant after one step: by the books, and what the core has in its account."""

    eligible: bool
    visited: bool  # the pointer stands on its seat
    increment: int
    granted: int
    visits: int
    lost: int
    deficit: int  # by the books
    credit: int
    core: tuple[int, int]  # deficit and credit in the core's account
    service: int = 0
    unsettled: int = 0

    @property
    def balance(self) -> int:
        """D*, from the core's account."""
        return sum(self.core) - self.unsettled


@dataclass
class Ledger:
    """The books of one pool and tier; `moments` has the accounts after every step."""

    history: History
    tier: str = "tier0"
    pool: str = "run"
    ring: PlainRing = field(init=False)
    twin: State = field(init=False)
    moments: list[dict[str, Account]] = field(default_factory=list)
    picks: list[Pick] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)
    flying: dict[int, list[tuple[int, Pick | None]]] = field(default_factory=dict)
    opened: list[tuple[int, Pick | None]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    follows_grants: bool = True  # off for controls, which grant in other ways or not at all

    def __post_init__(self) -> None:
        policy = self.history.policy
        endpoint = next(e for e in policy.endpoints if e.pool == self.pool)
        self.ring = PlainRing(dearest(endpoint))
        self.increments = increments(policy, endpoint.quantum)
        self.model = endpoint.cost
        self.endpoint = endpoint.name
        self.twin = Core(policy, slots=self.history.slots).state

    def follow(self, turns: Iterable[Turn]) -> "Ledger":
        """Read a history to its end, then settle the books."""
        for turn in turns:
            self.read(turn)
        self._close()
        return self

    def read(self, turn: Turn) -> None:
        """Read one cycle, step by step."""
        self.twin.now_ms = turn.now_ms
        arrivals = {(read.topic, read.partition): read.arrivals for read in turn.inputs.requests}
        for step in turn.cycle.steps:
            taken: list[Arrival] = []
            if isinstance(step, Arrived):
                taken = arrivals[step.topic, step.partition]
            self._read(step, taken, turn.now_ms)
            apply(self.twin, step, taken)
            self._look()

    # --- one step

    def _read(self, step: Step, arrivals: list[Arrival], now_ms: int) -> None:
        match step:
            case Arrived():
                self._arrived(step, arrivals)
            case Picked():
                self._picked(step)
            case Sealed():
                self.flying[step.number] = self.opened
                self.opened = []
            case Ended():
                self._turn(step.key, eligible=False)
            case Requeued():
                self._turn(step.key, eligible=step.not_before_ms <= now_ms)
            case Released():
                self._turn(step.key, eligible=True)
            case WorkerSaid(record=Finished() | HandedBack() as record):
                self._landed(record)
            case _:
                pass

    def _arrived(self, step: Arrived, arrivals: list[Arrival]) -> None:
        if step.topic not in self.parts:
            self.parts.append(step.topic)
        refused = dict(step.refused)
        for arrival in arrivals:
            if arrival.offset not in refused:
                assert arrival.meta is not None
                key = pack_key(self.parts.index(step.topic), arrival.offset)
                self.entries[key] = Entry(arrival.meta.tenant, step.tier, arrival.timestamp_ms)
                self._turn(key, eligible=True)

    def _landed(self, record: Finished | HandedBack) -> None:
        for place, (key, pick) in enumerate(self.flying.pop(record.number)):
            if pick is None:
                continue
            truth = 0
            if isinstance(record, Finished):
                truth = true_cost(self.model, self.entries[key].cost, record.outcomes[place])
            pick.truth, pick.settled = truth, len(self.moments)
            if truth != pick.estimate:
                self.ring.settle(pick.tenant, truth - pick.estimate)

    def _turn(self, key: int, *, eligible: bool) -> None:
        """A request may be picked from now on, or no more: its tenant may come or leave."""
        entry = self.entries[key]
        before = self.eligible(entry.tenant)
        entry.eligible = eligible
        if entry.tier != self.tier or before == self.eligible(entry.tenant):
            return
        self.ring.member(entry.tenant, self.increments[entry.tenant])
        (self.ring.leave if before else self.ring.enter)(entry.tenant)

    def eligible(self, tenant: str) -> bool:
        return any(
            e.eligible for e in self.entries.values() if (e.tenant, e.tier) == (tenant, self.tier)
        )

    def _picked(self, step: Picked) -> None:
        entry = self.entries[step.key]
        entry.cost = step.cost
        if entry.tier != self.tier:
            self._turn(step.key, eligible=False)
            self.opened.append((step.key, None))
            return
        if self.follows_grants:
            if step.round >= 0:  # below: it fills a batch's rest before its turn, the pointer stays
                self.ring.walk_to(step.round, entry.tenant)
            self.ring.serve(entry.tenant, step.cost)
        pick = Pick(len(self.moments), entry.tenant, step.cost)
        self.picks.append(pick)
        self.opened.append((step.key, pick))
        self._turn(step.key, eligible=False)

    def _look(self) -> None:
        self.moments.append(
            {
                name: Account(
                    eligible=self.eligible(name),
                    visited=member.seat == self.ring.seat and member.round == self.ring.round,
                    increment=member.increment,
                    granted=member.granted,
                    visits=member.visits,
                    lost=member.lost,
                    deficit=member.deficit,
                    credit=member.credit,
                    core=core_account(self.twin, self.pool, self.tier, name),
                )
                for name, member in self.ring.members.items()
            }
        )

    def _close(self) -> None:
        """Now that all truths are known: service, and what was unsettled, at every moment."""
        for number, moment in enumerate(self.moments):
            for pick in self.picks:
                if pick.moment <= number:
                    account = moment[pick.tenant]
                    account.service += pick.truth
                    if number < pick.settled:
                        account.unsettled += pick.truth - pick.estimate


def increments(policy: Policy, quantum: int) -> dict[str, int]:
    return {tenant.name: quantum * tenant.weight for tenant in policy.tenants}


def core_account(state: State, pool: str, tier: str, tenant: str) -> tuple[int, int]:
    """Deficit and credit in the core's own account, grants implied so far included."""
    ring = state.pools[pool].rings[tier]
    queue = ring.queues.get(tenant)
    if queue is None:
        return 0, 0
    deficit, credit = (queue.seated or ring.base).dump_account(queue.account)[:2]
    return deficit, credit


# --- what the books say


def identity_faults(ledger: Ledger) -> list[str]:
    """Where the core's accounts and the identity don't hold; empty if they always do."""
    faults = []
    for number, moment in enumerate(ledger.moments):
        for name, account in moment.items():
            books = account.deficit, account.credit
            if books != account.core:
                faults.append(f"step {number}, {name}: the core has {account.core}, not {books}")
            if account.service != account.granted - account.balance - account.lost:
                faults.append(f"step {number}, {name}: {account} breaks the identity")
    return faults
