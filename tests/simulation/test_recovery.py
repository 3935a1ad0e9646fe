"""Back from the log: long ended ranges, snapshots in many pieces, warm copies, clean hand-overs."""

from collections.abc import Callable

import pytest

from adapters.memory_groups import SESSION_TIMEOUT_MS
from scheduler import ranges, shard
from scheduler.ahead import BODY_OVERHEAD
from scheduler.bodies import Bodies
from scheduler.core.snapshot import dump
from scheduler.fold import Fold
from scheduler.recovery import RecoveryError, recover, take_over
from scheduler.story import Story
from schemas.records import VERSION, Pause
from simulation.door import Arrival
from simulation.fleet import Fleet
from simulation.process import Fleetmate, SchedulerProcess
from tests.simulation.test_fleet import ENGINE, arrive, fleet_of, run
from tests.support.counting_log import CountingLog


def settled(fleet: Fleet, steps: int = 100) -> None:
    for _ in range(steps):
        fleet.step()


def waiting(fleet: Fleet, count: int) -> None:
    while not fleet.agenda_is_empty or len(only_shard(fleet).state.ids) < count:
        fleet.step()


def only_shard(fleet: Fleet) -> shard.Shard:
    while True:
        for process in fleet.schedulers:
            for found in process.service.shards.values():
                if found.ready:
                    return found
        fleet.step()


