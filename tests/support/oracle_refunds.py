"""An observer of accounts: what a hand-back gives back is what its picks had taken.

Who was picked and handed back paid for nothing. While a worker's word is taken in nobody is
granted anything, so its account (deficit and credit, with the grants implied so far) is
higher than just before by the charges of its requests in the batch, but for two caps: what
is above the dearest request is lost when a tenant leaves the ring, and a debt may halve.
"""

from collections import Counter
from typing import Any

import pytest

from scheduler.core import apply as core_apply
from schemas.decisions import WorkerSaid
from schemas.policy import Fairness
from schemas.records import HandedBack


class RefundError(AssertionError):
    """An account is not what it was before the pick."""


def watch_refunds(patch: pytest.MonkeyPatch) -> list[int]:
    """Look at every hand-back from now on; returns a list that grows by the charges of each."""
    heard: Any = vars(core_apply)["worker_said"]
    seen: list[int] = []

    def watched(state: Any, step: WorkerSaid) -> None:
        charged = _charges(state, step)
        before = {member: _balance(member) for member in charged}
        pool = state.pools.get(step.pool)
        heard(state, step)
        for member, cost in charged.items():
            after, had = _balance(member), before[member]
            least, most = min(had + cost, pool.cost_max), max(had, 0) + cost
            if not least <= after <= most:
                who = member.use.tenant
                raise RefundError(f"{who} had {had}, is given {cost} back, and has {after}")
        seen.extend(charged.values())

    patch.setattr(core_apply, "worker_said", watched)
    return seen


def _charges(state: Any, step: WorkerSaid) -> Counter[Any]:
    """What is to be given back, by whose account it is: the tenant's, and its parent's."""
    charged: Counter[Any] = Counter()
    if not isinstance(step.record, HandedBack) or step.pool not in state.pools:
        return charged
    pool = state.pools[step.pool]
    flight = pool.lanes[step.lane].flights.get(step.record.number)
    if flight is None or flight.unit is not pool.unit:  # it was charged in another unit
        return charged
    for key, cost in flight.charged:
        queue = state.find(key).queue
        if queue.ring is not None and queue.ring.fairness is Fairness.DRR:
            charged[queue] += cost
            if queue.family is not None:
                charged[queue.family] += cost
    return charged


def _balance(member: Any) -> int:
    selector = member.seated or member.last or member.ring.base
    deficit, credit = selector.dump_account(member.account)[:2]
    return int(deficit + credit)
