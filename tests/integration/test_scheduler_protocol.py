"""The rules of the scheduler's protocol on a real Kafka: init then read, doubt, open cycles.

The rules and their proof: docs/spec. Shards and lanes stand in this process and are moved by
hand; what is judged is committed.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler.fold import Fold
from scheduler.service import FENCED_MS, Scheduler
from schemas.log import FencedError, InDoubtError, Log, TransactionalProducer
from schemas.records import End
from tests.support.lanes import ManualClock
from tests.support.processes import DEADLINE_S
from tests.support.schedulers import Deployment, Staged
from workers.phase import Phase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    found = Deployment(kafka_bootstrap, f"sched-{uuid4().hex[:8]}")
    yield found
    found.close()


def is_ready(scheduler: Scheduler) -> Callable[[], bool]:
    """Tell whether the service owns the shard and has recovered it."""
    return lambda: 0 in scheduler.shards and scheduler.shards[0].ready


# --- init, then read


def test_decisions_are_read_after_the_init(deployment: Deployment) -> None:
    deployment.serving()
    old = deployment.running()
    deployment.submit("a")
    stage = Staged(deployment.log)
    stage.before_init.append(lambda: deployment.until(lambda: old.state.next_number == 2, old))
    new = deployment.shard(stage)
    new.take_over()
    assert new.state.next_number == 2, "the cycle committed just before the init is missing"
    deployment.submit("b")
    deployment.until(lambda: deployment.dispatched() == ["a", "b"], new)
    assert deployment.recovers_as(new)


def test_reading_before_the_init_dispatches_twice(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the test above looks at does show the mistake."""
    deployment.serving()
    old = deployment.running()
    deployment.submit("a")
    early: Fold = deployment.recovered()

    def reads_before(_log: Log, producer: TransactionalProducer, *_: object) -> Fold:
        producer.init()
        return early

    monkeypatch.setattr("scheduler.shard.take_over", reads_before)
    deployment.until(lambda: old.state.next_number == 2, old)
    new = deployment.shard()
    new.take_over()
    deployment.until(lambda: deployment.dispatched() == ["a", "a"], new)


# --- fenced


def test_who_is_fenced_waits_for_the_group_before_it_joins_again(deployment: Deployment) -> None:
    """Joining at once, under a name that is another's by now, would evict the owner."""
    clock = deployment.clock = ManualClock(deployment.clock.now_ms())
    stage = Staged(deployment.log)
    scheduler = deployment.scheduler("one", stage)
    deployment.until(is_ready(scheduler), scheduler)
    joined = scheduler._membership

    def is_fenced(producer: TransactionalProducer) -> None:
        raise FencedError("injected")

    stage.at_commit.append(is_fenced)
    deployment.submit("a")
    deployment.until(lambda: not scheduler.shards, scheduler)
    clock.advance(FENCED_MS - 1)
    scheduler.turn()
    assert scheduler._membership is joined
    clock.advance(1)
    deployment.until(is_ready(scheduler), scheduler)
    assert scheduler._membership is not joined
    deployment.until(lambda: list(scheduler.shards[0].state.ids) == ["a"], scheduler)


# --- the lane changes hands


def test_a_batch_whose_cycle_commits_while_the_lane_changes_hands_runs_once(
    deployment: Deployment,
) -> None:
    first = deployment.serving()
    stage = Staged(deployment.log)
    shard = deployment.running(stage)
    second = deployment.lane()

    def change_hands(producer: TransactionalProducer) -> None:
        deployment.until(lambda: deployment.open_end() > 0)  # the broker has the batch
        deployment.until(lambda: second.lane.phase is Phase.SERVE, second)
        producer.commit()

    stage.at_commit.append(change_hands)
    deployment.submit("a")
    deployment.serve_all(["a"], shard, first, second)
    deployment.until(lambda: first.lane.phase is Phase.GONE, first)
    deployment.until(lambda: not shard.state.ids, shard)
    assert deployment.dispatched() == ["a"]
    assert second.slots.started == [1]  # the fenced holder may compute it too, for nobody
    assert deployment.recovers_as(shard)


