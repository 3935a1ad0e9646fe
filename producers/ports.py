"""What the ingress needs from outside, besides the log (`schemas.log`).

`fairlane` fills these: `adapters.redis_limits` for `Limits`, `adapters.redis` for `Index`,
`adapters.clock` for the clock, `secrets.token_bytes` for chance.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from schemas.front import (
    Acceptance,
    Charge,
    Claim,
    Claimed,
    Ending,
    Entry,
    Listed,
    RequestName,
    Settlement,
    Verdict,
    Window,
)

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

    async def heads(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """The same without outputs."""

    async def listed(self, window: Window) -> list[Listed]:
        """A piece of a tenant's list, newest first."""

    async def was_listed(self, name: RequestName) -> bool:
        """Whether a request that has no entry any more had one."""


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


class Claims(Protocol):
    """Which POSTs with an Idempotency-Key are under way, at any ingress.

    Every call raises StoreDownError.
    """

    async def claim(self, claim: Claim) -> Claimed:
        """Begin a POST, or learn why not: known, under way elsewhere, another body's key."""

    async def release(self, claim: Claim) -> None:
        """It ended with nothing in the log: the key is free again, for any body."""

    async def hold(self, claim: Claim) -> None:
        """It ended in doubt: the key is this body's, and anybody may go on with it at once."""


class Offload(Protocol):
    """Runs a call of the log that may block: `asyncio.to_thread`, or in place in tests."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Run `call` and return its answer."""


class BacklogReader(Protocol):
    """The board on which schedulers publish what waits (`schemas.backlog`)."""

    async def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """What stands under each name, None where nothing does; raises StoreDownError."""
