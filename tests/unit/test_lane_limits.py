"""What a lane does about bad input, limits and lost or foreign progress."""

from typing import Any

import pytest

from schemas.codec import encode, header
from schemas.log import RECORD_BYTES_MAX, TooLargeError
from schemas.records import VERSION, End, Finished, HandedBack, Seen, Usage
from tests.support.lanes import BUCKETS, POOL, TOPICS, LaneWorld, create_topics, numbers
from workers.core.progress import OPEN_MAX
from workers.engine import EngineBatch, EngineOutcome
from workers.lane import REFRESH_MS
from workers.phase import Phase
from workers.ports import Completion


def test_headers_of_the_caller_travel_to_its_result() -> None:
    world = LaneWorld()
    holder = world.holder()
    world.dispatch("a")
    holder.settle()
    world.dispatch("b")
    holder.settle()
    assert holder.slots.batches[0].requests[0].headers == (("traceparent", b"00-b"),)
    holder.slots.release()
    holder.settle()
    reader = world.log.reader()
    reader.assign({(TOPICS.results, number): 0 for number in range(BUCKETS)})
    (record,) = reader.poll(10, 0)
    assert record.headers[1:] == (("traceparent", b"00-b"),)
    assert record.key == b"b"


def test_an_output_above_the_record_limit_fails_alone() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a", "b")
    holder.settle()
    big = EngineOutcome(End.SUCCEEDED, bytes(RECORD_BYTES_MAX), Usage(1, 2))
    small = EngineOutcome(End.SUCCEEDED, b"small")
    holder.slots._done.append(Completion(holder.lane._hands.offsets.pop(), (big, small)))
    holder.slots._running.clear()
    holder.settle()
    ends = {result.id: result for result, _ in world.results()}
    assert (ends["a"].end, ends["a"].reason) == (End.FAILED, "engine_failed")
    assert str(RECORD_BYTES_MAX) in ends["a"].detail
    assert ends["a"].usage == Usage(1, 2)
    assert ends["b"].end is End.SUCCEEDED
    finished = world.said()[-1]
    assert isinstance(finished, Finished)
    assert [outcome.end for outcome in finished.outcomes] == [End.FAILED, End.SUCCEEDED]


def test_an_unreadable_lane_record_is_set_aside_once_and_the_lane_goes_on() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.send(b"what", [("fairlane", b"\xff\x00")])
    world.dispatch("a")
    holder.settle()
    holder.slots.release()
    holder.settle()
    ((dead, value),) = world.dead()
    assert (dead.topic, dead.partition, dead.reason) == (TOPICS.batches(POOL), 0, "unreadable")
    assert value == b"what"
    assert world.ends() == {"a": End.SUCCEEDED}
    assert "lane_record_unreadable" in world.notes.names()
    world.holder().settle()
    assert len(world.dead()) == 1


def test_a_batch_whose_bodies_do_not_fit_fails_each_request() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    batch, value = world.batch("a", "b")
    world.send(value + b"more", header(batch))
    holder.settle()
    assert world.ends() == {"a": End.FAILED, "b": End.FAILED}
    assert {result.reason for result, _ in world.results()} == {"unreadable"}
    assert len(world.dead()) == 1
    assert holder.slots.started == []


def test_ended_batches_above_a_long_one_are_not_handed_back() -> None:
    world = LaneWorld()
    holder = world.holder(slots=2)
    holder.settle()
    world.dispatch("long")
    for index in range(3 * OPEN_MAX):
        world.dispatch(f"short-{index}")
        holder.settle()
        holder.slots.release(index + 2)
        holder.settle()
    world.holder().settle()
    assert numbers(world.said(), HandedBack) == [1]


def test_lost_progress_is_rebuilt_from_what_the_holders_said() -> None:
    world = LaneWorld()
    holder = world.holder(slots=3)
    holder.settle()
    for id_ in "abc":
        world.dispatch(id_)
    holder.settle()
    holder.slots.release(2)
    holder.settle()
    world.log._store.committed.clear()
    world.holder().settle()
    assert numbers(world.said(), HandedBack) == [1, 3]
    assert "lane_progress_missing" in world.notes.names()


def test_unreadable_progress_stops_the_lane_and_names_the_way_out() -> None:
    world = LaneWorld()
    world.holder().settle()
    names = world.names()
    commits = world.log._store.committed[names.group]
    commits[names.batches] = commits[names.batches]._replace(metadata="FL1.00000000.AAAA")
    broken = world.holder()
    broken.settle()
    assert broken.lane.phase is Phase.GONE
    event, facts = world.notes.events[-1]
    assert event == "lane_broken"
    assert names.group in str(facts["error"])
    assert "delete the group's offset" in str(facts["error"])


def test_a_recreated_lane_topic_stops_the_lane_and_names_the_way_out() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a")
    holder.settle()
    holder.slots.release()
    holder.settle()
    names = world.names()
    kept = world.log._store.committed[names.group][names.batches]
    world.log.delete_topic(names.batches[0])
    create_topics(world.log, 1)
    world.log._store.committed[names.group][names.batches] = kept
    second = world.holder()
    second.settle()
    assert second.lane.phase is Phase.GONE
    assert "truncated or recreated" in str(world.notes.events[-1][1]["error"])


