"""A thread for one call at a time: while it waits for brokers, its owner goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class ThreadAside:
    """Makes calls in a thread of its own, that is started with the first one."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "fairlane-commit")
        self._call: Future[None] | None = None

    def start(self, call: Callable[[], None]) -> None:
        """Begin the call."""
        self._call = self._executor.submit(call)

    def wait(self) -> None:
        """Wait for the call to end, and raise what it raised; nothing when none was begun."""
        call, self._call = self._call, None
        if call is not None:
            call.result()

    def close(self) -> None:
        """End the thread, after its call."""
        self._executor.shutdown()
