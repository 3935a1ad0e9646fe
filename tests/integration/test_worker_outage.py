"""A lane whose broker is killed while results wait for their commit."""

import time
from collections.abc import Callable

from adapters.clock import SystemClock
from adapters.kafka import KafkaLog
from fairlane.stack import Stack
from schemas.log import LogError
from schemas.records import End, Finished, HandedBack
from schemas.topics import Topics
from tests.support.lanes import Holder, Lanes, numbers
from workers.phase import Phase

GIVE_UP_S = 90
#: Turns against a dead broker before it comes back: the lane has tried and failed by then.
FAILED_TURNS = 2


def until(is_so: Callable[[], bool], holder: Holder) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not is_so():
        assert time.monotonic() < give_up, "it never came to be"
        holder.lane.turn(0.02)


def has_ended(lanes: Lanes) -> bool:
    try:
        return len(lanes.ends()) == 2 and len(numbers(lanes.said(), Finished)) == 2
    except LogError:
        return False  # the broker is not back yet


def test_results_that_met_a_dead_broker_are_written_once_when_it_is_back(own_stack: Stack) -> None:
    log = KafkaLog(own_stack.up().kafka)
    lanes = Lanes(log, Topics("outage"), SystemClock(), 1)
    holder = lanes.holder(slots=2)
    until(lambda: holder.lane.phase is Phase.SERVE and holder.lane.is_idle, holder)
    lanes.dispatch("a")
    lanes.dispatch("b")
    until(lambda: holder.slots.started == [1, 2], holder)
    own_stack.kill_broker()
    holder.slots.release(1)
    until(lambda: lanes.meter.counts["worker_alarms_total"] >= FAILED_TURNS, holder)
    own_stack.start_broker()
    holder.slots.release(2)
    until(lambda: has_ended(lanes), holder)
    assert lanes.ends() == {"a": End.SUCCEEDED, "b": End.SUCCEEDED}
    assert sorted(numbers(lanes.said(), Finished)) == [1, 2]
    assert numbers(lanes.said(), HandedBack) == []
    assert not holder.lane.is_fenced
    lanes.close()
    log.close()
