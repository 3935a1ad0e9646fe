"""Ended ids: remembered for an hour, so many at the most, the oldest forgotten first."""

import pytest

from scheduler.core import recent
from scheduler.core.recent import RECENT_MS, Recent

pytestmark = pytest.mark.unit


def test_an_id_is_forgotten_when_it_is_older_than_an_hour() -> None:
    ids = Recent()
    ids.add("first", 1_000)
    ids.add("second", 1_001)
    ids.forget(1_000 + RECENT_MS)
    assert list(ids) == ["first", "second"]
    ids.forget(1_001 + RECENT_MS)
    assert list(ids) == ["second"]
    assert "first" not in ids
    assert "second" in ids


def test_too_many_push_the_oldest_out_also_of_those_that_ended_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "RECENT_MAX", 3)
    ids = Recent()
    for name in "ab":
        ids.add(name, 1)
    for name in "cdef":
        ids.add(name, 2)
    ids.forget(2)
    assert dict(ids.items()) == {"d": 2, "e": 2, "f": 2}
    assert len(ids) == 3
    assert ids.known == set(ids)


def test_what_is_dumped_by_time_is_the_same_when_it_is_loaded() -> None:
    ids = Recent()
    for at, name in enumerate("abcdef"):
        ids.add(name, at // 4)
    loaded = Recent(ids.by_time())
    assert list(loaded.items()) == list(ids.items())
    assert ids.by_time() == [(0, ["a", "b", "c", "d"]), (1, ["e", "f"])]
