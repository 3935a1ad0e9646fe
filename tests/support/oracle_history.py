"""Histories for the core's door: what comes, ends, is lost and cancelled, one cycle each.

A history is a list of moves; hypothesis draws it, or a seeded dice. `play` hands it to the
core cycle by cycle; what the core read and did in each is a `Turn`, which any judge can take.
Nothing in here judges.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.core.cycle import Inputs, RequestRange
from scheduler.core.decided import BatchOut, Cycle
from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier
from schemas.records import (
    VERSION,
    Cancel,
    End,
    Finished,
    HandedBack,
    Outcome,
    Started,
    Usage,
    WorkerRecord,
)
from tests.support.core import Core

NAMES = ("ada", "bob", "cleo", "dan", "eve", "fay", "gus", "hal", "ivy", "joe")


class Arrive(NamedTuple):
    """`copies` requests of one tenant: estimated at `cost`, in truth `truth`."""

    tenant: int
    cost: int
    truth: int
    copies: int = 1
    tier: int = 0
    priority: int = 500
    deadline_ms: int = 0  # from now; 0: none
    size: int = 1


class Finish(NamedTuple):
    """One of the batches that are out is done; all of it cancelled: it never ran."""

    which: int
    cancelled: bool = False


class Back(NamedTuple):
    """One of the batches that are out is handed back."""

    which: int
    started: bool


class Drop(NamedTuple):
    """One of the requests that ever came is cancelled."""

    which: int


class Tick(NamedTuple):
    """Time passes."""

    ms: int


Move = Arrive | Finish | Back | Drop | Tick


class Turn(NamedTuple):
    """One cycle: its clock, what it read, what it did."""

    now_ms: int
    inputs: Inputs
    cycle: Cycle


@dataclass
class History:
    """A core with its first policy, the batches that are out, and the truth about each request."""

    policy: Policy
    slots: int = 1
    core: Core = field(init=False)
    out: list[BatchOut] = field(default_factory=list)
    truths: dict[str, int] = field(default_factory=dict)
    places: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Core(self.policy, slots=self.slots)

    def turn(self, inputs: Inputs | None = None, *, after_ms: int = 0) -> Turn:
        inputs = inputs or Inputs()
        cycle = self.core.cycle(inputs, after_ms=after_ms)
        assert not cycle.faults, cycle.faults
        self.out += cycle.batches
        return Turn(self.core.now_ms, inputs, cycle)

    def play(self, moves: Iterable[Move], endpoint: str = "run") -> Iterator[Turn]:
        for move in moves:
            if isinstance(move, Arrive):
                yield self.arrive(move, endpoint)
            elif isinstance(move, Finish) and self.out:
                yield self.finish(self.out.pop(move.which % len(self.out)), move.cancelled)
            elif isinstance(move, Back) and self.out:
                yield self.back(self.out.pop(move.which % len(self.out)), move.started)
            elif isinstance(move, Drop) and self.places:
                topic, offset = self.places[move.which % len(self.places)]
                yield self.turn(Inputs(control=[Cancel(VERSION, topic, 0, offset)]))
            elif isinstance(move, Tick):
                yield self.turn(after_ms=move.ms)

    def drain(self, limit: int = 100_000) -> Iterator[Turn]:
        """Finish whatever is out, the oldest first, until nothing comes any more."""
        for _ in range(limit):
            if not self.out:
                yield self.turn(after_ms=60_000)
            if not self.out:
                return
            yield self.finish(self.out.pop(0))

    def arrive(self, *moves: Arrive | str) -> Turn:
        """Requests of one cycle; a string among them names the endpoint."""
        endpoint = next((move for move in moves if isinstance(move, str)), "run")
        ranges: dict[str, RequestRange] = {}
        for move in moves:
            if isinstance(move, str):
                continue
            tier = self.policy.tiers[move.tier].name
            for _ in range(move.copies):
                _, arrival = self.core.request(
                    NAMES[move.tenant],
                    tier,
                    endpoint=endpoint,
                    tokens=move.cost,
                    priority=move.priority,
                    deadline_ms=self.core.now_ms + move.deadline_ms if move.deadline_ms else 0,
                    size=move.size,
                )
                assert arrival.meta is not None
                self.truths[arrival.meta.id] = move.truth
                topic = f"requests.{tier}"
                self.places.append((topic, arrival.offset))
                read = ranges.setdefault(tier, RequestRange(topic, 0, tier, arrival.offset, 0, []))
                read.arrivals.append(arrival)
                read.stop = arrival.offset + 1
        return self.turn(Inputs(requests=list(ranges.values())))

    def finish(self, batch: BatchOut, cancelled: bool = False) -> Turn:
        """A batch succeeds at its true cost, or never ran."""
        end = End.CANCELLED if cancelled else End.SUCCEEDED
        outcomes = tuple(
            Outcome(live.key, end, Usage(input_tokens=0 if cancelled else self.truths[live.id]))
            for live in batch.requests
        )
        return self.say(batch, Finished(VERSION, batch.number, outcomes))

    def back(self, batch: BatchOut, started: bool) -> Turn:
        said: list[WorkerRecord] = [Started(VERSION, batch.number)] if started else []
        return self.say(batch, *said, HandedBack(VERSION, batch.number))

    def say(self, batch: BatchOut, *records: WorkerRecord) -> Turn:
        said = [(batch.pool, batch.lane, record) for record in records]
        return self.turn(Inputs(workers=said))


def one_pool(
    weights: Sequence[int],
    *,
    lanes: int = 1,
    prefetch: int = 0,
    tiers: int = 1,
    fairness: Fairness = Fairness.DRR,
    cost: CostModel = CostModel.TOKEN,
    **endpoint: int,
) -> Policy:
    """Tenants of these weights before one pool `run` and its endpoint of the same name."""
    names = tuple(f"tier{number}" for number in range(tiers))
    settings: dict[str, Any] = {"quantum": 10, "batch_wait_ms": 0, "tokens_max": 1_000} | endpoint
    return Policy(
        version=1,
        tiers=tuple(Tier(name=name) for name in names),
        pools=(Pool(name="run", lanes=lanes, prefetch=prefetch, fairness=fairness),),
        endpoints=(Endpoint(name="run", pool="run", cost=cost, **settings),),
        tenants=tuple(
            Tenant(name=NAMES[number], tiers=names, weight=weight)
            for number, weight in enumerate(weights)
        ),
    )


def with_parents(policy: Policy, parents: dict[str, str]) -> Policy:
    """The same policy, with tenants that share their parents' turns."""
    tenants = tuple(replace(t, parent=parents.get(t.name, "")) for t in policy.tenants)
    return replace(policy, tenants=tenants)