def test_a_lane_is_not_served_while_a_transaction_of_its_holders_has_no_end() -> None:
    world = LaneWorld()
    world.holder().settle()
    names = world.names()
    lost = world.log.transactional("whose end is lost")
    lost.init()
    lost.begin()
    lost.send(*names.workers, b"")
    second = world.holder()
    second.settle()
    assert second.lane.phase is Phase.GONE
    event, facts = world.notes.events[-1]
    assert event == "lane_broken"
    assert f"abort with --topic {names.workers[0]} --partition 0" in str(facts["error"])


def test_records_that_retention_took_are_passed_over_loudly() -> None:
    world = LaneWorld()
    first = world.holder(slots=1)
    first.settle()
    world.dispatch("a")
    first.settle()
    world.dispatch("b")
    end = world.log.reader().bounds(world.names().batches).end
    world.log.delete_records({world.names().batches: end})
    second = world.holder()
    second.settle()
    world.dispatch("c")
    second.settle()
    second.slots.release()
    second.settle()
    assert "lane_lost_by_retention" in world.notes.names()
    assert world.ends() == {"c": End.SUCCEEDED}


def test_an_idle_lane_repeats_progress_and_slots_before_they_are_forgotten() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.log._store.committed.clear()
    world.clock.advance(REFRESH_MS)
    holder.settle()
    assert world.names().batches in world.log._store.committed[world.names().group]
    assert world.said() == [Seen(VERSION, 2)] * 2


def test_a_lane_waits_for_its_topics() -> None:
    world = LaneWorld()
    world.log.delete_topic(TOPICS.results)
    holder = world.holder()
    holder.settle()
    before = holder.lane.phase
    create_topics(world.log, 1)
    world.clock.advance(1_000)
    holder.settle()
    assert (before, holder.lane.phase) == (Phase.TAKE, Phase.SERVE)


def test_a_lane_has_between_one_slot_and_what_its_progress_can_hold() -> None:
    world = LaneWorld()
    for slots in (0, OPEN_MAX + 1):
        with pytest.raises(ValueError, match="slots"):
            world.holder(slots=slots)


def test_a_batch_without_requests_ends_without_an_engine() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch()
    holder.settle()
    assert holder.slots.started == []
    assert numbers(world.said(), Finished) == [1]


def test_a_record_of_a_later_version_stops_the_lane_before_it() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    batch, value = world.batch("a")
    later = encode(batch).replace(b"\x01", b"\x02", 1)
    world.send(value, [("fairlane", later)])
    holder.settle()
    assert holder.lane.phase is Phase.GONE
    assert "upgrade this worker" in str(world.notes.events[-1][1]["error"])
    assert world.dead() == []
    assert world.log._store.committed[world.names().group][world.names().batches].offset == 0
    other = world.holder()
    other.settle()
    assert other.lane.phase is Phase.GONE
    assert world.dead() == []


def test_a_transaction_takes_what_fits_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.lane.TRANSACTION_BYTES_MAX", 2_500)
    world = LaneWorld()
    holder = world.holder(slots=6)
    holder.settle()
    for id_ in "abcde":
        world.dispatch(id_)
    world.dispatch("f", "g", "h")
    holder.settle()
    before = world.meter.counts["worker_transactions_total"]
    holder.slots.release()
    holder.settle()
    assert world.meter.counts["worker_transactions_total"] == before + 4
    assert numbers(world.said(), Finished) == [1, 2, 3, 4, 5, 6]
    assert len(world.ends()) == 8


def test_engine_batches_carry_what_an_engine_needs() -> None:
    world = LaneWorld()
    holder = world.holder()
    holder.settle()
    world.dispatch("a", deadline_ms=2_000_000, attempt=2)
    holder.settle()
    (batch,) = holder.slots.batches
    assert isinstance(batch, EngineBatch)
    (request,) = batch.requests
    assert (request.id, request.body, request.tokens) == ("a", b"body of a", 10)
    assert (request.deadline_ms, request.attempt) == (2_000_000, 2)


class Narrow:
    """A log whose topics take less than its clients do: the commit tells, nothing stands."""

    def __init__(self, inner: Any, limit: int) -> None:
        self._inner = inner
        self._limit = limit
        self._is_above = False

    def transactional(self, transactional_id: str) -> "Narrow":
        return Narrow(self._inner.transactional(transactional_id), self._limit)

    def send(self, topic: str, partition: int, value: bytes, **more: Any) -> None:
        self._is_above |= topic == TOPICS.results and len(value) > self._limit
        self._inner.send(topic, partition, value, **more)

    def commit(self) -> None:
        if not self._is_above:
            self._inner.commit()
            return
        self._is_above = False
        self._inner.abort()
        raise TooLargeError("results[0]: a record is above the limit of its topic")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_output_above_a_topics_own_limit_fails_alone() -> None:
    world = LaneWorld()
    holder = world.holder(log=Narrow(world.log, 9))
    holder.settle()
    world.dispatch("a", "longer")
    holder.settle()
    world.dispatch("b")
    holder.settle()
    holder.slots.release()
    for _ in range(4):
        holder.settle()
        world.clock.advance(1_000)
    assert world.ends() == {"a": End.SUCCEEDED, "longer": End.FAILED, "b": End.SUCCEEDED}
    assert numbers(world.said(), Finished) == [1, 2]
    assert numbers(world.said(), HandedBack) == []
