"""No client, however greedy, gets more than its limit in any 60 seconds.

The oracle is a plain list of (time, cost) of what was admitted; time is virtual. The control
is the same count with one counter less, which a greedy client does get past.
"""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import producers.core.local as local_limits
from schemas.front import Admission
from tests.support.limits import START_MS, Counter, with_local, with_script

WINDOW_MS = 60_000
LIMIT = 20

Taken = list[tuple[int, int]]

#: Pauses between calls: greedy bursts, edges of counters, and long silences.
PAUSES = st.one_of(
    st.just(0),
    st.integers(0, 200),
    st.sampled_from([4_999, 5_000, 5_001, 54_999, 55_000, 59_999, 60_000, 65_000, 70_000]),
    st.integers(0, 130_000),
)
CALLS = st.lists(st.tuples(PAUSES, st.integers(1, LIMIT)), max_size=60)


def worst(taken: Taken) -> int:
    """Most cost within any 60 s: such a window may begin at an admission."""
    return max(
        (
            sum(cost for time_ms, cost in taken if start_ms <= time_ms < start_ms + WINDOW_MS)
            for start_ms, _ in taken
        ),
        default=0,
    )


def playing(calls: list[tuple[int, int]]) -> Callable[[Counter], Awaitable[Taken]]:
    async def scenario(counter: Counter) -> Taken:
        now_ms, taken = START_MS, list[tuple[int, int]]()
        for pause_ms, cost in calls:
            now_ms += pause_ms
            verdict = await counter.take(now_ms, cost, LIMIT)
            if verdict.is_admitted:
                taken.append((now_ms, cost))
            else:
                assert verdict.admission is Admission.REFUSED
                assert 0 < verdict.retry_ms <= 65_000
        return taken

    return scenario


@settings(max_examples=60)
@given(CALLS)
def test_the_script_never_admits_more_than_the_limit_in_any_minute(
    calls: list[tuple[int, int]],
) -> None:
    taken = with_script(playing(calls))
    assert worst(taken) <= LIMIT
    # The twin for the time without Redis decides the same.
    assert with_local(playing(calls)) == taken


@settings(max_examples=25)
@given(st.integers(0, 4_999), st.integers(1, 3))
def test_who_comes_back_at_the_told_time_is_admitted(phase_ms: int, cost: int) -> None:
    async def scenario(counter: Counter) -> None:
        now_ms = START_MS + phase_ms
        for _ in range(60):
            verdict = await counter.take(now_ms, cost, 10)
            if not verdict.is_admitted:
                early = await counter.take(now_ms + verdict.retry_ms - 1, cost, 10)
                assert not early.is_admitted
                now_ms += verdict.retry_ms
                assert (await counter.take(now_ms, cost, 10)).is_admitted
            now_ms += 700

    with_script(scenario)


def greedy(counter: Counter) -> Awaitable[Taken]:
    """Take all there is at the end of a counter, then again as soon as anything is admitted."""
    edge_ms = (START_MS // 5_000 + 1) * 5_000
    times = [edge_ms + 4_999, *(edge_ms + 5_000 * k for k in range(1, 14))]

    async def run() -> Taken:
        taken: Taken = []
        for now_ms in times:
            for _ in range(LIMIT):
                if (await counter.take(now_ms, 1, LIMIT)).is_admitted:
                    taken.append((now_ms, 1))
        return taken

    return run()


def test_a_greedy_client_gets_the_limit_and_with_one_counter_less_it_gets_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert worst(with_script(greedy)) == LIMIT
    monkeypatch.setattr("adapters.redis_limits.SLOTS", 12)
    monkeypatch.setattr(local_limits, "SLOTS", 12)
    assert worst(with_script(greedy)) == 2 * LIMIT
    assert worst(with_local(greedy)) == 2 * LIMIT
