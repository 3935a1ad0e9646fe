"""What is given back of a charge, and what is not: where it was charged, and who counts on it."""

import asyncio
from collections.abc import Sequence

from producers.core.local import LocalLimits
from producers.limiting import PAUSE_MS, LimitKeeper
from schemas.front import Charge, Settlement, StoreDownError, Verdict
from schemas.policy import Allowance
from tests.support.door import Clock


class Shared:
    """Shared limits, counted in this process; `is_up` and `answers` are the test's to set."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._counters = clock, LocalLimits()
        self.is_up = self.answers = True

    def _here(self) -> int:
        if not self.is_up:
            raise StoreDownError("Redis: gone")
        return self._clock.now_ms()

    def _late(self) -> None:
        if not self.answers:
            raise StoreDownError("Redis: no answer")

    async def charge(self, charge: Charge) -> Verdict:
        verdict = self._counters.charge(charge, self._here())
        self._late()
        return verdict

    async def refund(self, charge: Charge) -> bool:
        return self._counters.refund(charge, self._here())

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        return sum(self._counters.settle(one, self._here()) for one in settlements)

    async def announce(self, _: str, /) -> int:
        self._here()
        self._late()
        return 1

    async def used(self) -> int:
        """Requests that are charged, found by one that is refused."""
        probe = Charge("acme", "chat", "probe", 1_000, 0, Allowance(999))
        return self._counters.charge(probe, self._clock.now_ms()).states[0].used


def charge(name: str, limit: int = 10) -> Charge:
    return Charge("acme", "chat", name, 1, 0, Allowance(limit))


async def admitted(keeper: LimitKeeper, one: Charge) -> Verdict:
    verdict = await keeper.charge(one)
    assert verdict is not None
    assert verdict.is_admitted
    return verdict


def test_a_charge_is_given_back_where_it_was_charged_and_nowhere_else() -> None:
    async def scenario() -> None:
        clock = Clock()
        shared = Shared(clock)
        keeper = LimitKeeper(shared, clock)
        first = await admitted(keeper, charge("a"))  # its publish is in doubt
        shared.is_up = False
        await keeper.charge(charge("b"))
        second = await admitted(keeper, charge("a"))
        clock.value_ms += PAUSE_MS
        shared.is_up = True
        await keeper.turn()
        assert (first.is_local, second.is_local, keeper.is_down) == (False, True, False)
        await keeper.refund(charge("a"), second)
        assert await shared.used() == 1
        await keeper.refund(charge("a"), first)
        assert await shared.used() == 0

    asyncio.run(scenario())
