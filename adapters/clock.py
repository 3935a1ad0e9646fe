"""The wall clock, as an object that services are handed."""

import time


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Epoch time in milliseconds."""
        return time.time_ns() // 1_000_000


#: It goes on while the machine sleeps, where the system has such a clock.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> int:
    """Milliseconds since some moment; nobody sets this clock."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000
