"""Charging a request against its tenant's limits, also while Redis is down.

Redis that does not answer is left alone for a while, so that callers don't queue up behind
time-outs; then one of them tries. What happens meanwhile is the operator's choice: `degraded`
(the default) counts in this process, up to this ingress's share of each limit, `closed` lets
nobody in, `open` lets everybody in. The ingresses announce themselves in Redis; the share is by
the number that lived when Redis was last heard of.

Redis may have lost its counters when it is back. So requests that it admits are counted here too:
what this ingress let in within a minute, by whichever counters, stays within the share while Redis
is down, and within the limit for a minute after.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import TypeVar

from producers.core.breaker import Breaker
from producers.core.local import LocalLimits
from producers.core.shares import shared
from producers.directory import View
from producers.ports import Clock, Limits, Meter, NoMeter
from schemas.front import (
    INGRESS_TTL_MS,
    SLOT_MS,
    SLOTS,
    Admission,
    Charge,
    Ending,
    Settlement,
    StoreDownError,
    Verdict,
)
from schemas.records import End

#: Redis is asked again this long after it failed.
PAUSE_MS = 1_000
#: An ingress announces itself so often: several times while the last one counts.
ANNOUNCE_MS = INGRESS_TTL_MS // 5
#: Charges that are to be given back when Redis answers; those beyond stay charged.
OWED_MAX = 10_000
#: And so many at once.
REFUNDS_MAX = 64

T = TypeVar("T")

log = logging.getLogger(__name__)


class WhenDown(StrEnum):
    """What the limit does while Redis is down."""

    DEGRADED = "degraded"
    CLOSED = "closed"
    OPEN = "open"


class LimitKeeper:
    """The limits as the door uses them."""

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        when_down: WhenDown = WhenDown.DEGRADED,
        *,
        name: str = "",
        meter: Meter | None = None,
    ) -> None:
        """Hand in the shared counters and what to do without them; `name` is this ingress's."""
        self._limits, self._clock, self._when_down = limits, clock, when_down
        self._name, self._meter = name, meter or NoMeter()
        self._local = LocalLimits()
        self._breaker = Breaker(PAUSE_MS)
        self._announce_ms = 0
        self._both_until_ms = 0
        self._owed: list[Charge] = []
        #: Ingresses that lived when Redis was last heard of, this one too.
        self.ingresses = 1

    @property
    def is_down(self) -> bool:
        """Whether Redis failed and has not answered since."""
        return self._breaker.is_open

    async def charge(self, charge: Charge, *, is_first: bool = False) -> Verdict | None:
        """Take the charge or nothing; None when `closed` and Redis is down.

        `is_first`: there was no earlier try of this request. Then what Redis may have charged
        without saying so in time is given back, if the request is refused here.
        """
        verdict, was_asked = None, self._breaker.may_ask(self._clock.now_ms())
        if was_asked:
            verdict = await self._answer(lambda: self._limits.charge(charge))
        if verdict is not None and verdict.admission is Admission.CHARGED:
            verdict = await self._both(charge, verdict)
        if verdict is None:
            self._meter.count("ingress_charges_without_redis", kind=self._when_down.value)
            verdict = self._alone(charge)
            if was_asked and is_first and not (verdict and verdict.is_admitted):
                self._owe(charge)
        for name in verdict.shadowed if verdict else ():
            self._meter.count("ingress_shadow_refusals", kind=name, endpoint=charge.endpoint)
            log.debug("%s at %s in shadow: %r is over it", name, charge.endpoint, charge.tenant)
        return verdict

    async def _both(self, charge: Charge, verdict: Verdict) -> Verdict:
        """What Redis admitted, counted here as well; refused where this ingress let in as much."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._both_until_ms:
            self._local.note(charge, now_ms)
            return verdict
        here = self._local.charge(charge._replace(tokens=0), now_ms)
        if here.is_admitted:
            return verdict
        await self.refund(charge, verdict)
        return here

    async def refund(self, charge: Charge, verdict: Verdict) -> None:
        """Give back what was charged by this verdict, where it was charged.

        Another try of the same request may be charged elsewhere, and in the log. Without Redis
        it stays charged there until it counts no more.
        """
        if verdict.is_local:
            self._local.refund(charge, self._clock.now_ms())
        else:
            await self._asked(lambda: self._limits.refund(charge))

    def refund_soon(self, charge: Charge, verdict: Verdict) -> None:
        """The same for who can't wait: with a turn, when Redis answers."""
        if verdict.is_local:
            self._local.refund(charge, self._clock.now_ms())
        else:
            self._owe(charge)

    async def turn(self) -> None:
        """Announce this ingress when it is time to; finds out whether Redis is back as well.

        Then give back what is owed.
        """
        now_ms = self._clock.now_ms()
        if now_ms >= self._announce_ms or self.is_down:
            living = await self._asked(lambda: self._limits.announce(self._name))
            if living is not None:
                self.ingresses, self._announce_ms = max(1, living), now_ms + ANNOUNCE_MS
        while self._owed and not self.is_down:
            some, self._owed = self._owed[:REFUNDS_MAX], self._owed[REFUNDS_MAX:]
            await self._asked(partial(self._refund_all, some))

    async def _refund_all(self, charges: Sequence[Charge]) -> None:
        await asyncio.gather(*map(self._limits.refund, charges))

    def _owe(self, charge: Charge) -> None:
        if len(self._owed) < OWED_MAX:
            self._owed.append(charge)

    async def _asked(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Redis's answer; None when it has none, or was not asked."""
        if not self._breaker.may_ask(self._clock.now_ms()):
            return None
        return await self._answer(call)

    async def _answer(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The same of who may ask."""
        try:
            answer = await call()
        except StoreDownError as error:
            if self._breaker.failed(self._clock.now_ms()):
                log.warning("limits are %s: %s", self._when_down.value, error)
            return None
        except BaseException:
            self._breaker.gave_up()
            raise
        if self._breaker.answered():
            self._both_until_ms = self._clock.now_ms() + SLOTS * SLOT_MS
            log.warning("limits are shared again: Redis answers")
        return answer

    def _alone(self, charge: Charge) -> Verdict | None:
        now_ms = self._clock.now_ms()
        match self._when_down:
            case WhenDown.CLOSED:
                return None
            case WhenDown.OPEN:
                verdict = LocalLimits().charge(charge, now_ms)
            case WhenDown.DEGRADED:
                verdict = self._local.charge(shared(charge, self.ingresses), now_ms)
        return verdict._replace(is_local=True)


class Settler:
    """Puts what requests truly took in the place of what was estimated at the door."""

    def __init__(self, limits: Limits, view: Callable[[], View | None]) -> None:
        """`view` is the policy now; None before one was read."""
        self._limits, self._view = limits, view

    async def settle(self, endings: Sequence[Ending]) -> None:
        """Settle what ended, each once however often it is told.

        Raises StoreDownError, also before there is a policy: then tell the same again.
        """
        view = self._view()
        if view is None:
            raise StoreDownError("tokens can't be settled before the policy is read")
        settlements = [one for one in (_settlement(ending, view) for ending in endings) if one]
        if settlements:
            await self._limits.settle(settlements)


def _settlement(ending: Ending, view: View) -> Settlement | None:
    """What a request took; None where its charge is over anyhow.

    One that succeeded with no tokens at all was not counted by its engine: the estimate stays.
    """
    name, terminal, _ = ending
    tenant, endpoint = view.tenants.get(name.tenant), view.policy.endpoint(terminal.endpoint)
    if tenant is None or endpoint is None:
        return None
    parent = view.tenants.get(tenant.parent)
    families = [tenant, parent] if parent else [tenant]
    if not any(view.policy.allowance(one, endpoint).keeps_ids for one in families):
        return None
    used = terminal.usage.input_tokens + terminal.usage.output_tokens
    tokens = None if terminal.end is End.SUCCEEDED and not used else used
    return Settlement(name.tenant, endpoint.name, name.id, tokens, tenant.parent)
