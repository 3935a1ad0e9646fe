"""One id charged again, dearer or cheaper: script and twin do what a plain list would.

The oracle keeps each amount that was taken, with its time, and finds the wait by asking again
for every counter's edge to come.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.front import Admission, Verdict
from tests.support.limits import START_MS, Counter, with_local, with_script

EDGE_MS = 5_000
WINDOW = 13

Call = tuple[int, str, int, int]  # pause, id, cost, limit


class Taken(NamedTuple):
    """An amount that was taken for an id."""

    time_ms: int
    name: str
    amount: int


class Plain:
    """What was taken, as a list of it."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []

    def counted(self, now_ms: int) -> list[Taken]:
        edge = now_ms - now_ms % EDGE_MS - (WINDOW - 1) * EDGE_MS
        return [one for one in self.taken if one.time_ms >= edge]

    def missing(self, name: str, cost: int, now_ms: int) -> int:
        """What is to be paid yet: an id is known until its last part counts no more."""
        own = [one for one in self.taken if one.name == name]
        if not own or own[-1] not in self.counted(now_ms):
            return cost
        known, total = 0, 0
        for place, one in enumerate(own):  # forgotten in between, it began anew
            if place and own[place - 1] not in self.counted(one.time_ms):
                total = 0
            total += one.amount
            known = total
        return cost - known

    def has_room(self, name: str, cost: int, limit: int, now_ms: int) -> bool:
        used = sum(one.amount for one in self.counted(now_ms))
        return used + self.missing(name, cost, now_ms) <= limit

    def charge(self, name: str, cost: int, limit: int, now_ms: int) -> Verdict:
        missing = self.missing(name, cost, now_ms)
        admission, wait_ms = Admission.CHARGED, 0
        if missing <= 0:
            admission = Admission.REPEATED
        elif cost > limit:
            admission = Admission.NEVER
        elif not self.has_room(name, cost, limit, now_ms):
            admission = Admission.REFUSED
            wait_ms = EDGE_MS - now_ms % EDGE_MS
            while not self.has_room(name, cost, limit, now_ms + wait_ms):
                wait_ms += EDGE_MS
        else:
            self.taken.append(Taken(now_ms, name, missing))
        used = sum(one.amount for one in self.counted(now_ms))
        return Verdict(admission, limit, used, max(0, limit - used), wait_ms)


def playing(calls: list[Call]) -> Callable[[Counter], Awaitable[list[Verdict]]]:
    async def scenario(counter: Counter) -> list[Verdict]:
        now_ms, verdicts = START_MS, list[Verdict]()
        for pause_ms, name, cost, limit in calls:
            now_ms += pause_ms
            verdicts.append(await counter.take(now_ms, cost, limit, charge_id=name))
        return verdicts

    return scenario


def expected(calls: list[Call]) -> list[Verdict]:
    plain, now_ms, verdicts = Plain(), START_MS, list[Verdict]()
    for pause_ms, name, cost, limit in calls:
        now_ms += pause_ms
        verdicts.append(plain.charge(name, cost, limit, now_ms))
    return verdicts


CALLS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 4_000, 5_000, 20_000, 59_000, 65_000]),
        st.sampled_from("abcd"),
        st.integers(1, 12),
        st.sampled_from([0, 6, 12, 12, 20]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(CALLS)
@example([(0, "a", 1, 12), (0, "a", 12, 12), (0, "a", 12, 12), (0, "b", 1, 12)])
@example([(0, "a", 4, 12), (0, "a", 4, 0), (0, "a", 2, 3), (0, "a", 5, 4)])
@example([(0, "a", 4, 10), (20_000, "b", 6, 10), (0, "a", 8, 10), (45_000, "a", 8, 10)])
@example([(0, "a", 4, 10), (60_000, "a", 6, 10), (5_000, "a", 6, 10), (59_000, "a", 6, 10)])
def test_script_and_twin_charge_as_the_list_does(calls: list[Call]) -> None:
    verdicts = expected(calls)
    assert with_script(playing(calls)) == verdicts
    assert with_local(playing(calls)) == verdicts


def test_paid_for_little_is_not_taken_for_much() -> None:
    async def scenario(counter: Counter) -> None:
        one = await counter.take(START_MS, 1, 3_000, charge_id="k")
        many = await counter.take(START_MS, 2_048, 3_000, charge_id="k")
        assert (one.admission, one.used) == (Admission.CHARGED, 1)
        assert (many.admission, many.used) == (Admission.CHARGED, 2_048)
        again = await counter.take(START_MS, 2_048, 3_000, charge_id="k")
        fewer = await counter.take(START_MS, 1, 3_000, charge_id="k")
        assert (again.admission, again.used) == (Admission.REPEATED, 2_048)
        assert (fewer.admission, fewer.used) == (Admission.REPEATED, 2_048)

    with_script(scenario)
    with_local(scenario)
