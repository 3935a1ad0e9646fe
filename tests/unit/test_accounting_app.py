"""How the accounting's application ends, and what its table takes in; without a broker."""

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from msgspec.structs import replace

from accounting import app as application
from accounting.app import Accounting, AccountingSettings, Ending
from accounting.core.sums import slot_of
from accounting.table import SumTable
from adapters.clock import SystemClock
from fairlane.run import NoMeter
from schemas.codec import DecodeError, encode
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
    accounting = Accounting(settings, SystemClock(), NoMeter(), notes)
    told: list[Ending] = []
    assert accounting.run(threading.Event(), lanes_now, told.append) is Ending.FAILED
    assert told == [Ending.FAILED]
    assert notes.errors == [("crashed", "ZeroDivisionError('no lanes')")]


@pytest.fixture
def table() -> SumTable:
    app = faust.App("t", store="memory://", broker="kafka://127.0.0.1:1")
    return SumTable(app, name="usage-gpu", partitions=2)


def event(key: bytes, value: bytes | None) -> Any:
    return SimpleNamespace(message=SimpleNamespace(key=key, value=value))


def test_recovery_takes_in_newer_sums_only_and_passes_over_what_is_none(table: SumTable) -> None:
    older = replace(SUM, upto=3)
    lost = UsageLost(VERSION, "gpu", 1, 3, 8)
    table.apply_changelog_batch(
        [
            event(KEY, encode(SUM)),
            event(KEY, encode(older)),
            event(KEY, b"\xc1"),
            event(b"another/1", encode(SUM)),
            event(b"lost/3/gpu/1", encode(lost)),
        ]
    )
    assert dict(table.shelf) == {KEY: encode(SUM)}
    assert table.shelf.starts(Window.DAY, 1) == {SUM.start_ms: [KEY]}
    table.apply_changelog_batch([event(KEY, None), event(b"unknown", None)])
    assert not table.shelf


def test_a_sum_of_a_later_release_is_not_begun_anew(table: SumTable) -> None:
    found: list[DecodeError] = []
    table.on_unknown = found.append
    table.apply_changelog_batch([event(KEY, encode(replace(SUM, v=VERSION + 1)))])
    assert not table.shelf
    assert "version 2" in str(found[0])
