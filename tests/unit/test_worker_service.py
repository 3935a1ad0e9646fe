"""A worker among others: lanes come and go with the group, fences are respected."""

import pytest

from adapters.memory import CommitFault
from adapters.memory_groups import MemoryMembership
from schemas.log import Change, FencedError
from schemas.records import End, HandedBack, Seen
from tests.support.lanes import POOL, TOPICS, LaneWorld, ManualSlots, create_topics, numbers
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.phase import Phase
from workers.ports import Slots
from workers.service import FENCED_REJOIN_MS, WorkerService, WorkerSettings
from workers.slots_virtual import VirtualSlots


class Workers:
    """Services on one world, each with slots moved by hand."""

    def __init__(self, lanes: int = 2) -> None:
        self.world = LaneWorld(lanes)
        self.slots: list[ManualSlots] = []

    def service(self, instance: str | None = None) -> WorkerService:
        world = self.world
        return WorkerService(
            world.log,
            TOPICS,
            WorkerSettings(POOL, instance),
            self._slots,
            world.clock,
            world.meter,
            world.notes,
        )

    def settle(self, *services: WorkerService) -> None:
        for _ in range(50):
            did = [service.turn() for service in services]
            if not any(did):
                return
        raise AssertionError("the services never come to rest")

    def release(self) -> None:
        for slots in self.slots:
            slots.release()

    def _slots(self, lane: int) -> Slots:
        self.slots.append(ManualSlots(1))
        return self.slots[-1]


def test_one_worker_serves_all_lanes_with_slots_for_each() -> None:
    workers = Workers(lanes=3)
    service = workers.service()
    workers.settle(service)
    assert service.lanes == dict.fromkeys(range(3), Phase.SERVE)
    for lane in range(3):
        workers.world.dispatch(f"r{lane}", lane=lane)
    workers.settle(service)
    assert [slots.started for slots in workers.slots] == [[1], [2], [3]]
    workers.release()
    workers.settle(service)
    assert workers.world.ends() == dict.fromkeys(("r0", "r1", "r2"), End.SUCCEEDED)


def test_a_second_worker_gets_a_lane_and_hands_back_what_ran_there() -> None:
    workers = Workers(lanes=2)
    first = workers.service()
    workers.settle(first)
    workers.world.dispatch("a", lane=0)
    workers.world.dispatch("b", lane=1)
    workers.settle(first)
    second = workers.service()
    workers.settle(first, second)
    assert sorted([*first.lanes, *second.lanes]) == [0, 1]
    assert len(second.lanes) == 1
    workers.release()
    workers.settle(first, second)
    (moved,) = second.lanes
    assert numbers(workers.world.said(moved), HandedBack) == [moved + 1]
    assert list(workers.world.ends()) == ["b" if moved == 0 else "a"]


def test_a_clean_stop_finishes_what_runs_and_leaves() -> None:
    workers = Workers(lanes=1)
    first = workers.service()
    workers.settle(first)
    workers.world.dispatch("a")
    workers.world.dispatch("b")
    workers.settle(first)
    first.stop()
    workers.settle(first)
    assert not first.is_idle
    workers.release()
    workers.settle(first)
    assert first.is_idle
    first.close()
    first.close()
    assert not first.turn()
    assert workers.world.ends() == {"a": End.SUCCEEDED}
    assert slots_said(workers.world) == [1, 0]
    second = workers.service()
    workers.settle(second)
    assert list(second.lanes) == [0]
    assert numbers(workers.world.said(), HandedBack) == [2]
    assert slots_said(workers.world) == [1, 0, 1]


def slots_said(world: LaneWorld) -> list[int]:
    return [record.slots for record in world.said() if isinstance(record, Seen)]


def test_a_lane_that_was_taken_away_is_not_said_to_have_no_slots() -> None:
    workers = Workers(lanes=1)
    service = workers.service("worker-0")
    workers.settle(service)
    successor = workers.service("worker-0")
    workers.settle(successor)
    service.close()
    assert slots_said(workers.world) == [1, 1]


def test_closing_gives_running_batches_their_grace() -> None:
    world = LaneWorld(1)
    engine = SimulatedEngine(SimulatedSettings(fixed_ms=300, per_token_us=0))
    ticking = world.clock

    class Ticking:
        def now_ms(self) -> int:
            ticking.advance(1)
            return ticking.time_ms

    for grace_ms, ends in ((50, 0), (5_000, 1)):
        service = WorkerService(
            world.log,
            TOPICS,
            WorkerSettings(POOL),
            lambda _: VirtualSlots(engine, 1, ticking),
            Ticking(),
            world.meter,
            world.notes,
        )
        for _ in range(10):
            service.turn()
        world.dispatch(f"grace-{grace_ms}")
        for _ in range(3):
            service.turn()
        service.close(grace_ms)
        assert len(world.ends()) == ends
    assert numbers(world.said(), HandedBack) == [1]


