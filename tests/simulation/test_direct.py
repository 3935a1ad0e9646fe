"""The core alone on simulated servers: as in a whole deployment, and nothing gets lost."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier
from schemas.records import End
from simulation.direct import Ask, CoreChooser, Direct, Job, Load, Server
from simulation.tenants import text_body
from simulation.world import EPOCH_MS, Arrival, Workers, World
from workers.engines.simulated import SimulatedSettings

SLOTS = 2
NAMES = ("acme", "globex", "initech")
FIXED_MS, PER_TOKEN_MS = 20, 1


def policy(fairness: Fairness, model: CostModel, **endpoint: int) -> Policy:
    settings: dict[str, Any] = {"batch_wait_ms": 0, "quantum": 50, **endpoint}
    return Policy(
        version=1,
        tiers=(Tier(name="standard"),),
        pools=(Pool(name="run", lanes=1, prefetch=0, fairness=fairness),),
        endpoints=(Endpoint(name="run", pool="run", cost=model, **settings),),
        tenants=tuple(
            Tenant(name=name, tiers=("standard",), weight=weight)
            for weight, name in enumerate(NAMES, start=1)
        ),
    )


def traffic(seed: int, requests: int = 120) -> list[Ask]:
    random = Random(seed)
    moments = sorted(random.sample(range(4_000), requests))
    sizes = [random.randint(10, 120) for _ in moments]
    return [
        Ask(1000 * at_ms, random.choice(NAMES), size, 0, size, random.choice((100, 500)))
        for at_ms, size in zip(moments, sizes, strict=True)
    ]


def took_us(jobs: list[Job]) -> int:
    return 1000 * (FIXED_MS + PER_TOKEN_MS * sum(job.ask.input_tokens for job in jobs))


SERVER = Server(lambda jobs: took_us(list(jobs)), lambda _: 1000)


def direct(under: Policy, asks: list[Ask]) -> Direct:
    return Direct(CoreChooser(under, SLOTS), SERVER).run(asks)


@pytest.mark.parametrize(
    ("fairness", "model", "endpoint"),
    [
        (Fairness.DRR, CostModel.TOKEN, {}),
        (Fairness.DRR, CostModel.REQUEST, {"quantum": 1}),
        (Fairness.VTC, CostModel.TOKEN, {}),
        (Fairness.FIFO, CostModel.REQUEST, {}),
        (Fairness.DRR, CostModel.TOKEN, {"batch_requests": 4, "batch_wait_ms": 30}),
    ],
)
def test_a_whole_deployment_picks_the_same_at_the_same_time(
    fairness: Fairness, model: CostModel, endpoint: dict[str, int]
) -> None:
    under, asks = policy(fairness, model, **endpoint), traffic(1)
    engine = SimulatedSettings(fixed_ms=FIXED_MS, per_token_us=1000 * PER_TOKEN_MS)
    world = World(under, [Workers("run", 1, SLOTS, engine)])
    world.expect(
        Arrival(
            ask.at_us // 1000,
            ask.tenant,
            "run",
            "standard",
            text_body(ask.input_tokens),
            priority=ask.priority,
            id=str(number),
        )
        for number, ask in enumerate(asks)
    )
    world.run()
    theirs = {int(served.result.id): served.result.picked_ms - EPOCH_MS for served in world.served}
    ran = direct(under, asks)
    ours = {job.number: job.picked_us // 1000 for job in ran.jobs}
    assert ours == theirs
    assert any(job.wait_us > 100_000 for job in ran.jobs), "nobody waited: nothing was chosen"


def test_the_same_requests_make_the_same_history() -> None:
    def moments() -> list[tuple[str, int, int]]:
        ran = direct(policy(Fairness.DRR, CostModel.TOKEN), traffic(2))
        return [(what, at_us, job.number) for what, at_us, job in ran.moments]

    assert moments() == moments()


@pytest.mark.parametrize("seed", range(5))
def test_every_request_ends_once_and_no_slot_rests_while_one_waits(seed: int) -> None:
    random = Random(seed)
    asks = [
        ask._replace(
            deadline_us=random.choice((0, 0, 200_000)), cancel_us=random.choice((0, 0, 300_000))
        )
        for ask in traffic(seed)
    ]
    ran = direct(policy(Fairness.DRR, CostModel.TOKEN), asks)
    seen = Counter((what, job.number) for what, _, job in ran.moments)
    assert set(seen.values()) == {1}
    ends = Counter(job.end for job in ran.jobs)
    assert ends.total() == len(asks)
    assert {str(End.SUCCEEDED), str(End.CANCELLED), "deadline"} <= set(ends), ends
    waiting = running = 0
    for number, (what, at_us, _) in enumerate(ran.moments):
        waiting += {"arrived": 1, "picked": -1, "dropped": -1, "ended": 0}[what]
        running += {"arrived": 0, "picked": 1, "dropped": 0, "ended": -1}[what]
        assert running <= SLOTS
        is_last = number + 1 == len(ran.moments) or ran.moments[number + 1].at_us > at_us
        assert not is_last or running == SLOTS or not waiting, f"a slot rests at {at_us}"


def test_who_is_gone_frees_the_slot_and_pays_for_what_was_made() -> None:
    asks = [
        Ask(0, "acme", 10, 100, 110, cancel_us=500_000),
        Ask(0, "acme", 10, 100, 110),
        Ask(1, "globex", 10, 100, 110),
    ]
    second = Server(lambda _: 1_000_000, lambda _: 10_000)
    ran = Direct(CoreChooser(policy(Fairness.DRR, CostModel.TOKEN), SLOTS), second).run(asks)
    gone, _, next_one = ran.jobs
    assert (gone.end, gone.output_tokens) == (str(End.CANCELLED), 50)
    assert next_one.picked_us == gone.end_us == 500_001


def test_what_is_sent_ahead_waits_for_a_slot() -> None:
    class Ahead(CoreChooser):
        def slots(self, pool: str, lane: int) -> int:
            return super().slots(pool, lane) - 1

    asks = [Ask(0, "acme", 10, 0, 10), Ask(0, "globex", 10, 0, 10)]
    ran = Direct(Ahead(policy(Fairness.DRR, CostModel.TOKEN), 2), SERVER).run(asks)
    first, second = ran.loads
    assert isinstance(first, Load)
    assert second.jobs[0].picked_us == 0
    assert second.start_us == first.end_us == 30_000
