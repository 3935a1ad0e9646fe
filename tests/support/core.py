"""Drive the scheduler's core by hand: inputs in, steps and batches out, no log."""

from itertools import count

from scheduler.core.arrivals import Arrival
from scheduler.core.cycle import Inputs, RequestRange, run_cycle
from scheduler.core.decided import Cycle
from scheduler.core.state import State
from schemas.policy import Policy, encode_policy
from schemas.records import (
    VERSION,
    Cancel,
    End,
    Finished,
    HandedBack,
    Outcome,
    Request,
    Seen,
    Started,
    Usage,
    WorkerRecord,
)

NOW_MS = 1_000_000


class Core:
    """One shard's state and a hand on its clock; `slots` of every lane are free at first."""

    def __init__(self, policy: Policy, *, slots: int = 1) -> None:
        self.state = State(0)
        self.now_ms = NOW_MS
        self._offsets = {tier.name: count() for tier in policy.tiers}
        topics = [(f"requests.{tier.name}", "1") for tier in policy.tiers]
        first = self.cycle(Inputs(policies=[encode_policy(policy)], topics=topics))
        assert not first.faults, first.faults
        seen: list[tuple[str, int, WorkerRecord]] = [
            (pool.name, lane, Seen(VERSION, slots))
            for pool in policy.pools
            for lane in range(pool.lanes)
        ]
        self.cycle(Inputs(workers=seen))

    def cycle(self, inputs: Inputs | None = None, *, after_ms: int = 0) -> Cycle:
        self.now_ms += after_ms
        cycle = run_cycle(self.state, inputs or Inputs(), self.now_ms)
        self.state.seq += bool(cycle.steps)
        return cycle

    def request(
        self,
        tenant: str,
        tier: str = "standard",
        *,
        endpoint: str = "embed",
        id: str = "",  # noqa: A002 - the record's own name
        tokens: int = 100,
        priority: int = 500,
        deadline_ms: int = 0,
        size: int = 10,
        inputs: int = 1,
    ) -> tuple[str, Arrival]:
        """A request that is still to be taken in: (tier, arrival)."""
        offset = next(self._offsets[tier])
        meta = Request(
            v=VERSION,
            id=id or f"{tier}-{offset}",
            tenant=tenant,
            endpoint=endpoint,
            priority=priority,
            deadline_ms=deadline_ms,
            input_tokens=tokens,
            inputs=inputs,
        )
        return tier, Arrival(offset, self.now_ms, size, meta)

    def take(self, *requests: tuple[str, Arrival], after_ms: int = 0) -> Cycle:
        """Take requests in, by tier."""
        ranges: dict[str, RequestRange] = {}
        for tier, arrival in requests:
            read = ranges.setdefault(
                tier, RequestRange(f"requests.{tier}", 0, tier, arrival.offset, 0, [])
            )
            read.arrivals.append(arrival)
            read.stop = arrival.offset + 1
        return self.cycle(Inputs(requests=list(ranges.values())), after_ms=after_ms)

    def say(self, pool: str, lane: int, *records: WorkerRecord, after_ms: int = 0) -> Cycle:
        return self.cycle(
            Inputs(workers=[(pool, lane, record) for record in records]), after_ms=after_ms
        )

    def cancel(self, tier: str, offset: int) -> Cycle:
        return self.cycle(Inputs(control=[Cancel(VERSION, f"requests.{tier}", 0, offset)]))

    def finish(self, cycle: Cycle, *, tokens: int | None = None) -> Cycle:
        """Every batch of a cycle succeeds; each request took `tokens` (default: its estimate)."""
        return self.cycle(
            Inputs(
                workers=[
                    (
                        batch.pool,
                        batch.lane,
                        Finished(
                            VERSION,
                            batch.number,
                            tuple(
                                Outcome(
                                    live.key,
                                    End.SUCCEEDED,
                                    Usage(input_tokens=live.tokens if tokens is None else tokens),
                                )
                                for live in batch.requests
                            ),
                        ),
                    )
                    for batch in cycle.batches
                ]
            )
        )

    def hand_back(self, cycle: Cycle, *, started: bool, after_ms: int = 0) -> Cycle:
        said: list[tuple[str, int, WorkerRecord]] = []
        for batch in cycle.batches:
            if started:
                said.append((batch.pool, batch.lane, Started(VERSION, batch.number)))
            said.append((batch.pool, batch.lane, HandedBack(VERSION, batch.number)))
        return self.cycle(Inputs(workers=said), after_ms=after_ms)


def tenants(cycle: Cycle) -> list[str]:
    """Tenants in the order in which they were picked."""
    return [live.tenant for batch in cycle.batches for live in batch.requests]


def ids(cycle: Cycle) -> list[str]:
    """Ids in the order in which they were picked."""
    return [live.id for batch in cycle.batches for live in batch.requests]


def ended(cycle: Cycle) -> list[tuple[str, str]]:
    """(id, reason) of what the scheduler itself ended."""
    return [(live.id, str(reason)) for live, reason in cycle.ended]
