"""The calls that the ingress serves, without serving them."""

from collections.abc import Sequence

from adapters.clock import SystemClock
from adapters.memory import MemoryLog
from adapters.memory_index import MemoryIndex
from producers.app import calls, routes
from producers.ingress import Ingress
from producers.parts import Parts
from schemas.front import Charge, Settlement, Verdict
from schemas.topics import Topics


class _Nobody:
    """Limits that nobody asks."""

    async def charge(self, charge: Charge) -> Verdict:
        raise AssertionError(charge)

    async def refund(self, charge: Charge) -> bool:
        raise AssertionError(charge)

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        raise AssertionError(settlements)

    async def announce(self, name: str) -> int:
        raise AssertionError(name)


def served() -> list[tuple[str, str]]:
    """Method and path of each; the application is built, nothing is started."""
    clock = SystemClock()
    parts = Parts(MemoryLog(clock), Topics("t"), _Nobody(), MemoryIndex(), clock, bytes)
    return calls(routes(Ingress(parts), bytes))