def recovered(fleet: Fleet) -> tuple[Fold, CountingLog]:
    log = CountingLog(fleet.log)
    return recover(log, fleet.topics, 0, fleet.silence), log


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls, jumps and what is kept ahead a hundred times smaller, for small logs."""
    monkeypatch.setattr(ranges, "POLL_RECORDS", 20)
    monkeypatch.setattr(ranges, "JUMP_RECORDS", 50)
    monkeypatch.setattr(ranges, "AHEAD_MAX", 40)
    monkeypatch.setattr(ranges.ranges_of, "__defaults__", (5,))


@pytest.mark.usefixtures("small_steps")
def test_one_paused_request_below_many_ended_ones_costs_no_reading() -> None:
    fleet, judge = fleet_of()
    settled(fleet)
    fleet.say(Pause(VERSION, "globex", "embed"))
    fleet.submit(Arrival(0, "globex", "embed", "gold", b"waits", id="paused"))
    arrive(fleet, 600, every_ms=5)
    while len(judge.results) < 600:
        fleet.step()
    only_shard(fleet).write_snapshot()
    found, log = recovered(fleet)
    assert dump(found.state) == dump(only_shard(fleet).state)
    assert [live.id for live in found.state.lives()] == ["paused"]
    assert log.read[fleet.topics.requests("gold")] <= ranges.POLL_RECORDS


def test_what_ended_between_two_that_wait_stays_ended() -> None:
    """The snapshot names who waits; what is read along with them stays out."""
    fleet, judge = fleet_of()
    settled(fleet)
    fleet.say(Pause(VERSION, "globex", "embed"))
    fleet.submit(Arrival(0, "globex", "embed", "gold", b"waits", id="first"))
    arrive(fleet, 20, every_ms=5)
    last = Arrival(0, "globex", "embed", "gold", b"waits", id="last")
    fleet.after(100, lambda: fleet.submit(last))
    while len(judge.results) < 20 or len(only_shard(fleet).state.ids) < 2:
        fleet.step()
    assert sorted(only_shard(fleet).state.ids) == ["first", "last"]
    only_shard(fleet).write_snapshot()
    found, _ = recovered(fleet)
    assert sorted(live.id for live in found.state.lives()) == ["first", "last"]
    assert dump(found.state) == dump(only_shard(fleet).state)


@pytest.mark.usefixtures("small_steps")
def test_recovery_opens_few_clients() -> None:
    fleet, _ = fleet_of()
    arrive(fleet, 200, every_ms=1)
    settled(fleet, 150)
    found, log = recovered(fleet)
    assert dump(found.state) == dump(only_shard(fleet).state)
    assert log.readers <= 3


def test_what_is_gone_from_the_middle_is_told_by_range() -> None:
    fleet, _ = fleet_of(workers=0)
    arrive(fleet, 40, every_ms=1)
    waiting(fleet, 40)
    only_shard(fleet).write_snapshot()
    topic = fleet.topics.requests("gold")
    slots = fleet.log._store.parts[topic, 0].slots
    for gone in (3, 4, 5, 20):
        slots[gone] = None
    with pytest.raises(RecoveryError, match=r"4 accepted requests are gone.* 3\.\.5, 20\.\.20\."):
        recovered(fleet)


def test_a_snapshot_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "CHUNK_BYTES", 10)
    fleet, _ = fleet_of(workers=0)
    arrive(fleet, 40, every_ms=1)
    waiting(fleet, 40)
    owner = only_shard(fleet)
    owner.write_snapshot()
    found, _ = recovered(fleet)
    assert found.story.snapshot == owner.snapshot_offset
    assert found.decisions == 0
    assert dump(found.state) == dump(owner.state)


@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_recovery_keeps_bodies_within_their_budget(share: float) -> None:
    fleet, judge = fleet_of(workers=0)
    arrive(fleet, 40, every_ms=1)
    waiting(fleet, 40)
    only_shard(fleet).write_snapshot()
    budget = int(40 * (400 + BODY_OVERHEAD) * share)
    bodies = Bodies(fleet.log, budget)
    found = recover(fleet.log, fleet.topics, 0, fleet.silence, bodies)
    assert bodies.resident_bytes <= budget
    fitting = min(40, int(40 * share))
    assert fitting * 3 // 4 <= len(bodies) <= fitting  # some room is made at once
    bodies.follow(found.state)
    keys = [live.key for live in found.state.lives()]
    assert [body.value for body in bodies.take(keys)] == [b"x" * 400] * 40
    fleet.start_worker("embed-0", Fleetmate("embed", 2, ENGINE))
    assert run(fleet, judge) == {"succeeded": 40}


# --- reading ahead


def test_what_is_committed_between_reading_ahead_and_the_init_counts() -> None:
    """The order rule: an end asked for after the init, whatever was read before it."""
    fleet, _ = fleet_of()
    arrive(fleet, 30)
    settled(fleet, 60)
    live = only_shard(fleet)

    def fresh() -> Fold:
        return Fold(fleet.log, fleet.topics, 0, fleet.silence)

    class LateProducer:
        """Its brokers take their time: the owner decides once more before the id is taken."""

        def init(self, meanwhile: Callable[[], bool]) -> None:
            while meanwhile():
                pass
            read = ahead.state.seq
            while live.state.seq == read:
                fleet.step()

    ahead = fresh()
    found = take_over(fleet.log, LateProducer(), ahead, fresh)  # type: ignore[arg-type]
    assert found is ahead
    assert dump(found.state) == dump(live.state)


def test_a_failure_before_the_init_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, _ = fleet_of()
    arrive(fleet, 30)
    settled(fleet, 60)
    live = only_shard(fleet)
    real, calls = Story.begin, []

    def begin(self: Story) -> bytes | None:
        calls.append(self)
        if len(calls) == 1:
            raise RecoveryError("half of it was there")
        return real(self)

    monkeypatch.setattr(Story, "begin", begin)
    found = take_over(
        fleet.log,
        fleet.log.transactional("another"),
        Fold(fleet.log, fleet.topics, 0, fleet.silence),
        lambda: Fold(fleet.log, fleet.topics, 0, fleet.silence),
    )
    assert len(calls) == 2
    assert dump(found.state) == dump(live.state)


# --- how often a snapshot is written


@pytest.mark.parametrize(
    ("decided", "since_s", "is_due"),
    [
        (shard.SNAPSHOT_BYTES - 1, 1_000, False),
        (shard.SNAPSHOT_BYTES, 199, False),
        (shard.SNAPSHOT_BYTES, 200, True),
        (shard.SNAPSHOT_BYTES_MAX, 99, False),
        (shard.SNAPSHOT_BYTES_MAX, 100, True),
        (0, 3_600, True),
    ],
)
def test_a_snapshot_is_written_by_what_it_costs_and_spares(
    decided: int, since_s: int, *, is_due: bool
) -> None:
    """The last one took a second."""
    fleet, _ = fleet_of()
    arrive(fleet, 3)
    settled(fleet)
    owner = only_shard(fleet)
    owner.write_snapshot()
    before = owner.snapshot_offset
    owner._snapshot_took_ms, owner._bytes_since = 1_000, decided
    owner._housekeeping(owner._snapshot_ms + since_s * 1_000)
    assert (owner.snapshot_offset > before) is is_due


# --- standbys


def counting(fleet: Fleet, name: str) -> CountingLog:
    """Count what a process reads from now on."""
    process = fleet.processes[name]
    assert isinstance(process, SchedulerProcess)
    log = CountingLog(process.service._log)
    process.service._log = log
    return log


def test_a_standby_takes_over_without_reading_again() -> None:
    fleet, judge = fleet_of()
    arrive(fleet, 300, every_ms=30)
    settled(fleet, 50)
    fleet.start_scheduler("scheduler-1")
    settled(fleet, 300)
    assert len(judge.results) < 300
    fleet.kill("scheduler-0", back_after_ms=None)
    log = counting(fleet, "scheduler-1")
    before_ms = fleet.clock.now_ms()
    while not any(process.service.shards for process in fleet.schedulers):
        fleet.step()
    assert fleet.clock.now_ms() - before_ms <= SESSION_TIMEOUT_MS + 1_000
    assert log.read[fleet.topics.requests("gold")] <= 300 - len(judge.results)
    assert run(fleet, judge) == {"succeeded": 300}


def test_a_standby_follows_over_snapshots() -> None:
    fleet, judge = fleet_of(schedulers=2)
    arrive(fleet, 100, every_ms=10)
    for _ in range(8):
        settled(fleet, 20)
        only_shard(fleet).write_snapshot()
    offset = only_shard(fleet).snapshot_offset
    settled(fleet, 5)
    (standby,) = [p.service for p in fleet.schedulers if not p.service.shards]
    copy = standby._standbys.take(0)
    assert copy is not None
    while copy.turn():
        pass
    assert copy.story.snapshot == offset
    assert dump(copy.state) == dump(only_shard(fleet).state)
    assert run(fleet, judge) == {"succeeded": 100}


def test_a_clean_stop_hands_over_at_once() -> None:
    fleet, judge = fleet_of(schedulers=2, workers=0)
    arrive(fleet, 20, every_ms=1)
    waiting(fleet, 20)
    (owner,) = [p.name for p in fleet.schedulers if p.service.shards]
    before_ms = fleet.clock.now_ms()
    fleet.leave(owner)
    fleet.settle()
    assert only_shard(fleet).ready
    assert fleet.clock.now_ms() == before_ms
    fleet.start_worker("embed-0", Fleetmate("embed", 2, ENGINE))
    assert run(fleet, judge) == {"succeeded": 20}


# --- what retention took before it was read


def gone_unread(fleet: Fleet) -> None:
    """The scheduler is killed, what workers say meanwhile is deleted, and it comes back."""
    fleet.kill("scheduler-0", back_after_ms=None)
    settled(fleet)
    fleet.leave("embed-0")
    settled(fleet)
    for number in range(2):
        partition = (fleet.topics.workers("embed"), number)
        fleet.log.delete_records({partition: fleet.log.reader().bounds(partition).end})
    fleet.start_scheduler("scheduler-0")


def test_words_about_slots_may_be_gone_unread() -> None:
    fleet, judge = fleet_of()
    arrive(fleet, 20)
    assert run(fleet, judge) == {"succeeded": 20}
    gone_unread(fleet)
    settled(fleet)
    assert [event for event, _ in fleet.silence.warnings if event.startswith("gone unread")]
    fleet.start_worker("embed-0", Fleetmate("embed", 2, ENGINE))
    fleet.submit(Arrival(0, "acme", "embed", "gold", b"x", id="later"))
    assert run(fleet, judge) == {"succeeded": 21}


def test_what_ended_a_batch_may_not() -> None:
    fleet, judge = fleet_of()
    arrive(fleet, 20)
    while not judge.shards[0].flights:
        fleet.step()
    gone_unread(fleet)
    with pytest.raises(RecoveryError, match="not read yet are gone"):
        settled(fleet)
