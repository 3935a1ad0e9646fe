"""Slots of a simulation: a batch ends when the clock says so; no thread, nobody waits."""

from workers.engine import EngineBatch
from workers.ports import Clock, Completion, VirtualEngine
from workers.slots import run_guarded


class VirtualSlots:
    """`Slots` over a `VirtualEngine` and a clock that the simulation moves."""

    def __init__(self, engine: VirtualEngine, total: int, clock: Clock) -> None:
        """Make room for `total` batches."""
        self._engine = engine
        self._total = total
        self._clock = clock
        self._ends_ms: dict[int, int] = {}
        self._running: dict[int, tuple[EngineBatch, set[int]]] = {}

    @property
    def total(self) -> int:
        """How many batches run at once."""
        return self._total

    @property
    def free(self) -> int:
        """How many more may be started now."""
        return self._total - len(self._running)

    def start(self, ticket: int, batch: EngineBatch) -> None:
        """Note when the batch will end."""
        assert self.free > 0, "the caller asks `free` first"
        self._running[ticket] = (batch, set())
        self._ends_ms[ticket] = self._clock.now_ms() + self._engine.service_ms(batch)

    def next_ms(self) -> int | None:
        """When the next batch ends (epoch milliseconds); None when nothing runs."""
        return min(self._ends_ms.values(), default=None)

    def finished(self) -> list[Completion]:
        """Batches whose time has come, the earliest first, ties by ticket."""
        now_ms = self._clock.now_ms()
        due = sorted((end, ticket) for ticket, end in self._ends_ms.items() if end <= now_ms)
        return [self._finish(ticket) for _, ticket in due]

    def cancel(self, ticket: int, key: int) -> None:
        """Mark a request; a batch that nobody wants any more ends now."""
        if ticket not in self._running:
            return
        batch, cancelled = self._running[ticket]
        cancelled.add(key)
        if all(request.key in cancelled for request in batch.requests):
            self._ends_ms[ticket] = min(self._ends_ms[ticket], self._clock.now_ms())

    def close(self) -> None:
        """Forget everything that runs."""
        self._running.clear()
        self._ends_ms.clear()

    def _finish(self, ticket: int) -> Completion:
        batch, cancelled = self._running.pop(ticket)
        del self._ends_ms[ticket]
        return Completion(ticket, run_guarded(self._engine.answer, batch, cancelled))
