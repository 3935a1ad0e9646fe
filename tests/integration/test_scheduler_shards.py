"""Two shards on one scheduler and on two, as processes: one joins, one leaves, nothing twice."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from schemas.policy import Topology
from tests.support.policies import embed_policy
from tests.support.processes import FairlaneProcess, Processes, until
from tests.support.schedulers import TIER, Deployment

TAKEN = "shard taken over"
ENDPOINTS = ("chat", "embed")


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    policy = msgspec.structs.replace(embed_policy(tiers=(TIER,)), topology=Topology(shards=2))
    found = Deployment(kafka_bootstrap, f"shards-{uuid4().hex[:8]}", policy)
    assert sorted(found.topics.shard_of(pool, 2) for pool in ENDPOINTS) == [0, 1]
    yield found
    found.close()


@pytest.fixture
def processes(deployment: Deployment, tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, deployment.env)
    yield found
    found.close()


def taken(process: FairlaneProcess) -> list[int]:
    """Shards that a process took over, in order."""
    return [note["shard"] for note in process.notes() if note["event"] == TAKEN]


def test_a_shard_moves_to_who_joins_and_back_when_it_leaves(
    deployment: Deployment, processes: Processes
) -> None:
    ids: list[str] = []

    def come(count: int = 40) -> None:
        for _ in range(count):
            ids.append(f"r{len(ids)}")
            deployment.submit(ids[-1], endpoint=ENDPOINTS[len(ids) % 2])

    def have_ended() -> bool:
        return sorted(result.id for result in deployment.results()) == sorted(ids)

    for pool in ENDPOINTS:
        processes.start("worker", "--pool", pool, "--instance", pool, "--fixed-ms", "5")
    first = processes.start("scheduler", "--instance", "a")
    until(lambda: sorted(taken(first)) == [0, 1], "the first owns both shards")
    come()
    second = processes.start("scheduler", "--instance", "b")
    while not taken(second):  # with requests on their way all the time
        assert second.process.poll() is None, second.text()
        come(2)
    come()
    until(have_ended, "all have ended on two schedulers")
    come()
    assert second.stop() == 0, second.text()
    come()
    until(have_ended, "all have ended on one scheduler again")
    moved = taken(second)
    assert len(moved) == 1
    assert sorted(taken(first)) == sorted([0, 1, *moved])
    assert first.stop() == 0, first.text()
    dispatched = Counter(deployment.dispatched_everywhere())
    assert dispatched == Counter(ids)
