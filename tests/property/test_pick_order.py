"""The packed order sorts as its parts do; aging is a step of priority for so much waiting."""

from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.core.pick.order import KEY_MASK, arrived_of, deadline_of, key_of, order, priority_of

DAY_MS = 86_400_000
priorities = st.integers(0, 999)
now = st.integers(1_700_000_000_000, 1_700_000_000_000 + 400 * DAY_MS)
arrivals = st.one_of(now, st.integers(0, 5), st.just(2**48 - 1))
deadlines = st.one_of(st.just(0), now, st.just(1), st.just(2**48 - 2))
keys = st.integers(0, KEY_MASK)
request = st.tuples(priorities, deadlines, arrivals, keys)
Request = tuple[int, int, int, int]


def parts(one: Request) -> tuple[int, bool, int, int, int]:
    """Priority, then the deadline, none is the last; then arrival and the place in the log."""
    priority, deadline_ms, arrived_ms, key = one
    return priority, deadline_ms == 0, deadline_ms, arrived_ms, key


@given(st.lists(request, min_size=2, max_size=20))
def test_without_aging_it_sorts_as_its_parts_do(requests: list[Request]) -> None:
    assert sorted(requests, key=lambda one: order(*one)) == sorted(requests, key=parts)


@given(request, st.integers(0, DAY_MS))
def test_its_parts_come_out_as_they_went_in(one: Request, aging_ms: int) -> None:
    priority, deadline_ms, arrived_ms, key = one
    packed = order(priority, deadline_ms, arrived_ms, key, aging_ms)
    assert priority_of(packed, aging_ms) == priority
    assert deadline_of(packed) == deadline_ms
    assert arrived_of(packed) == arrived_ms
    assert key_of(packed) == key


@given(st.lists(request, min_size=2, max_size=20), st.integers(1, DAY_MS), now)
def test_aging_is_what_it_says_at_any_moment(
    requests: list[Request], aging_ms: int, t_ms: int
) -> None:
    """Each `aging_ms` of waiting is worth a step of priority; fractions of it count."""

    def aged(one: Request) -> tuple[Fraction, tuple[int, bool, int, int, int]]:
        return one[0] - Fraction(t_ms - one[2], aging_ms), (0, *parts(one)[1:])

    by_order = sorted(requests, key=lambda one: order(one[0], one[1], one[2], one[3], aging_ms))
    assert by_order == sorted(requests, key=aged)


@given(priorities, priorities, now, st.integers(1, DAY_MS), st.integers(0, DAY_MS), keys, keys)
def test_who_waits_passes_every_priority_in_the_end(
    urgent: int, patient: int, arrived_ms: int, aging_ms: int, early_ms: int, a: int, b: int
) -> None:
    """It never saturates: whatever came first passes whatever comes late enough, and stays."""
    assume(urgent < patient)
    passed_ms = arrived_ms + (patient - urgent) * aging_ms
    old = order(patient, 0, arrived_ms, a, aging_ms)
    assert old < order(urgent, 0, passed_ms + 1, b, aging_ms)
    assert old < order(urgent, 0, passed_ms + 1 + early_ms, b, aging_ms)
    assert old > order(urgent, 0, passed_ms - 1, b, aging_ms)


@given(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70), priorities, keys)
def test_times_that_no_clock_shows_stay_in_their_place(
    deadline_ms: int, arrived_ms: int, priority: int, key: int
) -> None:
    packed = order(priority, deadline_ms, arrived_ms, key)
    assert priority_of(packed) == priority
    assert key_of(packed) == key
    assert arrived_of(packed) == min(max(arrived_ms, 0), 2**48 - 1)
    if deadline_ms < 0:
        assert deadline_of(packed) == 1, "it is over"
    elif deadline_ms >= 2**48 - 1:
        assert deadline_of(packed) == 0, "there is none"
    else:
        assert deadline_of(packed) == deadline_ms
