"""`fairlane usage`: what is added up, what is refused, what is printed."""

import csv
import io
import json
import subprocess
import sys

import msgspec
import pytest

from accounting.core.windows import DAY_MS, MINUTE_MS
from accounting.names import group, lost_key
from adapters.memory import MemoryLog
from fairlane.run_accounting import AccountingError, need_faust
from fairlane.usage import UsageError, parse_time, span
from fairlane.usage_read import Behind, Row, read, rows
from fairlane.usage_show import COUNTED_GRACE_MS, Report, as_csv, as_json, print_table, remarks
from schemas.codec import DecodeError, encode
from schemas.log import Commit
from schemas.records import VERSION, Seen
from schemas.topics import Topics
from schemas.usage import UsageLost, UsageSum, Used, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, finished, policy
from tests.support.lanes import ManualClock

TOPICS = Topics("t")
DAY_START_MS = BEFORE_MIDNIGHT_MS // DAY_MS * DAY_MS


def total(
    lane: int, upto: int, tokens: int, tenant: str = "acme", start_ms: int = DAY_START_MS
) -> UsageSum:
    used = Used(succeeded=1, input_tokens=tokens)
    return UsageSum(
        VERSION, tenant, "gpu", Window.DAY, start_ms, "gpu", lane, upto, used, batches=1
    )


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog(ManualClock())
    made.ensure_topics(TOPICS.of(policy(gpu=2)))
    return made


def publish(log: MemoryLog, key: bytes, value: UsageSum | None, lane: int = 0) -> None:
    producer = log.producer()
    producer.send(TOPICS.usage("gpu"), lane, encode(value) if value else b"", key=key)
    producer.flush(1.0)
    producer.close()


def test_of_two_values_of_a_sum_the_one_that_holds_more_counts(log: MemoryLog) -> None:
    publish(log, b"a", total(0, 5, 50))
    publish(log, b"a", total(0, 3, 30))
    publish(log, b"b", total(1, 9, 7), lane=1)
    publish(log, b"gone", total(0, 1, 1))
    publish(log, b"gone", None)
    assert sorted(t.used.input_tokens for t in read(log, TOPICS).sums) == [7, 50]


def test_what_is_no_sum_is_passed_over(log: MemoryLog) -> None:
    producer = log.producer()
    producer.send(TOPICS.usage("gpu"), 0, b"\xc1", key=b"a")
    producer.send(TOPICS.usage("gpu"), 0, encode(total(0, 1, 1)))
    producer.close()
    assert read(log, TOPICS).sums == []


def test_a_lane_is_behind_by_the_batches_that_are_not_counted(log: MemoryLog) -> None:
    assert read(log, TOPICS) == ([], [], False, [])
    producer = log.producer()
    topic = TOPICS.workers("gpu")
    for said in (
        finished(1, 1_000, [("acme", "gpu")]),
        finished(2, 2_000, [("acme", "gpu")]),
        Seen(VERSION, 1),
        finished(3, 3_000, [("acme", "gpu")]),
        Seen(VERSION, 1),
    ):
        producer.send(topic, 1, encode(said))
    producer.close()
    assert read(log, TOPICS).behind == [Behind("gpu", 1, 3, is_exact=True, since_ms=1_000)]
    reader = log.reader()
    reader.commit(group(TOPICS), {(topic, 1): Commit(1, "")})
    assert read(log, TOPICS).behind == [Behind("gpu", 1, 2, is_exact=True, since_ms=2_000)]
    reader.commit(group(TOPICS), {(topic, 1): Commit(4, "")})
    assert read(log, TOPICS) == ([], [], True, [])


def test_what_a_later_release_stored_is_not_passed_over(log: MemoryLog) -> None:
    publish(log, b"a", msgspec.structs.replace(total(0, 5, 50), v=VERSION + 1))
    with pytest.raises(DecodeError, match=r"t\.usage\.gpu\[0\]@0: unknown_version"):
        read(log, TOPICS)


