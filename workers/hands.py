"""What a lane's holder has in its hands: batches that wait, run, or wait for their commit.

What belongs here: batches and slots. What does not: the log; what is committed the lane says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schemas.reasons import Reason
from schemas.records import Batch, BatchCancel
from workers.core.ending import FRAMING_BYTES, ended_unrun, for_engine, together
from workers.core.progress import OPEN_MAX
from workers.engine import EngineOutcome, failed
from workers.ports import Slots

#: A batch and how each of its requests ended.
Ended = tuple[Batch, tuple[EngineOutcome, ...]]


@dataclass(slots=True)
class Held:
    """A batch at `offset` of the lane. `outcomes` is set once it waits for its commit.

    `unwanted` are keys of cancelled requests, `unrun` the outcomes (by index) of requests
    that no engine sees.
    """

    offset: int
    batch: Batch
    bodies: Sequence[bytes]
    unwanted: set[int] = field(default_factory=set)
    unrun: dict[int, EngineOutcome] = field(default_factory=dict)
    outcomes: tuple[EngineOutcome, ...] | None = None
    has_started: bool = False


class Hands:
    """Held batches by their offset, and the slots they run on."""

    def __init__(self, slots: Slots) -> None:
        """Nothing is held yet."""
        self.slots = slots
        self._held: dict[int, Held] = {}

    @property
    def room(self) -> int:
        """How many more batches may be taken in."""
        return OPEN_MAX - len(self._held)

    @property
    def offsets(self) -> set[int]:
        """Where the held batches stand."""
        return set(self._held)

    @property
    def running(self) -> int:
        """How many batches an engine has."""
        return sum(h.has_started and h.outcomes is None for h in self._held.values())

    def done(self) -> dict[int, Ended]:
        """Batches that wait for their commit, by offset."""
        return {
            offset: (held.batch, held.outcomes)
            for offset, held in self._held.items()
            if held.outcomes is not None
        }

    def first_done(self, bytes_max: int) -> dict[int, Ended]:
        """Those of `done` that fit into `bytes_max` together: the oldest first, one at least."""
        first: dict[int, Ended] = {}
        size = 0
        for offset, ended in sorted(self.done().items()):
            size += sum(len(outcome.output) + FRAMING_BYTES for outcome in ended[1])
            if first and size > bytes_max:
                break
            first[offset] = ended
        return first

    def take(self, held: Held) -> None:
        """Take a new batch in; the caller keeps to `room`."""
        self._held[held.offset] = held

    def cancel(self, cancel: BatchCancel) -> None:
        """Mark a request: it is not started any more, or its engine is told."""
        for held in self._held.values():
            if held.batch.number == cancel.number:
                held.unwanted.add(cancel.key)
                if held.has_started:
                    self.slots.cancel(held.offset, cancel.key)

    def start(self, now_ms: int, advise: Callable[[int], None]) -> bool:
        """Start what waits, in the lane's order; end what needs no engine any more.

        `advise(number)` is called before an engine sees the batch of that number. Returns
        whether anything was started or ended.
        """
        did = False
        waiting = [h for h in self._held.values() if not h.has_started and h.outcomes is None]
        for held in waiting:
            unrun = ended_unrun(held.batch, held.unwanted, now_ms)
            if len(unrun) == len(held.batch.items):
                held.outcomes = together(held.batch, unrun, ())
                did = True
            elif self.slots.free > 0:
                advise(held.batch.number)
                held.unrun, held.has_started = unrun, True
                self.slots.start(held.offset, for_engine(held.batch, held.bodies, unrun))
                held.bodies = ()
                did = True
        return did

    def collect(self) -> tuple[int, int]:
        """Take what left the slots; returns how many of ours, and how many nobody wants."""
        ours = unwanted = 0
        for completion in self.slots.finished():
            held = self._held.get(completion.ticket)
            if held is None:  # the log said that it ended elsewhere
                unwanted += 1
            else:
                held.outcomes = together(held.batch, held.unrun, completion.outcomes)
                ours += 1
        return ours, unwanted

    def fail_largest(self, detail: str) -> None:
        """Replace the largest output that waits for its commit by a failure."""
        waiting = [
            (len(outcome.output), held, index)
            for held in self._held.values()
            for index, outcome in enumerate(held.outcomes or ())
            if outcome.output
        ]
        if not waiting:
            return
        _, held, index = max(waiting, key=lambda found: found[0])
        assert held.outcomes is not None, "its outcomes were just listed"
        usage = held.outcomes[index].usage
        outcome = failed(Reason.ENGINE_FAILED, detail)._replace(usage=usage)
        held.outcomes = (*held.outcomes[:index], outcome, *held.outcomes[index + 1 :])

    def forget(self, offsets: Sequence[int]) -> None:
        """Let go of what is committed."""
        for offset in offsets:
            del self._held[offset]

    def forget_unstarted(self) -> None:
        """Let go of what no engine has seen."""
        self._held = {offset: held for offset, held in self._held.items() if held.has_started}

    def forget_ended(self, has_ended: Callable[[Held], bool]) -> None:
        """Let go of what the log says has ended; engines that still run it are told."""
        for offset, held in list(self._held.items()):
            if has_ended(held):
                for item in held.batch.items:
                    self.slots.cancel(offset, item.key)
                del self._held[offset]

    def close(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self.slots.close()
