"""Slots of a real process: one daemon thread per slot, started when first needed.

Daemon threads, because an engine that never returns must not keep a process from ending:
whatever still runs then is handed back by the lane's next holder.
"""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from msgspec.structs import astuple, replace

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, failed
from workers.ports import Clock, Completion, Engine

#: An engine's exception as a result's detail: enough to find it, short enough to store.
DETAIL_CHARS_MAX = 500
#: Counts above this are no counts; every reader of the wire holds those below exactly.
COUNT_MAX = 1 << 53


class ThreadSlots:
    """`Slots` over an `Engine`. All methods are called from one thread, the lane's."""

    def __init__(self, engine: Engine, total: int, clock: Clock) -> None:
        """Make room for `total` batches; `clock` measures what an engine does not."""
        self._engine = engine
        self._total = total
        self._clock = clock
        self._threads = 0
        self._running: dict[int, tuple[EngineBatch, set[int]]] = {}
        self._work: SimpleQueue[tuple[int, EngineBatch, set[int]] | None] = SimpleQueue()
        self._done: SimpleQueue[Completion] = SimpleQueue()

    @property
    def total(self) -> int:
        """How many batches run at once."""
        return self._total

    @property
    def free(self) -> int:
        """How many more may be started now."""
        return self._total - len(self._running)

    def start(self, ticket: int, batch: EngineBatch) -> None:
        """Hand a batch to a waiting thread, or to a new one."""
        assert self.free > 0, "the caller asks `free` first"
        cancelled: set[int] = set()
        self._running[ticket] = (batch, cancelled)
        if self._threads < len(self._running):
            self._threads += 1
            Thread(target=self._serve, name=f"slot-{self._threads}", daemon=True).start()
        self._work.put((ticket, batch, cancelled))

    def finished(self) -> list[Completion]:
        """Batches that left their slots since the last call."""
        done: list[Completion] = []
        while True:
            try:
                completion = self._done.get_nowait()
            except Empty:
                return done
            del self._running[completion.ticket]
            done.append(completion)

    def cancel(self, ticket: int, key: int) -> None:
        """Mark a request of a running batch; its engine sees it when it next asks."""
        if ticket in self._running:
            self._running[ticket][1].add(key)

    def close(self) -> None:
        """Mark everything as cancelled and let the threads end when their engines return."""
        for batch, cancelled in self._running.values():
            cancelled.update(request.key for request in batch.requests)
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            ticket, batch, cancelled = work
            outcomes = run_guarded(self._engine.run, batch, cancelled, self._clock)
            self._done.put(Completion(ticket, outcomes))


def _timed(outcome: EngineOutcome, took_ms: int) -> EngineOutcome:
    """Fill the service time in where the engine left it out."""
    if outcome.is_timed or outcome.usage.service_ms:
        return outcome
    return outcome._replace(usage=replace(outcome.usage, service_ms=took_ms))


#: `Engine.run` or `VirtualEngine.answer`.
Run = Callable[[EngineBatch, Callable[[int], bool]], Sequence[EngineOutcome]]


def run_guarded(
    run: Run, batch: EngineBatch, cancelled: set[int], clock: Clock | None = None
) -> tuple[EngineOutcome, ...]:
    """Run a batch; an exception or a wrong number of outcomes fails each of its requests.

    `clock` measures the service time where the engine leaves it out.
    """
    try:
        return _run(run, batch, cancelled, clock)
    except BaseException as error:  # noqa: BLE001 - whatever an engine throws frees its slot
        return (failed(Reason.ENGINE_FAILED, _detail(error)),) * len(batch.requests)


def _run(
    run: Run, batch: EngineBatch, cancelled: set[int], clock: Clock | None
) -> tuple[EngineOutcome, ...]:
    requests = batch.requests
    started_ms = clock.now_ms() if clock else 0
    outcomes = tuple(run(batch, lambda index: requests[index].key in cancelled))
    took_ms = max(0, clock.now_ms() - started_ms) if clock else 0
    if len(outcomes) != len(requests):
        detail = f"the engine gave {len(outcomes)} outcomes for {len(requests)} requests"
        return (failed(Reason.ENGINE_FAILED, detail),) * len(requests)
    sound = [outcome if _is_sound(outcome) else _UNSOUND for outcome in outcomes]
    return tuple(_timed(outcome, took_ms) for outcome in sound)


def _detail(error: BaseException) -> str:
    """Describe an exception, also one that can't describe itself."""
    try:
        return repr(error)[:DETAIL_CHARS_MAX]
    except BaseException:  # noqa: BLE001 - it is an engine's code, too
        return type(error).__name__


_UNSOUND = failed(
    Reason.ENGINE_FAILED,
    "the engine gave no EngineOutcome (an End, bytes, a Usage of natural numbers, a Reason)",
)


_REASONS = frozenset(reason.value for reason in Reason)


def _is_sound(outcome: object) -> bool:
    """Tell whether an outcome can be written: engines are other people's code."""
    if not isinstance(outcome, EngineOutcome) or not isinstance(outcome.end, End):
        return False
    if not isinstance(outcome.output, bytes) or not isinstance(outcome.usage, Usage):
        return False
    if not isinstance(outcome.detail, str) or not isinstance(outcome.reason, str):
        return False
    if outcome.reason not in _REASONS and (outcome.reason or outcome.end is not End.SUCCEEDED):
        return False
    counts = astuple(outcome.usage)
    return all(type(count) is int and 0 <= count < COUNT_MAX for count in counts)
