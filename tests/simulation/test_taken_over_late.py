"""What a warm copy, a pause of reading or a cycle in flight must not hide."""

import gc
import weakref
from collections.abc import Callable

import pytest

from adapters.memory import CommitFault
from fairlane.run import without_collections
from fairlane.tidy import Tidy
from scheduler.bodies import Limits
from scheduler.fold import Fold
from scheduler.recovery import RecoveryError, take_over
from schemas.log import TopicSpec, UnavailableError
from simulation.door import Arrival
from simulation.fleet import Fleet
from tests.simulation.test_fleet import arrive, fleet_of
from tests.simulation.test_recovery import only_shard, settled, waiting
from tests.support.policies import embed_policy

pytestmark = pytest.mark.simulation


def recreate(fleet: Fleet, topic: str) -> None:
    partitions = fleet.log.partitions(topic)
    fleet.log.delete_topic(topic)
    fleet.log.ensure_topics([TopicSpec(topic, partitions, {})])


def with_a_copy() -> tuple[Fleet, str, Fold]:
    """Twenty requests wait, and a standby holds a copy of them: the fleet, the owner, the copy."""
    fleet, _ = fleet_of(schedulers=2, workers=0)
    arrive(fleet, 20, every_ms=1)
    waiting(fleet, 20)
    only_shard(fleet).write_snapshot()
    fleet.on_settled = lambda: None
    (owner,) = [process.name for process in fleet.schedulers if process.service.shards]
    (other,) = [process for process in fleet.schedulers if not process.service.shards]
    other.service._stand_by()
    copy = other.service._standbys._copies[0]
    while copy.turn() or copy.turn():
        pass
    assert len(copy.state.ids) == 20
    return fleet, owner, copy


def test_requests_that_were_made_again_stop_a_warm_copy_too() -> None:
    fleet, owner, _ = with_a_copy()
    fleet.kill(owner, back_after_ms=None)
    recreate(fleet, fleet.topics.requests("gold"))
    with pytest.raises(RecoveryError, match="deleted or recreated"):
        only_shard(fleet)


def test_a_body_of_another_request_is_never_taken_for_ones_own() -> None:
    fleet, _ = fleet_of(workers=0)
    arrive(fleet, 20, every_ms=1)
    waiting(fleet, 20)
    shard = only_shard(fleet)
    recreate(fleet, fleet.topics.requests("gold"))
    for number in range(40):
        fleet.submit(Arrival(0, "globex", "embed", "gold", b"another's", id=f"new{number}"))
    lives = list(shard.state.lives())
    shard.bodies.drop_all([live.key for live in lives])
    with pytest.raises(Exception, match="not in the log any more"):
        shard.bodies.take([live.key for live in lives])


def test_a_copy_of_more_than_the_log_holds_is_not_taken() -> None:
    fleet, owner, copy = with_a_copy()
    fleet.kill(owner, back_after_ms=None)
    recreate(fleet, fleet.topics.decisions)

    class AtOnce:
        """Takes the id over without a slice of reading."""

        def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
            pass

    def again() -> Fold:
        return Fold(fleet.log, fleet.topics, 0, fleet.silence)

    assert take_over(fleet.log, AtOnce(), copy, again).state.seq == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("full", [1, 1_000_000])
def test_who_is_fenced_in_flight_does_not_take_the_id_again(full: int) -> None:
    """Another error strikes before the fence is heard."""
    fleet, _ = fleet_of(schedulers=0, workers=0)
    fleet.start_scheduler("scheduler-1")
    arrive(fleet, 4, every_ms=1)
    waiting(fleet, 4)
    service = fleet.schedulers[0].service
    shard = only_shard(fleet)
    shard._full = full
    settled(fleet, 5)
    fleet.submit(Arrival(0, "acme", "embed", "gold", b"x", id="late"))
    successor = fleet.log.transactional(shard.transactional_id)
    if full == 1:
        service.turn()
        assert shard._transactions._in_flight is not None
    successor.init()
    poll = shard._inputs.poll

    def away(*_: object) -> None:
        shard._inputs.poll = poll  # type: ignore[method-assign]
        raise UnavailableError("for a moment")

    if full == 1:
        shard._inputs.poll = away  # type: ignore[method-assign, assignment]
    epoch = fleet.log._store.epochs[shard.transactional_id]
    for _ in range(4):
        service.turn()
    assert fleet.log._store.epochs[shard.transactional_id] == epoch


def test_a_rebuild_leaves_no_old_state_behind() -> None:
    fleet, _ = fleet_of(workers=0)
    arrive(fleet, 30, every_ms=1)
    waiting(fleet, 30)
    service = fleet.schedulers[0].service
    service._recovering = without_collections
    shard = only_shard(fleet)

    class Mark:
        pass

    mark = Mark()
    shard.state.pools["embed"].learned.queues.append(mark)  # type: ignore[arg-type]
    gone = weakref.ref(mark)
    del mark
    tidy = Tidy(service.turn, lambda: 0.0)
    gc.freeze()  # as after the first recovery
    try:
        fleet.log.faults = lambda _: CommitFault.IN_DOUBT_LANDED
        fleet.submit(Arrival(0, "acme", "embed", "gold", b"x", id="late"))
        tidy()
        fleet.log.faults = None
        for _ in range(5):
            tidy()
        assert shard.ready
        assert gone() is None
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_cancel_in_a_tier_that_is_new_waits_for_its_request(*, is_paused: bool) -> None:
    fleet, _ = fleet_of(workers=0)
    arrive(fleet, 20, every_ms=0)
    waiting(fleet, 20)
    shard, service = only_shard(fleet), fleet.schedulers[0].service
    if is_paused:
        shard.limits = Limits(1 << 30, 10)
    service.turn()
    service.turn()
    assert shard._inputs.is_paused is is_paused
    tiers = [tier.name for tier in fleet.policy.tiers]
    policy = embed_policy(attempts_max=3, tiers=(*tiers, "extra"))
    fleet.log.ensure_topics(fleet.topics.of(policy))
    fleet.publish(policy)
    service.turn()
    service.turn()
    fleet.submit(Arrival(0, "acme", "embed", "extra", b"x", id="unwanted"))
    fleet.cancel(fleet.places["unwanted"][0])
    for _ in range(3):
        service.turn()
    shard.limits = Limits()
    for _ in range(6):
        service.turn()
    assert fleet.topics.requests("extra") in shard.state.topics
    assert "unwanted" not in shard.state.ids


def test_copies_hold_no_more_than_may_wait() -> None:
    fleet, _, copy = with_a_copy()
    (other,) = [process for process in fleet.schedulers if not process.service.shards]
    standbys = other.service._standbys
    standbys._live_max = len(copy.state.ids) - 1
    other.service._stand_by()
    assert not standbys._copies
