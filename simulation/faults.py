"""What goes wrong, when: faults at the steps of processes, drawn from the seed.

`CommitChaos` strikes at commits alone: before one nothing of a cycle exists, after it all of
it does. `Chaos` strikes at every step of every process (see `Call`): it counts them down, the
rare ones quicker than the frequent ones, and where the count ends something happens. A kill is
an exception that no service may catch (`Killed`), so that the process ends exactly there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from adapters.memory import CommitFault
from schemas.log import UnavailableError
from simulation.process import Process
from simulation.process_log import Call, Killed


@dataclass(slots=True)
class CommitChaos:
    """Faults with probability `chance_percent` per commit, at most `budget` of them."""

    random: Random
    chance_percent: int = 5
    budget: int = 50
    history: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, transactional_id: str) -> CommitFault | None:
        """Decide about one commit; raises Killed."""
        if self.budget <= 0 or self.random.randrange(100) >= self.chance_percent:
            return None
        self.budget -= 1
        fault = self.random.choice([*CommitFault, "killed"])
        self.history.append((transactional_id, str(fault)))
        if isinstance(fault, CommitFault):
            return fault
        raise Killed(transactional_id)


class Fault(Enum):
    """What may happen at a step."""

    KILLED = "killed"
    SUSPENDED = "suspended"  # the others go on meanwhile
    UNAVAILABLE = "the log does not answer"
    ABORTED = "commit aborted"
    IN_DOUBT_LANDED = "commit in doubt, landed"
    IN_DOUBT_LOST = "commit in doubt, open"


#: Steps at which the log may not answer; at the others it is a commit's business.
_UNANSWERED = frozenset(
    {Call.INIT, Call.SEND, Call.SEND_OFFSETS, Call.PUBLISH, Call.POLL, Call.LOOK, Call.GROUP}
)
_COMMIT = {
    Fault.ABORTED: CommitFault.ABORTED,
    Fault.IN_DOUBT_LANDED: CommitFault.IN_DOUBT_LANDED,
    Fault.IN_DOUBT_LOST: CommitFault.IN_DOUBT_LOST,
}
#: How far a step counts down: polls are most of all steps, and the least interesting.
_WEIGHTS = dict.fromkeys(Call, 12) | {Call.POLL: 1, Call.GROUP: 1, Call.LOOK: 4, Call.COMMIT: 24}
#: Longest suspension: above a group's session timeout, so that others take over.
SUSPENDED_MS_MAX = 8_000


class Strike(NamedTuple):
    """One fault that happened."""

    at_ms: int
    process: str
    call: Call
    fault: Fault


class Chaos:
    """Draws faults for steps; `mean` is the count between two, 0 for none at all.

    `suspend(process, for_ms)` lets the others go on; at most `budget` faults in all.
    """

    def __init__(
        self,
        random: Random,
        mean: int,
        kinds: tuple[Fault, ...],
        suspend: Callable[[Process, int], None],
        now_ms: Callable[[], int],
        budget: int = 30,
    ) -> None:
        self.is_on = bool(mean and kinds)
        self.history: list[Strike] = []
        self.tell: Callable[[str], None] = lambda _what: None
        self._random = random
        self._mean = mean
        self._kinds = frozenset(kinds)
        self._suspend = suspend
        self._now_ms = now_ms
        self._budget = budget
        self._left = self._draw()

    def _draw(self) -> int:
        return 1 + self._random.randrange(2 * self._mean) if self._mean else 0

    def at(self, process: Process, call: Call) -> CommitFault | None:
        """One step of a process. Raises Killed or UnavailableError."""
        if not self.is_on:
            return None
        self._left -= _WEIGHTS[call]
        if self._left > 0:
            return None
        self._left = self._draw()
        possible = [fault for fault in Fault if fault in self._kinds and _can_be(fault, call)]
        if not possible:
            return None
        fault = self._random.choice(possible)
        self.history.append(Strike(self._now_ms(), process.name, call, fault))
        self.tell(f"{process.name}, at {call.value}: {fault.value}")
        self._budget -= 1
        self.is_on = self._budget > 0
        if fault is Fault.KILLED:
            raise Killed(process.name)
        if fault is Fault.UNAVAILABLE:
            raise UnavailableError(f"{process.name}: the log does not answer (injected fault)")
        if fault is Fault.SUSPENDED:
            self._suspend(process, self._random.choice((100, 1_000, 3_000, SUSPENDED_MS_MAX)))
            return None
        return _COMMIT[fault]


def _can_be(fault: Fault, call: Call) -> bool:
    if fault in _COMMIT:
        return call is Call.COMMIT
    return fault is not Fault.UNAVAILABLE or call in _UNANSWERED
