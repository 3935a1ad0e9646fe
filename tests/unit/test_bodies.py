"""Bodies beyond the budget are dropped and read again; what is picked never depends on it."""

from random import Random

import pytest

from scheduler.ahead import BODY_OVERHEAD
from scheduler.bodies import Limits
from scheduler.core.snapshot import dump
from scheduler.story import RecoveryError
from schemas.records import End
from tests.support.backlog import Backlog
from tests.support.counting_log import CountingLog

SIZE = 400
COUNT = 6_000


def filled(
    weights: dict[str, int], percent: int, *, count: int = COUNT, priorities: int = 1
) -> Backlog:
    """A backlog of which the budget takes so many percent."""
    random = Random(7)
    budget = count * (SIZE + BODY_OVERHEAD) * percent // 100
    backlog = Backlog(weights, limits=Limits(budget), batch=8)
    for number in range(count):
        backlog.submit(
            f"r{number}",
            random.choice(list(weights)),
            f"{number}".encode().ljust(SIZE, b"."),
            priority=random.randrange(priorities),
        )
    backlog.read_all()
    backlog.open_lane(8)
    return backlog


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1, "c": 1}, {"a": 4, "b": 2, "c": 1}])
def test_a_deep_backlog_drains_with_a_few_readings_of_the_log(weights: dict[str, int]) -> None:
    backlog = filled(weights, 10)
    backlog.drain()
    bodies = backlog.shard.bodies
    assert len(backlog.sent) == COUNT
    assert bodies.dropped > 0
    assert bodies.read_bytes <= 4 * COUNT * SIZE  # once for each pace at which queues go


@pytest.mark.parametrize(("percent", "times", "clients"), [(10, 12.5, 30), (30, 4.5, 10)])
def test_what_goes_in_any_order_is_read_as_often_as_the_budget_is_filled(
    percent: int, times: float, clients: int
) -> None:
    """Random priorities: what goes next is anywhere, so each reading goes through all the log."""
    backlog = filled({"a": 1, "b": 1, "c": 1}, percent, priorities=1_000)
    bodies = backlog.shard.bodies
    bodies._log = counting = CountingLog(backlog.log)
    backlog.drain()
    assert bodies.read_bytes <= times * COUNT * SIZE
    assert counting.readers <= clients


@pytest.mark.parametrize("priorities", [1, 50])
def test_decisions_are_the_same_whatever_is_in_memory(priorities: int) -> None:
    stories = []
    for percent in (1, 10, 200):
        backlog = filled({"a": 3, "b": 1}, percent, count=1_500, priorities=priorities)
        backlog.drain()
        stories.append((backlog.sent, dump(backlog.shard.state)))
    assert stories[0] == stories[1] == stories[2]


def test_with_room_nothing_is_dropped_or_read_again() -> None:
    backlog = filled({"a": 1, "b": 1}, 200, count=500)
    backlog.drain()
    bodies = backlog.shard.bodies
    assert (bodies.dropped, bodies.read_again, bodies.read_bytes) == (0, 0, 0)
    backlog.read_all()
    assert (len(bodies), bodies.resident_bytes) == (0, 0)


def test_a_single_body_above_the_budget_is_served() -> None:
    backlog = Backlog({"a": 1}, limits=Limits(100), batch=1)
    backlog.submit("large", "a", b"x" * 5_000, headers=(("trace", b"abc"),))
    backlog.read_all()
    assert len(backlog.shard.bodies) == 0
    backlog.open_lane(1)
    backlog.turn()
    (sent,) = backlog.receive()
    assert (sent.body, sent.headers) == (b"x" * 5_000, (("trace", b"abc"),))


def test_a_recovered_shard_goes_on_within_its_budget() -> None:
    backlog = filled({"a": 2, "b": 1}, 200, count=1_000)
    backlog.turn()
    first = backlog.receive()
    shard = backlog.restarted(Limits(20_000))
    assert 0 < shard.bodies.resident_bytes <= 20_000
    backlog.finish(first)
    backlog.drain()
    assert sorted(one.id for one in backlog.sent) == sorted(backlog.bodies)


def test_what_is_handed_back_is_sent_again_with_its_body() -> None:
    backlog = filled({"a": 1}, 10, count=500)
    backlog.turn()
    first = backlog.receive()
    backlog.hand_back(first)
    backlog.drain()
    assert {one.id for one in first} <= {one.id for one in backlog.sent[len(first) :]}
    assert all(one.body == backlog.bodies[one.id] for one in backlog.sent)


