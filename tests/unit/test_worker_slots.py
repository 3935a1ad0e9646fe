"""Slots, in threads and on a virtual clock; engines are other people's code."""

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, cast

import pytest

from schemas.records import End, Usage
from tests.support.lanes import ManualClock
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.ports import Completion
from workers.slots import ThreadSlots
from workers.slots_virtual import VirtualSlots

GIVE_UP_S = 10


def batch(number: int, keys: Sequence[int] = (1, 2)) -> EngineBatch:
    requests = tuple(EngineRequest(k, f"id-{k}", "acme", "embed", b"body") for k in keys)
    return EngineBatch(number, requests)


class Gate:
    """An engine that waits until it is opened, and answers what it is told to."""

    def __init__(self, answer: Callable[[EngineBatch, Callable[[int], bool]], Any]) -> None:
        self.open = Event()
        self.left = Event()
        self.answer = answer

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Any:
        assert self.open.wait(GIVE_UP_S)
        self.left.set()
        return self.answer(batch, cancelled)


def upper(batch: EngineBatch, cancelled: Callable[[int], bool]) -> list[EngineOutcome]:
    return [
        EngineOutcome(End.CANCELLED, reason="cancelled")
        if cancelled(index)
        else EngineOutcome(End.SUCCEEDED, request.body.upper(), Usage(service_ms=7))
        for index, request in enumerate(batch.requests)
    ]


def wait_for(slots: ThreadSlots, count: int) -> list[Completion]:
    done: list[Completion] = []
    until = time.monotonic() + GIVE_UP_S
    while len(done) < count and time.monotonic() < until:
        done += slots.finished()
        time.sleep(0.001)
    return done


def test_threads_run_abreast_and_free_their_slots() -> None:
    gate = Gate(upper)
    slots = ThreadSlots(gate, 2, ManualClock())
    slots.start(10, batch(1))
    slots.start(20, batch(2))
    assert (slots.total, slots.free, slots.finished()) == (2, 0, [])
    gate.open.set()
    done = wait_for(slots, 2)
    assert sorted(completion.ticket for completion in done) == [10, 20]
    assert done[0].outcomes[0].output == b"BODY"
    assert slots.free == 2
    slots.start(30, batch(3))
    assert [completion.ticket for completion in wait_for(slots, 1)] == [30]
    assert slots._threads == 2
    slots.close()


def test_a_cancel_reaches_the_request_alone() -> None:
    gate = Gate(upper)
    slots = ThreadSlots(gate, 1, ManualClock())
    slots.start(10, batch(1))
    slots.cancel(10, 2)
    slots.cancel(99, 1)
    gate.open.set()
    (done,) = wait_for(slots, 1)
    assert [outcome.end for outcome in done.outcomes] == [End.SUCCEEDED, End.CANCELLED]
    slots.close()


def test_closing_waits_for_nobody_and_tells_the_engine() -> None:
    gate = Gate(upper)
    slots = ThreadSlots(gate, 1, ManualClock())
    slots.start(10, batch(1))
    slots.close()
    gate.open.set()
    (done,) = wait_for(slots, 1)
    assert {outcome.end for outcome in done.outcomes} == {End.CANCELLED}


def test_service_time_is_measured_where_the_engine_leaves_it_out() -> None:
    clock = ManualClock()

    def slow(batch: EngineBatch, cancelled: Callable[[int], bool]) -> list[EngineOutcome]:
        clock.advance(40)
        return [
            EngineOutcome(End.SUCCEEDED),
            EngineOutcome(End.SUCCEEDED, b"", Usage(service_ms=3)),
            EngineOutcome(End.SUCCEEDED, is_timed=True),
        ]

    gate = Gate(slow)
    gate.open.set()
    slots = ThreadSlots(gate, 1, clock)
    slots.start(10, batch(1, (1, 2, 3)))
    (done,) = wait_for(slots, 1)
    assert [outcome.usage.service_ms for outcome in done.outcomes] == [40, 3, 0]
    slots.close()


