"""Cycles that are decided while the one before is committed by a thread, on a real Kafka.

Every cycle counts as full here. What is judged is committed.
"""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from adapters.aside import ThreadAside
from scheduler.service import Scheduler
from schemas.log import AbortedError, InDoubtError, TransactionalProducer
from tests.support.schedulers import Deployment, Staged

REQUESTS = [f"request-{number}" for number in range(60)]

#: How a commit ends, given the producer.
Ending = Callable[[TransactionalProducer], None]


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    found = Deployment(kafka_bootstrap, f"aside-{uuid4().hex[:8]}")
    yield found
    found.close()


@pytest.fixture
def stage(deployment: Deployment) -> Staged:
    return Staged(deployment.log)


@pytest.fixture
def scheduler(deployment: Deployment, stage: Staged) -> Iterator[Scheduler]:
    made = Scheduler(
        stage,
        deployment.topics,
        clock=deployment.clock,
        meter=deployment.meter,
        notes=deployment.notes,
        idle_wait_s=0.02,
        aside=ThreadAside,
        full=1,
    )
    yield made
    made.close()


def lands(producer: TransactionalProducer) -> None:
    producer.commit()


def is_aborted(producer: TransactionalProducer) -> None:
    producer.abort()
    raise AbortedError("injected")


def lands_in_doubt(producer: TransactionalProducer) -> None:
    producer.commit()
    raise InDoubtError("injected")


def stays_open_in_doubt(_: TransactionalProducer) -> None:
    raise InDoubtError("injected")


@pytest.mark.parametrize("ending", [lands, is_aborted, lands_in_doubt, stays_open_in_doubt])
def test_each_request_is_dispatched_and_ends_once(
    deployment: Deployment, stage: Staged, scheduler: Scheduler, ending: Ending
) -> None:
    holder = deployment.serving(slots=8)
    deployment.until(lambda: 0 in scheduler.shards and scheduler.shards[0].ready, scheduler)
    deployment.quiet(scheduler.shards[0])
    for part in range(3):
        for request_id in REQUESTS[part * 20 : part * 20 + 20]:
            deployment.submit(request_id)
            if request_id.endswith("5"):
                stage.at_commit += [lands, ending]
            scheduler.turn()
    deployment.serve_all(REQUESTS, scheduler, holder)
    deployment.until(lambda: bool(scheduler.shards and not stage.at_commit), scheduler)
    deployment.until(lambda: not scheduler.shards[0].state.ids, scheduler)
    deployment.quiet(scheduler.shards[0])
    assert sorted(deployment.dispatched()) == sorted(REQUESTS)
    assert deployment.recovers_as(scheduler.shards[0])
    told = deployment.notes.names()
    assert ("cycle aborted, publishing it again" in told) == (ending is is_aborted)
    assert ("rebuilding the shard" in told) == (ending in (lands_in_doubt, stays_open_in_doubt))