def test_a_clean_stop_in_doubt_keeps_the_results() -> None:
    workers = Workers(lanes=1)
    service = workers.service()
    workers.settle(service)
    workers.world.dispatch("a")
    workers.settle(service)
    faults = [CommitFault.IN_DOUBT_LOST]
    workers.world.log.faults = lambda _: faults.pop() if faults else None
    workers.release()
    service.turn()
    assert service.lanes == {0: Phase.TAKE}
    service.stop()
    assert not service.is_idle
    workers.world.clock.advance(1_000)
    workers.settle(service)
    assert service.is_idle
    service.close()
    assert workers.world.ends() == {"a": End.SUCCEEDED}


def test_a_clock_that_is_set_back_does_not_keep_a_worker_out() -> None:
    workers = Workers(lanes=1)
    workers.world.log.delete_topic(TOPICS.batches(POOL))
    service = workers.service()
    workers.settle(service)
    create_topics(workers.world.log, 1)
    workers.world.clock.advance(-500_000)
    workers.settle(service)
    assert service.lanes == {0: Phase.SERVE}


def test_a_silent_worker_loses_its_lanes_and_finds_out() -> None:
    workers = Workers(lanes=1)
    zombie = workers.service()
    workers.settle(zombie)
    workers.world.dispatch("a")
    workers.settle(zombie)
    other = workers.service()
    membership = zombie._membership
    assert isinstance(membership, MemoryMembership)
    membership.fall_silent()
    for _ in range(20):
        workers.world.clock.advance(10_000)
        workers.settle(other)
    assert list(other.lanes) == [0]
    workers.release()
    lane = zombie._lanes[0]
    lane.turn()  # it goes on before it hears of the group
    assert lane.is_fenced
    workers.settle(zombie, other)
    assert zombie.lanes == {}
    assert workers.world.results() == []
    assert numbers(workers.world.said(), HandedBack) == [1]


def test_a_fenced_lane_that_the_group_leaves_us_makes_us_join_anew() -> None:
    workers = Workers(lanes=1)
    service = workers.service()
    workers.settle(service)
    stranger = workers.world.holder()
    stranger.settle()
    workers.world.dispatch("a")
    workers.settle(service)
    workers.release()
    workers.settle(service)
    assert service.lanes == {0: Phase.GONE}
    workers.world.clock.advance(FENCED_REJOIN_MS - 1)
    workers.settle(service)
    assert service.lanes == {0: Phase.GONE}
    for _ in range(5):
        workers.world.clock.advance(1_000)
        workers.settle(service)
    assert service.lanes == {0: Phase.SERVE}
    assert "worker_fenced_but_assigned" in workers.world.notes.names()
    assert numbers(workers.world.said(), HandedBack) == [1]


def test_another_member_of_the_same_instance_ends_us() -> None:
    workers = Workers(lanes=1)
    first = workers.service("worker-1")
    workers.settle(first)
    second = workers.service("worker-1")
    second.turn()
    with pytest.raises(FencedError):
        workers.settle(first)
    assert first.lanes == {}
    workers.settle(second)
    assert second.lanes == {0: Phase.SERVE}


def test_a_worker_waits_for_its_pool_to_exist() -> None:
    workers = Workers(lanes=1)
    workers.world.log.delete_topic(TOPICS.batches(POOL))
    service = workers.service()
    workers.settle(service)
    assert service.lanes == {}
    create_topics(workers.world.log, 1)
    workers.world.clock.advance(1_000)
    workers.settle(service)
    assert service.lanes == {0: Phase.SERVE}


def test_a_lane_gained_again_is_taken_again() -> None:
    workers = Workers(lanes=1)
    service = workers.service()
    workers.settle(service)

    changes = [Change((), (0,)), Change((0,), ())]

    class Scripted:
        def poll(self, timeout_s: float) -> Change | None:
            return changes.pop(0) if changes else None

        def leave(self) -> None:
            pass

        def close(self) -> None:
            pass

    service._membership = Scripted()
    workers.world.dispatch("a")
    workers.settle(service)
    assert service.lanes == {0: Phase.SERVE}
    assert numbers(workers.world.said(), HandedBack) == [1]
