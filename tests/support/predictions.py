"""A board with one pool on it, and requests to be judged by what stands there."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from adapters.memory_backlog import MemoryBoard
from producers.core.answers import Problem
from producers.core.submission import Submission
from producers.predicting import Predictor
from schemas.backlog import (
    RATE_MS,
    VERSION,
    PoolBacklog,
    QueueRow,
    QueueSlice,
    TierBacklog,
    level,
    slice_name,
)
from schemas.codec import encode
from schemas.front import RequestName
from schemas.policy import CostModel, Endpoint, Policy, Pool, Predict, Tenant, Tier
from schemas.records import VERSION as REQUEST_VERSION
from schemas.records import Request

NOW_MS = 1_800_000_000_000

POLICY = Policy(
    tiers=(Tier(name="gold"), Tier(name="batch")),
    pools=(Pool(name="chat"),),
    endpoints=(
        Endpoint(
            name="chat", pool="chat", predict=Predict.ON, latency_ms={"gold": 1_000}, inputs_max=99
        ),
    ),
    tenants=(
        Tenant(name="acme", tiers=("gold", "batch")),
        Tenant(name="bolt", tiers=("gold",), weight=3),
        Tenant(name="kid", tiers=("gold",), parent="home"),
        Tenant(name="sis", tiers=("gold",), parent="home"),
        Tenant(name="home", tiers=("gold",)),
    ),
)


def with_endpoint(**fields: Any) -> Policy:
    """The policy with another endpoint."""
    return replace(POLICY, endpoints=(replace(POLICY.endpoints[0], **fields),))


def row(tenant: str, work: int, *, tier: int = 0, weight: int = 1, **fields: int) -> QueueRow:
    """A queue of so many requests, each of cost 1."""
    values: dict[str, int] = {"count": work, "tokens": 10 * work, "debt": 0} | fields
    return QueueRow(tier=tier, tenant=tenant, work=work, weight=weight, **values)


class Meter:
    """Counts by name and outcome."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        key = (name, *(labels[label] for label in ("reason", "outcome") if label in labels))
        self.counts[key] = self.counts.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[f"{name}:{labels['endpoint']}"] = value


class Desk:
    """A predictor, its board and its clock; chance says `chance` each time."""

    def __init__(self, policy: Policy = POLICY, reader: Any = "board", **fields: bool) -> None:
        self.now = NOW_MS
        self.chance = (1 << 32) - 1
        self.policy = policy
        self.board, self.meter = MemoryBoard(), Meter()
        chosen = self.board if reader == "board" else reader
        self.predictor = Predictor(chosen, self, self._bytes, self.meter, **fields)
        self._number = 0

    def now_ms(self) -> int:
        return self.now

    def _bytes(self, count: int) -> bytes:
        return self.chance.to_bytes(count)

    def publish(self, *rows: QueueRow, **fields: Any) -> None:
        """Publish a pool of 1 request a millisecond, made now, and have it read."""
        tiers = fields.pop("tiers", None) or self.tiers(rows)
        values: dict[str, Any] = {
            "at_ms": self.now,
            "unit": CostModel.REQUEST,
            "rate": RATE_MS,
            "residual_ms": 0,
            "service_ms": 0,
            "spread_ms": 0,
            "slots": 4,
            "lanes": 4,
            "room": 0,
            "running": 4,
            "us_per_token": 0,
            "stamps": (self.now,),
        }
        head = PoolBacklog(v=VERSION, pool="chat", tiers=tiers, **values | fields)
        self.board.post("chat", encode(head))
        written = QueueSlice(VERSION, head.at_ms, rows)
        self.board.post(slice_name("chat", 0), encode(written))
        self.follow()

    def tiers(self, rows: Sequence[QueueRow]) -> tuple[TierBacklog, ...]:
        told = []
        for rank, tier in enumerate(self.policy.tiers):
            members: dict[str, int] = {}
            for each in rows:
                if each.tier == rank:
                    root = self.policy.root(each.tenant)
                    members[root] = members.get(root, 0) + each.work
            levels: dict[int, list[int]] = {}
            for name, work in members.items():
                known = self.policy.tenant(name)
                weight = known.weight if known else 1
                sums = levels.setdefault(level(work, weight), [0, 0])
                sums[0] += work
                sums[1] += weight
            steps = tuple((step, *sums) for step, sums in sorted(levels.items()))
            total = sum(members.values())
            told.append(TierBacklog(tier.name, total, total, 0, tier.floor, steps))  # type: ignore[arg-type]
        return tuple(told)

    def follow(self) -> None:
        asyncio.run(self.predictor.follow(self.policy))

    def submission(self, tenant: str = "acme", tier: str = "gold", **fields: Any) -> Submission:
        self._number += 1
        if deadline_ms := fields.pop("in_ms", 0):
            fields["deadline_ms"] = self.now + deadline_ms
        request = Request(REQUEST_VERSION, f"r{self._number}", tenant, "chat", **fields)
        known = self.policy.tenant(tenant)
        assert known is not None
        return Submission(request, b"{}", tier, self.policy.endpoints[0], known)

    def judge(self, tenant: str = "acme", tier: str = "gold", **fields: Any) -> Problem | None:
        """What is said of a request that is let in if nothing is said against it."""
        submission = self.submission(tenant, tier, **fields)
        name = RequestName(tenant, submission.request.id)
        problem = self.predictor.judge(name, submission, self.policy)
        self.predictor.settle(name, is_in=problem is None)
        return problem

    def waits_ms(self, tenant: str = "acme", tier: str = "gold", **fields: Any) -> int:
        """What is predicted of a request, and nothing done."""
        told = self.predictor.look(self.submission(tenant, tier, **fields), self.policy)
        assert told is not None
        return told.wait_ms