# --- doubt


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_schedulers_own_result_in_doubt_is_not_written_twice(
    deployment: Deployment, has_landed: bool
) -> None:
    stage = Staged(deployment.log)
    scheduler = deployment.scheduler(log=stage)
    deployment.submit("kept")
    deployment.until(is_ready(scheduler), scheduler)
    deployment.quiet(scheduler.shards[0])

    def doubt(producer: TransactionalProducer) -> None:
        if not scheduler_ended():
            stage.at_commit.append(doubt)
            producer.commit()
            return
        if has_landed:
            producer.commit()
        raise InDoubtError("injected")

    def scheduler_ended() -> bool:
        return "late" in scheduler.shards[0].state.recent

    stage.at_commit.append(doubt)
    deployment.submit("late", deadline_ms=1)
    deployment.until(lambda: "rebuilding the shard" in deployment.notes.names(), scheduler)
    deployment.until(is_ready(scheduler), scheduler)
    deployment.until(lambda: bool(deployment.results()), scheduler)
    deployment.quiet(scheduler.shards[0])
    assert [(result.id, result.end) for result in deployment.results()] == [("late", End.EXPIRED)]
    assert list(scheduler.shards[0].state.ids) == ["kept"]
    assert deployment.recovers_as(scheduler.shards[0])


# --- the same id again


def test_a_retried_publish_after_recovery_is_dropped(deployment: Deployment) -> None:
    holder = deployment.serving(slots=1)
    shard = deployment.running()
    deployment.submit("ended")
    deployment.serve_all(["ended"], shard, holder)
    for id_ in ("runs", "sent", "waits"):  # one slot and one sent ahead: the third waits
        deployment.submit(id_)
    deployment.until(lambda: len(shard.state.ids) == 3, shard)
    for has_snapshot in (False, True):
        if has_snapshot:
            shard.write_snapshot()
        shard = deployment.running()
        for id_ in ("ended", "runs", "waits"):
            deployment.submit(id_)
        deployment.quiet(shard)
        assert sorted(shard.state.ids) == ["runs", "sent", "waits"]
    deployment.serve_all(["ended", "runs", "sent", "waits"], shard, holder)
    deployment.quiet(shard)
    assert deployment.dispatched() == ["ended", "runs", "sent", "waits"]
    assert deployment.recovers_as(shard)


def test_a_cancel_that_names_a_dropped_duplicate_ends_its_twin(deployment: Deployment) -> None:
    shard = deployment.running()
    for id_ in ("a", "b", "c"):
        deployment.submit(id_)
    duplicates = {id_: deployment.submit(id_) for id_ in ("a", "b")}
    deployment.quiet(shard)
    for id_, others in (("a", ["b", "c"]), ("b", ["c"])):
        if id_ == "b":
            shard.write_snapshot()
        shard = deployment.running()
        deployment.cancel(duplicates[id_])
        deployment.quiet(shard)
        assert list(shard.state.ids) == others
    ends = [(result.id, result.end) for result in deployment.results()]
    assert ends == [("a", End.CANCELLED), ("b", End.CANCELLED)]


# --- kill -9


def test_what_was_open_at_kill_9_is_decided_anew_by_the_restarted_instance(
    deployment: Deployment,
) -> None:
    holder = deployment.serving()
    deployment.submit("a")
    arguments = [deployment.bootstrap, deployment.topics.prefix, "one"]
    dying = [sys.executable, "-m", "tests.support.schedulers", *arguments]
    died = subprocess.run(dying, check=False, cwd=ROOT, timeout=DEADLINE_S)
    assert died.returncode == -signal.SIGKILL
    assert deployment.open_end() > 0, "the transaction is open at the broker"
    assert deployment.dispatched() == []
    restarted = deployment.scheduler("one")
    deployment.until(lambda: deployment.dispatched() == ["a"], restarted)
    deployment.submit("b")
    deployment.serve_all(["a", "b"], restarted, holder)
    shard = restarted.shards[0]
    deployment.until(lambda: not shard.state.ids, restarted)
    assert deployment.dispatched() == ["a", "b"]
    assert holder.slots.started == [1, 2]
    assert deployment.recovers_as(shard)
