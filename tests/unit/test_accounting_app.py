"""How the accounting's application ends, and what its table takes in; without a broker."""

import asyncio
import threading
from collections.abc import Mapping

import faust
import pytest
from msgspec.structs import replace

from accounting import app as application
from accounting.app import Accounting, AccountingSettings, Ending
from accounting.core.sums import slot_of
from accounting.table import SumTable
from adapters.clock import SystemClock
from adapters.memory import MemoryLog
from fairlane.run import NoMeter
from schemas.codec import DecodeError, encode
from schemas.log import Record
from schemas.records import VERSION
from schemas.topics import Topics
from schemas.usage import UsageLost, UsageSum, Used, Window

SUM = UsageSum(VERSION, "acme", "gpu", Window.DAY, 86_400_000, "gpu", 1, 5, Used(1))
KEY = slot_of(SUM).key


class Notes:
    """Remembers events and their detail."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, object]] = []

    def info(self, event: str, **facts: object) -> None:
        """Nothing of interest."""

    def warning(self, event: str, **facts: object) -> None:
        """Nothing of interest."""

    def error(self, event: str, **facts: object) -> None:
        self.errors.append((event, facts["detail"]))


def test_a_watch_that_dies_is_a_failure_and_no_change_of_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(_: faust.App) -> None:
        await asyncio.Event().wait()

    def lanes_now() -> Mapping[str, int]:
        raise ZeroDivisionError("no lanes")

    monkeypatch.setattr(application._App, "start", start)
    notes = Notes()
    settings = AccountingSettings(
        kafka="127.0.0.1:1", topics=Topics("t"), lanes={"gpu": 2}, buckets=1
    )
    accounting = Accounting(settings, MemoryLog(SystemClock()), SystemClock(), NoMeter(), notes)
    told: list[Ending] = []
    assert accounting.run(threading.Event(), lanes_now, told.append) is Ending.FAILED
    assert told == [Ending.FAILED]
    assert notes.errors == [("crashed", "ZeroDivisionError('no lanes')")]


@pytest.fixture
def table() -> SumTable:
    app = faust.App("t", store="memory://", broker="kafka://127.0.0.1:1")
    return SumTable(app, name="usage-gpu", partitions=2)


def stored(key: bytes, value: bytes | None) -> Record:
    return Record("t.usage.gpu", 1, 0, 0, key, value or b"", ())


def test_newer_sums_only_are_taken_in_and_what_is_none_is_passed_over(table: SumTable) -> None:
    older = replace(SUM, upto=3)
    lost = UsageLost(VERSION, "gpu", 1, 3, 8)
    for record in (
        stored(KEY, encode(SUM)),
        stored(KEY, encode(older)),
        stored(KEY, b"\xc1"),
        stored(b"another/1", encode(SUM)),
        stored(b"lost/3/gpu/1", encode(lost)),
    ):
        table.take_in(record)
    assert dict(table.shelf) == {KEY: encode(SUM)}
    assert table.shelf.starts(Window.DAY, 1) == {SUM.start_ms: [KEY]}
    table.take_in(stored(KEY, None))
    table.take_in(stored(b"unknown", None))
    assert not table.shelf


def test_a_sum_of_a_later_release_is_not_begun_anew(table: SumTable) -> None:
    with pytest.raises(DecodeError, match="version 2"):
        table.take_in(stored(KEY, encode(replace(SUM, v=VERSION + 1))))
    assert not table.shelf
