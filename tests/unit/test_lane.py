"""The lane's protocol, rule by rule, against a scheduler moved by hand."""

from collections.abc import Callable

import pytest

from adapters.memory import CommitFault
from schemas.records import VERSION, End, Finished, HandedBack, Seen, Usage
from tests.support.lanes import LaneWorld, numbers
from workers.phase import Phase


def once(*faults: CommitFault) -> Callable[[str], CommitFault | None]:
    """Faults for the next commits of lanes; the scheduler's commits are let be."""
    left = list(faults)

    def fault(transactional_id: str) -> CommitFault | None:
        return left.pop(0) if left and ".lane." in transactional_id else None

    return fault


def test_a_batch_runs_and_all_is_said_in_one_transaction() -> None:
    world = LaneWorld()
    holder = world.holder(slots=2)
    holder.settle()
    batch = world.dispatch("a", "b")
    holder.settle()
    assert holder.slots.started == [1]
    assert world.results() == []
    world.clock.advance(30)
    holder.slots.release()
    holder.settle()
    assert {(r.id, r.end, value) for r, value in world.results()} == {
        ("a", End.SUCCEEDED, b"body of a"),
        ("b", End.SUCCEEDED, b"body of b"),
    }
    assert world.said()[0] == Seen(VERSION, 2)
    finished = world.said()[1]
    assert isinstance(finished, Finished)
    assert [outcome.key for outcome in finished.outcomes] == [item.key for item in batch.items]
    assert finished.outcomes[0].usage == Usage(len(b"body of a"), 1)
    assert finished.tenants == ("tenant-a", "tenant-b")
    assert finished.endpoints == ("embed", "embed")
    result = next(r for r, _ in world.results() if r.id == "a")
    assert (result.picked_ms, result.ended_ms) == (1_000_000, 1_000_030)
    assert finished.ended_ms == result.ended_ms


def test_a_slot_that_is_taken_makes_the_next_batch_wait() -> None:
    world = LaneWorld()
    holder = world.holder(slots=1)
    holder.settle()
    world.dispatch("a")
    world.dispatch("b")
    holder.settle()
    assert holder.slots.started == [1]
    holder.slots.release()
    holder.settle()
    assert holder.slots.started == [1, 2]
    assert world.ends() == {"a": End.SUCCEEDED}


def test_results_of_batches_that_are_ready_together_are_one_transaction() -> None:
    world = LaneWorld()
    holder = world.holder(slots=3)
    holder.settle()
    for id_ in "abc":
        world.dispatch(id_)
    holder.settle()
    before = world.meter.counts["worker_transactions_total"]
    holder.slots.release()
    holder.settle()
    assert world.meter.counts["worker_transactions_total"] == before + 1
    assert len(world.ends()) == 3


def test_a_first_holder_without_progress_starts_at_the_beginning() -> None:
    world = LaneWorld()
    world.dispatch("a")
    holder = world.holder()
    holder.settle()
    assert holder.slots.started == []
    assert numbers(world.said(), HandedBack) == [1]


def test_a_new_holder_hands_back_what_had_not_ended_and_runs_what_comes() -> None:
    world = LaneWorld()
    first = world.holder(slots=2)
    first.settle()
    for id_ in "abc":
        world.dispatch(id_)
    first.settle()
    first.slots.release(2)
    first.settle()
    second = world.holder(slots=2)
    second.settle()
    assert numbers(world.said(), HandedBack) == [1, 3]
    world.dispatch("a", attempt=1)
    second.settle()
    second.slots.release()
    second.settle()
    assert second.slots.started == [4]
    assert world.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED}
    assert numbers(world.said(), Finished) == [2, 4]


def test_nothing_starts_before_the_hand_backs_are_committed() -> None:
    world = LaneWorld()
    world.dispatch("a")
    world.log.faults = once(CommitFault.ABORTED)
    holder = world.holder()
    for _ in range(5):
        holder.lane.turn()
    world.dispatch("b")
    for _ in range(5):
        holder.lane.turn()
    assert holder.slots.started == []
    world.clock.advance(1_000)
    holder.settle()
    assert numbers(world.said(), HandedBack) == [1]
    assert holder.slots.started == [2]


def test_progress_is_read_after_the_init() -> None:
    world = LaneWorld()
    first = world.holder()
    first.settle()
    world.dispatch("a")
    first.settle()
    second = world.holder()
    first.slots.release()
    first.settle()  # commits after the second exists, before it takes the lane
    second.settle()
    assert numbers(world.said(), HandedBack) == []
    assert world.ends() == {"a": End.SUCCEEDED}


def test_a_zombie_commits_nothing_and_does_not_come_back() -> None:
    world = LaneWorld()
    zombie = world.holder()
    zombie.settle()
    world.dispatch("a")
    zombie.settle()
    holder = world.holder()
    holder.settle()
    zombie.slots.release()
    zombie.settle()
    assert zombie.lane.phase is Phase.GONE
    assert zombie.lane.is_fenced
    assert zombie.slots.is_closed
    assert world.results() == []
    world.dispatch("b")
    zombie.settle()
    holder.settle()
    assert (zombie.slots.started, holder.slots.started) == ([1], [2])
    holder.slots.release()
    holder.settle()
    assert world.ends() == {"b": End.SUCCEEDED}


