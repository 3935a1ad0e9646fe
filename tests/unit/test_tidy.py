"""Garbage that refers to itself is searched for between turns, in idle moments."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fairlane import tidy
from fairlane.tidy import SEARCH_S, Tidy


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


class Turns:
    """Each turn leaves garbage and keeps some objects."""

    def __init__(self) -> None:
        self.kept: list[list[int]] = []
        self.garbage: list[weakref.ref[Node]] = []
        self.now_s = 0.0
        self.is_idle = False

    def turn(self) -> bool:
        self.garbage.append(weakref.ref(Node()))
        self.kept += [[number] for number in range(20)]
        return not self.is_idle

    def left(self) -> int:
        return sum(ref() is not None for ref in self.garbage)


def test_nothing_is_searched_while_turns_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "YOUNG_MAX", 100)
    turns = Turns()
    tidied = Tidy(turns.turn, lambda: turns.now_s)
    assert not gc.isenabled()
    for _ in range(50):
        turns.now_s += SEARCH_S
        assert tidied() is True
    assert turns.left() == 50
    turns.is_idle = True
    assert tidied() is False
    assert turns.left() == 0


def test_idle_moments_are_searched_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "YOUNG_MAX", 0)
    turns = Turns()
    turns.is_idle = True
    tidied = Tidy(turns.turn, lambda: turns.now_s)
    tidied()
    assert turns.left() == 1
    turns.now_s = SEARCH_S
    tidied()
    assert turns.left() == 0


def test_what_piles_up_is_searched_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "YOUNG_MAX", 10)
    monkeypatch.setattr(tidy, "UNSEARCHED_MAX", 1_000)
    turns = Turns()
    tidied = Tidy(turns.turn, lambda: turns.now_s)
    for _ in range(200):
        tidied()
    assert turns.left() < 100
