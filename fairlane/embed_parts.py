"""What a run of `fairlane embed` is told, what it works with, and what it tells."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from fairlane.client import AsyncClient


class StopRunError(Exception):
    """The run can't go on; what is left is done by running it again."""


class Wishes(NamedTuple):
    """What was asked for. `rows_per_request` 0: as many as fit well."""

    endpoint: str
    outstanding: int
    rows_per_request: int = 0
    tier: str | None = None
    priority: int | None = None
    prune: bool = False


class Doors(Protocol):
    """Ways into a deployment, one a tenant."""

    @property
    def where(self) -> str:
        """What to call the deployment."""

    def probe(self, tenants: Iterable[str]) -> AsyncClient:
        """A client of the first of the tenants that has one. Raises FairlaneError: none has."""

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None: `why_not` tells why there is none."""

    def why_not(self, tenant: str) -> tuple[str, str]:
        """Reason and detail why a tenant has no client."""

    async def failed(self) -> None:
        """Return never, unless the deployment behind can't go on: raises FairlaneError."""


class Show(Protocol):
    """Who is told how far it is."""

    def begin(self, total: int) -> None:
        """Reading begins; there are about so many rows."""

    def rows(self, done: int, failed: int, embedded: int, waits_for: str) -> None:
        """So many rows are done: of them failed, of them embedded by this call.

        Called at least every second; `waits_for` is what holds the work up, as far as known.
        """

    def say(self, text: str) -> None:
        """Something to know."""


class Tally:
    """What became of the rows of this call; `cut` texts were longer than the model reads."""

    def __init__(self) -> None:
        self.embedded = self.unchanged = self.failed = self.pruned = self.cut = 0

    @property
    def done(self) -> int:
        """Rows that need nothing more."""
        return self.embedded + self.unchanged + self.failed
