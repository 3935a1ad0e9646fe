"""A look for transactions without an end: what is one, and what only looks like it."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from adapters.memory import MemoryLog, MemoryReader
from schemas.log import Bounds, Partition, TopicSpec
from schemas.unended import unended
from tests.support.lanes import ManualClock

PLACE: Partition = ("decisions", 0)


@pytest.fixture
def log() -> MemoryLog:
    found = MemoryLog(ManualClock())
    found.ensure_topics([TopicSpec("decisions", 1, {})])
    return found


def after_each_look(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
    """Something happens after each two questions for an end."""
    real, asked = MemoryReader.bounds, count(1)

    def bounds(reader: MemoryReader, partition: Partition) -> Bounds:
        found = real(reader, partition)
        if next(asked) % 2 == 0:
            call()
        return found

    monkeypatch.setattr(MemoryReader, "bounds", bounds)


def open_transaction(log: MemoryLog) -> Any:
    producer = log.transactional("id")
    producer.init()
    producer.begin()
    producer.send(*PLACE, b"x")
    return producer


def test_what_nobody_ends_is_told_with_its_place(log: MemoryLog) -> None:
    log.producer().send(*PLACE, b"before")
    assert unended(log, PLACE) is None
    producer = open_transaction(log)
    told = unended(log, PLACE)
    assert told is not None
    assert "--topic decisions --partition 0 --start-offset 1" in told
    producer.abort()
    assert unended(log, PLACE) is None


def test_another_owner_in_the_midst_of_transactions_is_no_lost_end(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is open at every look, and never the same."""
    owner = open_transaction(log)

    def go_on() -> None:
        owner.commit()
        owner.begin()
        owner.send(*PLACE, b"x")

    after_each_look(monkeypatch, go_on)
    assert unended(log, PLACE) is None