def test_a_zombie_may_start_a_batch_but_its_result_is_never_seen() -> None:
    world = LaneWorld()
    zombie = world.holder()
    zombie.settle()
    holder = world.holder()
    holder.settle()
    world.dispatch("a")
    zombie.settle()
    holder.settle()
    assert (zombie.slots.started, holder.slots.started) == ([1], [1])
    zombie.slots.release()
    zombie.settle()
    assert world.results() == []
    holder.slots.release()
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED}


def test_a_batch_whose_cycle_commits_while_the_lane_changes_hands_runs_once() -> None:
    world = LaneWorld()
    first = world.holder()
    first.settle()
    _, commit = world.open_dispatch("a")
    first.settle()
    second = world.holder()
    second.lane.turn()  # takes the lane; the end it reads lies below the open cycle
    commit()
    second.settle()
    first.settle()
    assert second.slots.started == [1]
    second.slots.release()
    second.settle()
    first.slots.release()
    first.settle()
    assert world.ends() == {"a": End.SUCCEEDED}
    assert numbers(world.said(), HandedBack) == []


def test_an_aborted_transaction_is_published_again() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a")
    holder.settle()
    world.log.faults = once(CommitFault.ABORTED, CommitFault.ABORTED)
    holder.slots.release()
    for _ in range(5):
        holder.lane.turn()
        world.clock.advance(1_000)
    assert world.ends() == {"a": End.SUCCEEDED}
    assert numbers(world.said(), Finished) == [1]
    assert holder.slots.started == [1]


@pytest.mark.parametrize("fault", [CommitFault.IN_DOUBT_LANDED, CommitFault.IN_DOUBT_LOST])
def test_a_result_in_doubt_is_written_once(fault: CommitFault) -> None:
    world = LaneWorld()
    holder = world.holder(slots=2)
    holder.settle()
    world.dispatch("a")
    world.dispatch("b")
    holder.settle()
    world.log.faults = once(fault)
    holder.slots.release(1)
    holder.settle()
    world.clock.advance(1_000)
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED}
    holder.slots.release(2)  # it ran on while the commit was in doubt
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED}
    assert holder.slots.started == [1, 2]
    assert numbers(world.said(), HandedBack) == []
    assert numbers(world.said(), Finished) == [1, 2]


def test_after_doubt_what_had_not_started_is_handed_back() -> None:
    world = LaneWorld()
    holder = world.holder(slots=1)
    holder.settle()
    for id_ in "abc":
        world.dispatch(id_)
    holder.settle()
    world.log.faults = once(CommitFault.IN_DOUBT_LOST)
    holder.slots.release(1)
    holder.lane.turn()
    phase = holder.lane.phase
    assert phase is Phase.TAKE
    world.clock.advance(1_000)
    holder.settle()
    assert holder.slots.started == [1, 2]
    assert numbers(world.said(), HandedBack) == [3]
    assert world.ends() == {"a": End.SUCCEEDED}


def test_a_first_transaction_in_doubt_is_said_once_or_again_as_the_log_has_it() -> None:
    for fault in (CommitFault.IN_DOUBT_LANDED, CommitFault.IN_DOUBT_LOST):
        world = LaneWorld()
        world.dispatch("a")
        world.log.faults = once(fault)
        holder = world.holder()
        holder.settle()
        world.clock.advance(1_000)
        holder.settle()
        assert numbers(world.said(), HandedBack) == [1]


def test_a_fenced_lane_in_doubt_finds_its_batch_handed_back_and_drops_the_result() -> None:
    world = LaneWorld()
    holder = world.holder(slots=2)
    holder.settle()
    world.dispatch("a")
    world.dispatch("b")
    holder.settle()
    world.log.faults = once(CommitFault.IN_DOUBT_LOST)
    holder.slots.release(1)
    holder.lane.turn()
    other = world.holder()
    other.settle()
    assert numbers(world.said(), HandedBack) == [1, 2]
    world.clock.advance(1_000)
    holder.settle()  # it takes the lane again: the group still gives it to it
    holder.slots.release(2)
    holder.settle()
    assert world.results() == []
    assert world.meter.counts["worker_results_unwanted_total"] == 1
    assert numbers(world.said(), HandedBack) == [1, 2]


def test_started_is_advice_and_comes_before_the_result() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a")
    holder.settle()
    assert world.advised() == [1]
    zombie = holder
    world.holder().settle()
    world.dispatch("b")
    zombie.settle()
    assert world.advised().count(2) == 1
    assert numbers(world.said(), HandedBack) == [1]


def test_each_holder_says_its_own_capacity() -> None:
    world = LaneWorld()
    world.holder(slots=2).settle()
    world.holder(slots=5).settle()
    assert world.said() == [Seen(VERSION, 2), Seen(VERSION, 5)]


def test_a_stopping_lane_finishes_what_runs_and_starts_nothing() -> None:
    world = LaneWorld()
    holder = world.holder(slots=1)
    holder.settle()
    world.dispatch("a")
    world.dispatch("b")
    holder.settle()
    holder.lane.stop()
    world.dispatch("c")
    holder.slots.release()
    holder.settle()
    assert holder.lane.is_idle
    assert holder.slots.started == [1]
    assert world.ends() == {"a": End.SUCCEEDED}
    holder.lane.drop()
    world.holder().settle()
    assert numbers(world.said(), HandedBack) == [2, 3]


def test_a_lost_lane_is_dropped_without_a_commit() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a")
    holder.settle()
    holder.slots.release()
    said = world.said()
    holder.lane.drop()
    holder.settle()
    assert world.said() == said
    assert holder.slots.is_closed