def test_what_a_later_release_says_is_behind(log: MemoryLog) -> None:
    producer = log.producer()
    said = msgspec.structs.replace(finished(1, 1_000, [("acme", "gpu")]), v=VERSION + 1)
    producer.send(TOPICS.workers("gpu"), 1, encode(said))
    producer.close()
    assert [(lane.lane, lane.batches) for lane in read(log, TOPICS).behind] == [(1, 1)]


def test_lanes_that_never_had_a_sum_are_behind() -> None:
    log = MemoryLog(ManualClock())
    log.ensure_topics([spec for spec in TOPICS.of(policy(gpu=1)) if ".usage." not in spec.name])
    producer = log.producer()
    producer.send(TOPICS.workers("gpu"), 0, encode(finished(1, 1_000, [("acme", "gpu")])))
    producer.close()
    assert len(read(log, TOPICS).behind) == 1


def drop(log: MemoryLog, before: int, commit: int | None) -> None:
    """Ten batches on lane 0, of which the first `before` are dropped."""
    topic = TOPICS.workers("gpu")
    producer = log.producer()
    for number in range(10):
        producer.send(topic, 0, encode(finished(number, 1_000, [("acme", "gpu")])))
    producer.close()
    log.delete_records({(topic, 0): before})
    if commit is not None:
        reader = log.reader()
        reader.commit(group(TOPICS), {(topic, 0): Commit(commit, "")})
        reader.close()


@pytest.mark.parametrize(
    ("commit", "upto", "lost"),
    [
        (3, None, (3, 8)),
        (3, 5, (5, 8)),
        (None, 5, (5, 8)),
        (8, None, None),
        (7, None, None),  # a marker alone
        (10, 8, None),
        (None, None, None),  # never counted: begins now
    ],
)
def test_what_retention_took_before_it_was_counted_is_told(
    log: MemoryLog, commit: int | None, upto: int | None, lost: tuple[int, int] | None
) -> None:
    drop(log, 8, commit)
    if upto is not None:
        publish(log, b"a", total(0, upto, 1))
    found = [(told.from_offset, told.to_offset) for told in read(log, TOPICS).lost]
    assert found == ([lost] if lost else [])


def test_a_loss_that_was_written_down_is_told_for_good(log: MemoryLog) -> None:
    drop(log, 10, 10)
    producer = log.producer()
    told = UsageLost(VERSION, "gpu", 0, 3, 8, BEFORE_MIDNIGHT_MS)
    producer.send(TOPICS.usage("gpu"), 0, encode(told), key=lost_key(told))
    producer.close()
    assert read(log, TOPICS).lost == [told]
    shown = report()._replace(lost=[told])
    assert json.loads(as_json(shown))["lost"] == [
        {
            "pool": "gpu",
            "lane": 0,
            "from_offset": 3,
            "to_offset": 8,
            "noticed_ms": BEFORE_MIDNIGHT_MS,
        }
    ]
    assert remarks(shown, None)[1] == (
        "LOST: up to 5 records of gpu[0] were dropped by retention before they were counted, "
        "noticed 2026-03-31T23:59:30Z."
    )


def test_lanes_are_added_up_and_the_rest_is_left_out() -> None:
    sums = [
        total(0, 1, 10),
        total(1, 1, 5),
        total(0, 1, 100, tenant="globex"),
        total(0, 1, 1_000, start_ms=DAY_START_MS + DAY_MS),
        total(0, 1, 7, start_ms=DAY_START_MS - DAY_MS),
    ]
    to_ms = DAY_START_MS + DAY_MS
    acme = Row("acme", "gpu", DAY_START_MS, to_ms, Used(succeeded=2, input_tokens=15), 2, 0)
    found = rows(sums, Window.DAY, DAY_START_MS, to_ms)
    assert found[0] == acme
    assert [row.tenant for row in found] == ["acme", "globex"]
    assert rows(sums, Window.DAY, DAY_START_MS, to_ms, frozenset({"acme"})) == [acme]
    assert rows(sums, Window.DAY, DAY_START_MS, to_ms, frozenset(), frozenset({"chat"})) == []
    assert rows(sums, Window.HOUR, DAY_START_MS, to_ms) == []


