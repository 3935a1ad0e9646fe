"""The wall clock, as an object that services are handed."""

import time


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Epoch time in milliseconds."""
        return time.time_ns() // 1_000_000