def test_what_the_scheduler_ends_keeps_its_headers() -> None:
    backlog = Backlog({"a": 1}, limits=Limits(1_000), batch=1)
    for number in range(20):
        backlog.submit(f"r{number}", "a", b"x" * 400)
    backlog.read_all()
    backlog.clock.time_ms += 10**9
    backlog.read_all()
    assert [result.end for result in backlog.results()] == [End.EXPIRED] * 20
    assert len(backlog.shard.bodies) == 0


def test_bodies_that_the_log_lost_stop_the_shard_by_place_and_way_out() -> None:
    backlog = filled({"a": 1}, 10, count=500)
    topic, number = backlog.partition("a")
    backlog.log.delete_records({(topic, number): 400})
    with pytest.raises(RecoveryError, match=rf"{topic}\[{number}\].*FAIRLANE_PREFIX"):
        backlog.drain()


def test_what_comes_for_a_short_queue_is_not_dropped_for_a_long_one() -> None:
    backlog = Backlog({"heavy": 1, "light": 1}, limits=Limits(50_000), batch=1)
    for number in range(1_000):
        backlog.submit(f"h{number}", "heavy", b"h" * SIZE)
    backlog.read_all()
    backlog.submit("quick", "light", b"q" * SIZE)
    backlog.turn()
    state, bodies = backlog.shard.state, backlog.shard.bodies
    assert state.ids["quick"].key in bodies
    assert state.ids["h0"].key in bodies
    assert state.ids["h999"].key not in bodies


def test_what_goes_first_is_kept_whenever_it_came() -> None:
    """Far more waits than fits, and what is urgent comes late: nothing is read again for it."""
    backlog = filled({"a": 1, "b": 1}, 30, count=2_000, priorities=1_000)
    for round_ in range(30):
        for number in range(64):
            name = f"u{round_}.{number}"
            backlog.submit(name, "ab"[number % 2], b"u" * SIZE, priority=0)
        backlog.turn()
        backlog.finish(backlog.receive())
    bodies = backlog.shard.bodies
    urgent = sum(one.id.startswith("u") for one in backlog.sent)
    assert bodies.resident_bytes <= bodies.budget
    assert (bodies.read_again, urgent > 1_800) == (0, True)


def test_a_single_body_that_is_missing_is_read_alone() -> None:
    backlog = filled({"a": 1, "b": 1}, 30, count=2_000, priorities=1_000)
    backlog.turn()
    bodies, state = backlog.shard.bodies, backlog.shard.state
    queue = next(iter(state.lives())).queue
    bodies.drop(queue.head().key)
    backlog.finish(backlog.receive())
    backlog.turn()
    assert bodies.read_again == 1
    assert bodies.read_bytes <= 2 * SIZE  # and nothing is read ahead with it


def test_a_recovered_shard_holds_what_goes_first() -> None:
    backlog = filled({"a": 2, "b": 1}, 200, count=3_000, priorities=1_000)
    bodies = backlog.restarted(Limits(backlog.shard.bodies.budget // 8)).bodies
    for _ in range(4):
        backlog.turn()
        backlog.finish(backlog.receive())
    assert len(backlog.sent) >= 250
    assert (bodies.read_again, bodies.dropped > 0) == (0, True)


def test_too_many_waiting_pause_the_reading_of_requests_and_nothing_else() -> None:
    backlog = Backlog({"a": 1}, limits=Limits(live_max=100), batch=5)
    backlog.read_all()
    for number in range(101):
        backlog.submit(f"r{number}", "a", b"x")
    backlog.read_all()
    for number in range(101, 150):
        backlog.submit(f"r{number}", "a", b"x")
    backlog.read_all()
    assert len(backlog.shard.state.ids) == 101  # the rest stays in the log
    backlog.open_lane(1)
    backlog.turn()
    backlog.finish(backlog.receive())
    backlog.turn()
    assert len(backlog.shard.state.ids) == 91  # workers are heard, but it is not enough room
    backlog.finish(backlog.receive())
    backlog.read_all()
    assert len(backlog.shard.state.ids) == 130
    backlog.drain()
    assert len({one.id for one in backlog.sent}) == len(backlog.sent) == 150
    assert backlog.meter.counts["scheduler_reading_pauses"] == 2
    assert sum("too many wait" in name for name in backlog.notes.names()) == 2
