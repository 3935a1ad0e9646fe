"""What is given back of a charge, and what is not: where it was charged, and who counts on it."""

import asyncio
from collections.abc import Sequence

import pytest

from producers.core.local import LocalLimits
from producers.limiting import PAUSE_MS, LimitKeeper, WhenDown
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

    def lose(self) -> None:
        """Start anew, with nothing counted."""
        self._counters = LocalLimits()

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


@pytest.mark.parametrize("when_down", [WhenDown.CLOSED, WhenDown.DEGRADED])
@pytest.mark.parametrize(("is_first", "stays"), [(True, 0), (False, 1)])
def test_who_is_refused_because_redis_answered_too_late_does_not_pay(
    when_down: WhenDown, *, is_first: bool, stays: int
) -> None:
    """Unless an earlier try of the request may have paid, and be in the log."""

    async def scenario() -> None:
        clock = Clock()
        shared = Shared(clock)
        keeper = LimitKeeper(shared, clock, when_down)
        shared.answers = False
        await keeper.turn()
        while when_down is WhenDown.DEGRADED:  # until nobody is let in without Redis
            verdict = await keeper.charge(charge(f"filler{clock.value_ms}"))
            assert verdict is not None
            if not verdict.is_admitted:
                break
            clock.value_ms += 1
        clock.value_ms += PAUSE_MS
        before = await shared.used()
        late = await keeper.charge(charge("late"), is_first=is_first)
        assert late is None or not late.is_admitted
        assert await shared.used() == before + 1
        clock.value_ms += PAUSE_MS
        await keeper.turn()
        assert await shared.used() == before + 1
        clock.value_ms += PAUSE_MS
        shared.answers = True
        await keeper.turn()
        assert await shared.used() == before + stays

    asyncio.run(scenario())


def test_what_is_owed_is_bounded_and_given_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.limiting.OWED_MAX", 70)

    async def scenario() -> None:
        clock = Clock()
        shared = Shared(clock)
        keeper = LimitKeeper(shared, clock)
        for number in range(80):
            one = charge(str(number), 100)
            keeper.refund_soon(one, await admitted(keeper, one))
        await keeper.turn()
        assert await shared.used() == 10
        await admitted(keeper, charge("0", 100))
        await keeper.turn()
        assert await shared.used() == 11

    asyncio.run(scenario())


@pytest.mark.parametrize("is_lost", [True, False])
def test_one_ingress_keeps_to_the_limit_whatever_becomes_of_redis(*, is_lost: bool) -> None:
    """Before it goes, while it is away, when it is back: within any minute."""

    async def scenario() -> None:
        clock, taken = Clock(), list[int]()
        shared = Shared(clock)
        keeper = LimitKeeper(shared, clock)
        for number in range(1_000):
            clock.value_ms += 200
            shared.is_up = number % 100 < 40
            if is_lost and not shared.is_up:
                shared.lose()
            await keeper.turn()
            verdict = await keeper.charge(charge(str(number)))
            if verdict is not None and verdict.is_admitted:
                taken.append(clock.value_ms)
        for begin_ms in taken:
            assert sum(begin_ms <= at_ms < begin_ms + 60_000 for at_ms in taken) <= 10
        assert len(taken) >= 20
        await keeper.turn()

    asyncio.run(scenario())


def test_what_this_ingress_refuses_is_not_charged_in_redis_either() -> None:
    async def scenario() -> None:
        clock = Clock()
        shared = Shared(clock)
        keeper = LimitKeeper(shared, clock)
        for number in range(9):
            await admitted(keeper, charge(str(number)))
        shared.is_up = False
        await keeper.charge(charge("away"))
        shared.lose()
        shared.is_up = True
        clock.value_ms += PAUSE_MS
        refused = await keeper.charge(charge("back"))
        assert refused is not None
        assert (refused.is_admitted, refused.refused_by) == (False, "requests/minute")
        assert await shared.used() == 0

    asyncio.run(scenario())
