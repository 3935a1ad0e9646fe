"""Windows by integers against the standard library's calendar."""

from hypothesis import example, given
from hypothesis import strategies as st

from accounting.core.windows import bounds
from schemas.usage import Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, window_start_ms

#: Years 1970 to 9000: beyond, the oracle ends.
TIMES = st.integers(0, 221_845_392_000_000)
KINDS = [window for window in Window if window is not Window.ALL]


@given(TIMES, st.sampled_from(KINDS))
@example(0, Window.MONTH)
@example(951_782_399_999, Window.MONTH)  # 2000-02-28T23:59:59.999
@example(951_868_800_000, Window.MONTH)  # 2000-03-01
@example(4_107_542_399_999, Window.MONTH)  # 2100-02-28T23:59:59.999, no leap year
@example(BEFORE_MIDNIGHT_MS, Window.MONTH)
def test_a_window_begins_where_the_calendar_says(time_ms: int, window: Window) -> None:
    found = bounds(window, time_ms)
    assert found.start_ms == window_start_ms(window, time_ms)
    assert found.start_ms <= time_ms < found.end_ms


@given(TIMES, st.sampled_from(KINDS))
def test_windows_follow_each_other_without_gap_or_overlap(time_ms: int, window: Window) -> None:
    found = bounds(window, time_ms)
    assert bounds(window, found.end_ms).start_ms == found.end_ms
    assert bounds(window, found.end_ms - 1) == found


@given(TIMES)
def test_all_time_is_one_window(time_ms: int) -> None:
    assert bounds(Window.ALL, time_ms) == (0, 0)
