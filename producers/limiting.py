"""Charging a request against its tenant's limit, also while Redis is down.

Redis that does not answer is left alone for a while, so that callers don't queue up behind
time-outs. What happens meanwhile is the operator's choice: `degraded` (the default) counts
in this process, `closed` lets nobody in, `open` lets everybody in.
"""

import logging
from enum import StrEnum

from producers.core.local import LocalLimits
from producers.ports import Clock, Limits
from schemas.front import Admission, Charge, StoreDownError, Verdict

#: Redis is asked again this long after it failed.
PAUSE_MS = 1_000

log = logging.getLogger(__name__)


class WhenDown(StrEnum):
    """What the limit does while Redis is down."""

    DEGRADED = "degraded"
    CLOSED = "closed"
    OPEN = "open"


class LimitKeeper:
    """The limit as the door uses it."""

    def __init__(
        self, limits: Limits, clock: Clock, when_down: WhenDown = WhenDown.DEGRADED
    ) -> None:
        """Hand in the shared counters and what to do without them."""
        self._limits, self._clock, self._when_down = limits, clock, when_down
        self._local = LocalLimits()
        self._asked_again_ms = 0

    @property
    def is_down(self) -> bool:
        """Whether Redis failed lately and is being left alone."""
        return self._clock.now_ms() < self._asked_again_ms

    async def charge(self, charge: Charge) -> Verdict | None:
        """Take the charge or nothing; None when `closed` and Redis is down."""
        if not self.is_down:
            try:
                return await self._limits.charge(charge)
            except StoreDownError as error:
                if not self.is_down:  # once for all charges that went out together
                    log.warning("limits are %s: %s", self._when_down.value, error)
                self._asked_again_ms = self._clock.now_ms() + PAUSE_MS
        if self._when_down is WhenDown.CLOSED:
            return None
        if self._when_down is WhenDown.OPEN and charge.cost <= charge.limit:
            return Verdict(Admission.CHARGED, charge.limit, 0, charge.limit, 0)
        return self._local.charge(charge, self._clock.now_ms())
