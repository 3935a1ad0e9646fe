"""What a lane does not run: what was cancelled, and what comes too late."""

from schemas.codec import header
from schemas.records import VERSION, BatchCancel, End, Finished, HandedBack
from tests.support.lanes import LaneWorld, numbers


def test_a_cancel_before_the_start_ends_the_request_and_the_rest_runs() -> None:
    world = LaneWorld()
    holder = world.holder(slots=1)
    holder.settle()
    world.dispatch("long")
    batch = world.dispatch("a", "b")
    alone = world.dispatch("c")
    world.cancel(batch, 0)
    world.cancel(alone, 0)
    holder.settle()
    assert world.ends() == {"c": End.CANCELLED}
    holder.slots.release()
    holder.settle()
    assert [request.id for request in holder.slots.batches[1].requests] == ["b"]
    holder.slots.release()
    holder.settle()
    assert world.ends() == {
        "long": End.SUCCEEDED,
        "a": End.CANCELLED,
        "b": End.SUCCEEDED,
        "c": End.CANCELLED,
    }
    finished = world.said()[-1]
    assert isinstance(finished, Finished)
    assert [outcome.end for outcome in finished.outcomes] == [End.CANCELLED, End.SUCCEEDED]


def test_a_cancel_of_a_running_request_reaches_the_engine() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    batch = world.dispatch("a", "b")
    holder.settle()
    world.cancel(batch, 1)
    world.cancel(batch, 1)
    holder.settle()
    holder.slots.release()
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED, "b": End.CANCELLED}


def test_a_cancel_of_what_ended_or_never_was_changes_nothing() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    batch = world.dispatch("a")
    holder.settle()
    holder.slots.release()
    holder.settle()
    world.cancel(batch, 0)
    world.send(b"", header(BatchCancel(VERSION, 77, 7)))
    holder.settle()
    assert world.ends() == {"a": End.SUCCEEDED}
    second = world.holder()
    second.settle()
    assert numbers(world.said(), HandedBack) == []


def test_a_request_whose_deadline_is_past_is_never_started() -> None:
    world = LaneWorld()
    holder = world.holder(slots=1)
    holder.settle()
    world.dispatch("long")
    world.dispatch("a", deadline_ms=world.clock.now_ms() + 100)
    holder.settle()
    world.clock.advance(100)
    holder.slots.release()
    holder.settle()
    assert holder.slots.started == [1]
    late = next(result for result, _ in world.results() if result.id == "a")
    assert (late.end, late.reason) == (End.EXPIRED, "deadline")