# --- moves, drawn


def drawn(
    *, tenants: int, cost_max: int, exact: bool = False, tiers: int = 1, size_max: int = 40
) -> st.SearchStrategy[list[Move]]:
    """Lists of moves; `exact`: every estimate is the truth, and nothing is handed back."""
    number = st.integers(0, 1 << 16)
    cost = st.integers(1, cost_max)
    arrive = st.builds(
        Arrive,
        tenant=st.integers(0, tenants - 1),
        cost=cost,
        truth=cost,
        copies=st.integers(1, 4),
        tier=st.integers(0, tiers - 1),
        priority=st.sampled_from([500, 500, 0, 900]),
        deadline_ms=st.sampled_from([0, 0, 0, 700, 2_500]),
        size=st.integers(1, 100),
    )
    if exact:
        arrive = arrive.map(lambda move: move._replace(truth=move.cost, size=1))
    finish = st.builds(Finish, number, st.just(value=False))
    moves: list[st.SearchStrategy[Move]] = [arrive, arrive, finish, finish, finish]
    moves += [st.builds(Drop, number), st.builds(Tick, st.integers(1, 400))]
    if not exact:
        moves += [st.builds(Back, number, st.booleans()), st.builds(Finish, number, st.booleans())]
    return st.lists(st.one_of(moves), min_size=12, max_size=size_max)


def thrown(
    seed: int, moves: int, *, tenants: int, cost_max: int, exact: bool = False, tiers: int = 1
) -> Iterator[Move]:
    """Moves by a seeded dice, for long histories; about as much comes as can be served."""
    dice = Random(seed)
    for _ in range(moves):
        side = dice.random()
        if side < 0.32:
            cost = dice.randint(1, cost_max)
            yield Arrive(
                tenant=dice.randrange(tenants),
                cost=cost,
                truth=cost if exact else dice.randint(1, cost_max),
                copies=dice.choice([1, 1, 2, 6]),
                tier=dice.randrange(tiers),
                priority=dice.choice([0, 500, 500]),
                deadline_ms=dice.choice([0, 0, 0, 3_000]),
            )
        elif side < 0.86 or (exact and side < 0.9):
            yield Finish(dice.randrange(1 << 16), cancelled=not exact and dice.random() < 0.1)
        elif side < 0.9:
            yield Back(dice.randrange(1 << 16), started=dice.random() < 0.3)
        elif side < 0.95:
            yield Drop(dice.randrange(1 << 16))
        else:
            yield Tick(dice.randrange(1, 300))