def boom(batch: EngineBatch, cancelled: Callable[[int], bool]) -> list[EngineOutcome]:
    raise SystemExit("out of memory")


class MuteError(Exception):
    def __repr__(self) -> str:
        raise ValueError("no words")


def mute(batch: EngineBatch, cancelled: Callable[[int], bool]) -> list[EngineOutcome]:
    raise MuteError


class OddOutcome(EngineOutcome):
    """Its fields can't be read."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(f"no {name}")


@pytest.mark.parametrize(
    ("answer", "ends", "detail"),
    [
        (boom, "ff", "out of memory"),
        (lambda b, c: upper(b, c)[:1], "ff", "1 outcomes for 2 requests"),
        (lambda b, c: None, "ff", "NoneType"),
        (lambda b, c: [*upper(b, c)[:1], "text"], "sf", "no EngineOutcome"),
        (lambda b, c: [EngineOutcome(End.SUCCEEDED, cast("bytes", "text"))] * 2, "ff", "bytes"),
        (lambda b, c: [EngineOutcome(End.FAILED)] * 2, "ff", "no EngineOutcome"),
        (lambda b, c: [EngineOutcome(End.SUCCEEDED, usage=Usage(-1))] * 2, "ff", "natural"),
        (lambda b, c: [EngineOutcome(End.FAILED, reason=cast("str", []))] * 2, "ff", "no Engine"),
        (lambda b, c: [EngineOutcome(End.SUCCEEDED, reason=cast("str", 0))] * 2, "ff", "no Eng"),
        (lambda b, c: [OddOutcome(End.SUCCEEDED)] * 2, "ff", "no "),
        (mute, "ff", "MuteError"),
    ],
)
def test_what_an_engine_does_wrong_fails_its_requests_and_frees_the_slot(
    answer: Callable[..., Any], ends: str, detail: str
) -> None:
    gate = Gate(answer)
    gate.open.set()
    slots = ThreadSlots(gate, 1, ManualClock())
    slots.start(10, batch(1))
    (done,) = wait_for(slots, 1)
    assert "".join(outcome.end.value[0] for outcome in done.outcomes) == ends
    assert detail in done.outcomes[-1].detail
    assert done.outcomes[-1].reason == "engine_failed"
    assert slots.free == 1
    slots.close()


def test_virtual_slots_end_when_the_clock_says_so() -> None:
    clock = ManualClock()
    engine = SimulatedEngine(SimulatedSettings(fixed_ms=100, per_token_us=0))
    slots = VirtualSlots(engine, 2, clock)
    assert slots.next_ms() is None
    slots.start(10, batch(1))
    clock.advance(40)
    slots.start(20, batch(2))
    assert (slots.free, slots.next_ms()) == (0, 1_000_100)
    clock.advance(59)
    assert slots.finished() == []
    clock.advance(1)
    assert [completion.ticket for completion in slots.finished()] == [10]
    assert slots.next_ms() == 1_000_140
    clock.advance(1_000)
    (done,) = slots.finished()
    assert [outcome.end for outcome in done.outcomes] == [End.SUCCEEDED] * 2
    assert slots.free == 2


def test_a_virtual_batch_that_nobody_wants_ends_at_once() -> None:
    clock = ManualClock()
    slots = VirtualSlots(SimulatedEngine(SimulatedSettings(fixed_ms=100)), 1, clock)
    slots.start(10, batch(1))
    slots.cancel(10, 1)
    assert slots.finished() == []
    slots.cancel(10, 2)
    (done,) = slots.finished()
    assert [outcome.end for outcome in done.outcomes] == [End.CANCELLED] * 2
    slots.start(20, batch(2))
    slots.close()
    clock.advance(1_000)
    assert (slots.finished(), slots.free) == ([], 1)
