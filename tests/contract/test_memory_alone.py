"""What the in-process log adds for simulations: faults at commit, time that is handed in."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.memory import CommitFault, MemoryLog
from schemas.log import (
    TRANSACTION_TIMEOUT_MS,
    AbortedError,
    Change,
    Commit,
    FencedError,
    InDoubtError,
    LogError,
    TopicSpec,
)


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    made = MemoryLog(clock)
    made.ensure_topics([TopicSpec("t", 2, {})])
    return made


def _values(log: MemoryLog) -> list[bytes]:
    reader = log.reader()
    reader.assign({("t", 0): 0})
    return [record.value for record in reader.poll(1000, 0)]


def test_an_injected_abort_is_certain_and_the_same_may_be_sent_again(log: MemoryLog) -> None:
    holder = log.transactional("id")
    holder.init()
    log.faults = lambda _: CommitFault.ABORTED
    holder.begin()
    holder.send("t", 0, b"x")
    with pytest.raises(AbortedError):
        holder.commit()
    assert _values(log) == []
    log.faults = None
    holder.begin()
    holder.send("t", 0, b"x")
    holder.commit()
    assert _values(log) == [b"x"]


@pytest.mark.parametrize(
    ("fault", "values"),
    [(CommitFault.IN_DOUBT_LANDED, [b"x"]), (CommitFault.IN_DOUBT_LOST, [])],
)
def test_a_doubt_is_resolved_by_init(
    log: MemoryLog, fault: CommitFault, values: list[bytes]
) -> None:
    asked: list[str] = []

    def faults(transactional_id: str) -> CommitFault:
        asked.append(transactional_id)
        return fault

    log.faults = faults
    holder = log.transactional("id")
    holder.init()
    holder.begin()
    holder.send("t", 0, b"x")
    holder.send_offsets("g", {("t", 0): Commit(1, "")})
    with pytest.raises(InDoubtError):
        holder.commit()
    with pytest.raises(LogError, match="init"):
        holder.begin()
    holder.init()
    assert asked == ["id"]
    assert _values(log) == values
    expected = Commit(1, "") if values else None
    assert log.reader().committed("g", [("t", 0)]) == {("t", 0): expected}


def test_a_transaction_left_open_ends_by_the_clock(log: MemoryLog, clock: ManualClock) -> None:
    holder = log.transactional("id")
    holder.init()
    holder.begin()
    holder.send("t", 0, b"x")
    reader = log.reader()
    clock.ms += TRANSACTION_TIMEOUT_MS - 1
    assert reader.bounds(("t", 0)) == (0, 0)
    clock.ms += 1
    assert reader.bounds(("t", 0)) == (0, 2)
    with pytest.raises(FencedError, match="open for too long"):
        holder.commit()


def test_a_silent_member_is_passed_over_after_its_session(
    log: MemoryLog, clock: ManualClock
) -> None:
    silent, other = log.membership("g", "t"), log.membership("g", "t")
    assert silent.poll(0) == Change((0,), ())
    assert other.poll(0) == Change((1,), ())
    silent.fall_silent()
    clock.ms += 5_999
    assert other.poll(0) is None
    clock.ms += 1
    assert other.poll(0) == Change((0,), ())
    assert silent.poll(0) == Change((), (0,))
    assert silent.poll(0) is None
    assert other.poll(0) == Change((), (1,))
    assert silent.poll(0) == Change((1,), ())


def test_a_member_that_polls_again_in_time_keeps_its_partitions(
    log: MemoryLog, clock: ManualClock
) -> None:
    member, other = log.membership("g", "t"), log.membership("g", "t")
    member.poll(0)
    other.poll(0)
    member.fall_silent()
    clock.ms += 5_000
    assert member.poll(0) is None
    clock.ms += 5_000
    assert other.poll(0) is None


def test_what_a_replaced_member_held_and_its_heir_is_not_given_is_free(log: MemoryLog) -> None:
    """The first of an instance holds both; another joins, and the first is killed meanwhile."""
    first = log.membership("g", "t", "a")
    assert first.poll(0) == Change((0, 1), ())
    other = log.membership("g", "t", "b")
    replaced = log.membership("g", "t", "a")
    assert replaced.poll(0) == Change((0,), ())
    assert other.poll(0) == Change((1,), ())


def test_time_in_a_partition_never_goes_back(log: MemoryLog, clock: ManualClock) -> None:
    producer = log.producer()
    producer.send("t", 0, b"a")
    clock.ms -= 500
    producer.send("t", 0, b"b")
    reader = log.reader()
    reader.assign({("t", 0): 0})
    assert [record.timestamp_ms for record in reader.poll(10, 0)] == [1_000_000, 1_000_000]
    assert reader.offset_at(("t", 0), 1_000_000) == 0


def test_a_group_shares_out_one_topic(log: MemoryLog) -> None:
    log.ensure_topics([TopicSpec("u", 1, {})])
    log.membership("g", "t")
    with pytest.raises(LogError, match="g shares out topic t"):
        log.membership("g", "u")


def test_threads_may_share_a_log(log: MemoryLog) -> None:
    def work(name: str) -> None:
        holder, producer = log.transactional(name), log.producer()
        holder.init()
        for number in range(300):
            holder.begin()
            holder.send("t", 0, f"{name} {number}".encode())
            producer.send("t", 0, f"{name} plain {number}".encode())
            holder.commit()

    names = ["a", "b", "c", "d"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(work, names))
    reader = log.reader()
    reader.assign({("t", 0): 0})
    values = [record.value for record in reader.poll(10_000, 0)]
    assert len(values) == len(set(values)) == 2 * 300 * len(names)
    assert reader.reached(("t", 0), 3 * 300 * len(names))
    for name in names:
        own = [value for value in values if value.startswith(f"{name} plain".encode())]
        assert own == [f"{name} plain {number}".encode() for number in range(300)]


# --- what brokers do as time passes

HOUR_MS = 3_600_000


@pytest.fixture
def kept(clock: ManualClock) -> MemoryLog:
    """`d` is deleted after five hours, `c` compacted an hour late; segments are an hour long."""
    made = MemoryLog(clock)
    short = {"segment.ms": str(HOUR_MS)}
    compacted = {**short, "cleanup.policy": "compact", "min.compaction.lag.ms": str(HOUR_MS)}
    made.ensure_topics(
        [
            TopicSpec("d", 1, {**short, "retention.ms": str(5 * HOUR_MS)}),
            TopicSpec("c", 1, compacted),
        ]
    )
    return made


def test_whole_segments_are_deleted_by_their_newest_record(
    kept: MemoryLog, clock: ManualClock
) -> None:
    producer, reader = kept.producer(), kept.reader()
    for _ in range(6):  # 0, 40 | 80, 120 | 160, 200 minutes
        producer.send("d", 0, b"x")
        clock.ms += 2 * HOUR_MS // 3
    clock.ms += 5 * HOUR_MS // 3  # the second is five hours old
    kept.clean()
    assert reader.bounds(("d", 0)) == (0, 6)
    clock.ms += 1
    kept.clean()
    assert reader.bounds(("d", 0)) == (2, 6)
    clock.ms += 5 * HOUR_MS
    kept.clean()
    assert reader.bounds(("d", 0)) == (6, 6)
    producer.send("d", 0, b"later")
    reader.assign({("d", 0): 6})
    assert [(record.offset, record.value) for record in reader.poll(9, 0)] == [(6, b"later")]


def test_compaction_keeps_the_newest_of_a_key_and_the_segment_that_is_written_to(
    kept: MemoryLog, clock: ManualClock
) -> None:
    producer = kept.producer()
    for key in (b"a", b"b", b"a"):
        producer.send("c", 0, b"x", key=key)
    clock.ms += HOUR_MS + 1
    for _ in range(2):
        producer.send("c", 0, b"y", key=b"a")
    kept.clean()
    reader = kept.reader()
    reader.assign({("c", 0): 0})
    assert [record.offset for record in reader.poll(9, 0)] == [1, 2, 3, 4]
    assert reader.bounds(("c", 0)) == (0, 5)


def test_what_is_young_or_open_is_not_compacted(kept: MemoryLog, clock: ManualClock) -> None:
    producer, holder, reader = kept.producer(), kept.transactional("id"), kept.reader()
    producer.send("c", 0, b"x", key=b"a")
    producer.send("c", 0, b"x", key=b"a")
    clock.ms += HOUR_MS + 1
    holder.init()
    holder.begin()
    holder.send("c", 0, b"y", key=b"a")
    holder.abort()
    producer.send("c", 0, b"y", key=b"b")
    kept.clean()
    reader.assign({("c", 0): 0})
    assert [record.offset for record in reader.poll(9, 0)] == [1, 4]


def test_positions_are_forgotten_a_week_after_they_were_committed(
    kept: MemoryLog, clock: ManualClock
) -> None:
    place, reader, holder = ("d", 0), kept.reader(), kept.transactional("id")
    reader.commit("g", {place: Commit(0, "plain")})
    clock.ms += 1
    holder.init()
    holder.begin()
    holder.send_offsets("h", {place: Commit(0, "with a transaction")})
    holder.commit()
    clock.ms += 7 * 24 * HOUR_MS - 1
    kept.clean()
    assert reader.committed("g", [place]) == {place: None}
    assert reader.committed("h", [place]) == {place: Commit(0, "with a transaction")}
    clock.ms += 1
    kept.clean()
    assert reader.committed("h", [place]) == {place: None}
