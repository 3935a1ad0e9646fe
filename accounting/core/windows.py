"""Windows of time that use is summed over: minute, hour, day and month, in UTC.

What belongs here: epoch milliseconds to the window that holds them, by integers alone.
Minutes, hours and days of UTC all have one length (epoch time knows no leap seconds), so
their start is a floor. Months have several: a day's number is turned into year and month
over the 400 years (146,097 days) after which the calendar repeats, with years that begin
in March, so that the leap day is a year's last.
"""

from typing import NamedTuple

from schemas.usage import Window

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_LENGTH_MS = {Window.MINUTE: MINUTE_MS, Window.HOUR: HOUR_MS, Window.DAY: DAY_MS}

#: Days from 0000-03-01 to 1970-01-01, and of the calendar's period of 400 years.
_EPOCH_DAYS = 719_468
_PERIOD_DAYS = 146_097
_PERIOD_YEARS = 400
_MONTHS = 12
#: Months are counted from March, the first of a year that ends with the leap day.
_MARCH = 3
#: Days before month m of such a year are (153 m + 2) // 5: 31, 30, 31, 30, 31, again.
_FIVE_MONTHS_DAYS = 153


class Bounds(NamedTuple):
    """A window: from `start_ms` (its first millisecond) to `end_ms` (the first after it)."""

    start_ms: int
    end_ms: int


def bounds(window: Window, time_ms: int) -> Bounds:
    """The window of a kind that holds a time; `Window.ALL` begins at 0 and has no end (0)."""
    if window is Window.ALL:
        return Bounds(0, 0)
    if window is Window.MONTH:
        year, month = _year_and_month(time_ms // DAY_MS)
        following = (year + 1, 1) if month == _MONTHS else (year, month + 1)
        return Bounds(_first_day(year, month) * DAY_MS, _first_day(*following) * DAY_MS)
    length = _LENGTH_MS[window]
    start = time_ms - time_ms % length
    return Bounds(start, start + length)


def _year_and_month(day: int) -> tuple[int, int]:
    """Year and month (1..12) of a day counted from 1970-01-01."""
    period, in_period = divmod(day + _EPOCH_DAYS, _PERIOD_DAYS)
    # Takes out the leap days before: one in 1,460 days, none in 36,524, the last of 146,096.
    year = (in_period - in_period // 1_460 + in_period // 36_524 - in_period // 146_096) // 365
    in_year = in_period - (365 * year + year // 4 - year // 100)
    from_march = (5 * in_year + 2) // _FIVE_MONTHS_DAYS
    month = (from_march + _MARCH - 1) % _MONTHS + 1
    return period * _PERIOD_YEARS + year + (month < _MARCH), month


def _first_day(year: int, month: int) -> int:
    """Number of a month's first day, counted from 1970-01-01; the reverse of the above."""
    year -= month < _MARCH
    period, in_period = divmod(year, _PERIOD_YEARS)
    from_march = (month - _MARCH) % _MONTHS
    in_year = (_FIVE_MONTHS_DAYS * from_march + 2) // 5
    days = 365 * in_period + in_period // 4 - in_period // 100 + in_year
    return period * _PERIOD_DAYS + days - _EPOCH_DAYS
