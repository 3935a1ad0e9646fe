"""An event loop whose time jumps to the next timer when nothing else is to be done.

What waits for hours takes no time, and how long it waited is exact. For code that does
nothing but wait: no sockets, no threads.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type, unused-ignore]
    """A selector that never blocks: it moves the loop's clock instead."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everybody waits, and nothing will ever happen"
            self.loop.now_s += max(0.0, timeout)
        return list(events)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module; `now_s` is its time."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now_s = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario)
