"""The calls of a batch, side by side; what one of them throws is that request's outcome alone.

What belongs here: threads. What does not: what a call is.
"""

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from schemas.reasons import Reason
from workers.engine import EngineOutcome, failed

#: Requests of one batch that are called at once; more than that only queue at the server.
ABREAST_MAX = 32

log = logging.getLogger(__name__)


def abreast(run_one: Callable[[int], EngineOutcome], count: int) -> list[EngineOutcome]:
    """Run `run_one` for 0..count-1, up to ABREAST_MAX at once.

    The threads are daemons, as those of the slots are: a server that never answers must not
    keep a process from ending.
    """

    def run(index: int) -> EngineOutcome:
        try:
            return run_one(index)
        except BaseException as error:  # noqa: BLE001 - the others of the batch go on
            return broken(error)

    if count == 1:
        return [run(0)]
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, EngineOutcome]] = SimpleQueue()
    for index in range(count):
        todo.put(index)

    def work() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except Empty:
                return
            done.put((index, run(index)))

    for _ in range(min(count, ABREAST_MAX)):
        Thread(target=work, name="upstream-call", daemon=True).start()
    outcomes = dict(done.get() for _ in range(count))
    return [outcomes[index] for index in range(count)]


def broken(error: BaseException) -> EngineOutcome:
    """Say that a request failed by a fault of this engine; the log has the whole of it."""
    log.error("upstream: a request failed by a fault of the engine", exc_info=error)
    return failed(Reason.ENGINE_FAILED, f"the engine failed: {type(error).__name__}")