def test_times_are_utc_unless_they_say_else() -> None:
    assert parse_time("2026-03-31", "--from") == DAY_START_MS
    assert parse_time("2026-03-31T01:00+01:00", "--from") == DAY_START_MS
    with pytest.raises(UsageError, match=r"--from 'soon' is no time: write 2026-11-30"):
        parse_time("soon", "--from")


def test_without_ends_it_is_this_month_up_to_the_window_of_now() -> None:
    march_ms = parse_time("2026-03-01", "")
    assert span(Window.DAY, "", "", BEFORE_MIDNIGHT_MS) == (march_ms, DAY_START_MS + DAY_MS)
    assert span(Window.MONTH, "", "", BEFORE_MIDNIGHT_MS) == (march_ms, DAY_START_MS + DAY_MS)


@pytest.mark.parametrize(
    ("window", "ends", "message"),
    [
        (
            Window.DAY,
            ("2026-03-31T10:00", ""),
            r"no beginning of a day.*T00:00, or --by minute, hour",
        ),
        (
            Window.MONTH,
            ("", "2026-03-31"),
            r"--to 2026-03-31 is no beginning of a month.*2026-03-01",
        ),
        (Window.MINUTE, ("2026-03-31T10:00:30", ""), r"nothing finer than a minute"),
        (Window.DAY, ("2026-03-31", "2026-03-31"), r"is not after"),
    ],
    ids=["day", "month", "minute", "empty"],
)
def test_ends_inside_of_a_window_are_refused(
    window: Window, ends: tuple[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        span(window, *ends, BEFORE_MIDNIGHT_MS)


def report(*behind: Behind) -> Report:
    found = rows([total(0, 1, 1_234_567), total(0, 1, 3, "globex")], Window.DAY, 0, 2**60)
    return Report(Window.DAY, 0, 2**40, found, list(behind), BEFORE_MIDNIGHT_MS, [])


def test_json_and_csv_say_the_same() -> None:
    shown = json.loads(as_json(report()))
    lines = list(csv.DictReader(io.StringIO(as_csv(report()))))
    assert [{k: str(v) for k, v in window.items()} for window in shown["windows"]] == lines
    assert shown["total"]["input_tokens"] == 1_234_570
    assert shown["windows"][0]["start"] == "2026-03-31T00:00:00Z"
    assert shown["counted_to"] == "2026-03-31T23:58:25Z"
    assert shown["lost"] == []


def test_a_table_cuts_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(report())
    text = capsys.readouterr().out
    assert "1,234,567" in text
    assert "1,234,570" in text
    assert "2026-03-31" in text
    assert "reasoning" not in text


def test_remarks_say_how_far_it_is_counted_and_what_is_gone() -> None:
    assert COUNTED_GRACE_MS == 65_000
    assert remarks(report(), None) == [
        "Counted up to 2026-03-31T23:58:25Z, 65 s before now: younger may be on its way."
    ]
    behind = report(
        Behind("gpu", 0, 2, is_exact=True, since_ms=BEFORE_MIDNIGHT_MS),
        Behind("gpu", 1, 50_000, is_exact=False, since_ms=BEFORE_MIDNIGHT_MS - MINUTE_MS),
    )
    counted, kept = remarks(behind, 2 * DAY_MS)
    assert counted.startswith("Counted up to 2026-03-31T23:57:25Z; not yet counted: ")
    assert counted.endswith("2 batches of gpu[0], up to 50,000 batches of gpu[1].")
    assert kept == "Sums by day are kept for 2 days; days and months stay."


def test_every_command_but_the_accounting_does_without_faust() -> None:
    script = (
        "import sys; sys.modules['faust'] = sys.modules['aiokafka'] = None\n"
        "import fairlane.cli, fairlane.usage, fairlane.run_accounting, accounting.counting\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_without_faust_the_accounting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "faust", raising=False)
    with pytest.raises(AccountingError, match=r"pip install 'fairlane\[accounting\]'"):
        need_faust()
