"""What goes wrong, when: faults at commits, drawn from the seed.

A commit is where it matters: before it nothing of a cycle exists, after it all of it does.
`CommitChaos` is asked at every commit of every process and answers with what shall happen
there; a kill is an exception that no service may catch (`Killed`), so the world replaces
the process exactly there, with its transaction open.
"""

from dataclasses import dataclass, field
from random import Random

from adapters.memory import CommitFault


class Killed(BaseException):
    """The process is gone. A BaseException, so that no handler of a service mends it."""


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
