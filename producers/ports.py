"""What the ingress needs from outside, besides the log (`schemas.log`).

`fairlane` fills these: `adapters.redis_limits` for `Limits`, `adapters.redis` for `Index`,
`adapters.clock` for the clock, `secrets.token_bytes` for chance.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from schemas.front import Acceptance, Charge, Ending, Entry, RequestName, Settlement, Verdict

T = TypeVar("T")

#: Source of identity: so many random bytes (`secrets.token_bytes`; seeded in tests).
RandomBytes = Callable[[int], bytes]


class Clock(Protocol):
    """The time."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""


class Limits(Protocol):
    """Shared counters of what tenants took. Every call raises StoreDownError."""

    async def charge(self, charge: Charge) -> Verdict:
        """Take the charge or nothing; when it raises, it may have been taken."""

    async def refund(self, charge: Charge) -> bool:
        """Give a charge back, once; returns whether there was anything to give back."""

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        """Put true tokens in the place of estimates, each once; returns how many were."""

    async def announce(self, name: str, /) -> int:
        """Say that an ingress lives; returns how many do."""


class Index(Protocol):
    """Shared index of requests by tenant and id. Every call raises StoreDownError."""

    async def generation(self) -> str:
        """Name of what the store holds; another one once the store has lost everything."""

    async def accept(self, name: RequestName, acceptance: Acceptance) -> None:
        """Note where an accepted request stands; the first place stays."""

    async def finish(self, endings: Sequence[Ending]) -> None:
        """Write terminal outcomes; the first one of a request stays."""

    async def lookup(self, name: RequestName) -> Entry | None:
        """What is known of a request; None when nothing is."""

    async def lookup_all(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """Look many up in one go, answers in their order."""


class Meter(Protocol):
    """Numbers for people: names and labels come from bounded vocabularies."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class NoMeter:
    """Counts nothing: nobody asked for metrics."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Do nothing."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Do nothing."""


class Offload(Protocol):
    """Runs a call of the log that may block: `asyncio.to_thread`, or in place in tests."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Run `call` and return its answer."""
