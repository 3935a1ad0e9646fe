"""Schedulers and workers that are wrong on purpose: the simulator has to find each within seeds."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from scheduler import fold, publish, shard
from scheduler.core import apply as core_apply
from scheduler.core import cycle, heard
from scheduler.core import state as core_state
from schemas.policy import Policy
from schemas.reasons import Reason
from schemas.records import Finished, Usage
from simulation.history import History
from simulation.rules import InvariantError, Rule
from tests.support.oracle_refunds import RefundError, watch_refunds
from tests.support.strained import strained
from workers import transaction
from workers.core import ending

#: Histories that a defect may hide in.
SEEDS = range(80)

Patch = pytest.MonkeyPatch


def found(expected: set[Rule], history: Callable[[int], History] = History) -> bool:
    """Whether one of the rules is broken within the seeds."""
    for seed in SEEDS:
        try:
            history(seed).run()
        except InvariantError as error:
            if error.rule in expected:
                return True
    return False


def reads_otherwise(patch: Patch, edit: Callable[[Policy], Policy]) -> None:
    """The core reads another policy than the one that was published."""
    decode = vars(core_state)["decode_policy"]
    patch.setattr(core_state, "decode_policy", lambda document: edit(decode(document)))


def endpoints(policy: Policy, **fields: Any) -> Policy:
    changed = tuple(msgspec.structs.replace(e, **fields) for e in policy.endpoints)
    return msgspec.structs.replace(policy, endpoints=changed)


def ignores_prefetch(patch: Patch) -> None:
    def edit(policy: Policy) -> Policy:
        pools = tuple(msgspec.structs.replace(p, prefetch=p.prefetch + 3) for p in policy.pools)
        return msgspec.structs.replace(policy, pools=pools)

    reads_otherwise(patch, edit)


def ignores_batch_limits(patch: Patch) -> None:
    reads_otherwise(patch, lambda policy: endpoints(policy, batch_requests=40))


def ignores_the_wait(patch: Patch) -> None:
    reads_otherwise(patch, lambda policy: endpoints(policy, wait_ms_max=10_000_000))


def ignores_service_times(patch: Patch) -> None:
    reads_otherwise(patch, lambda policy: endpoints(policy, service_ms=0))


def ignores_tiers(patch: Patch) -> None:
    def edit(policy: Policy) -> Policy:
        every = tuple(tier.name for tier in policy.tiers)
        tenants = tuple(msgspec.structs.replace(t, tiers=every) for t in policy.tenants)
        return msgspec.structs.replace(policy, tenants=tenants)

    reads_otherwise(patch, edit)


def every_other(patch: Patch, name: str, times: int) -> None:
    """Records of one kind are published `times` times instead of once, every fifth of them."""
    publisher: Any = publish.Publisher
    made = getattr(publisher, name)
    count = 0

    def changed(self: Any, *args: Any) -> Iterator[publish.Outgoing]:
        nonlocal count
        records = made(self, *args)
        records = list(records) if isinstance(records, Iterator) else [records]
        count += 1
        yield from records * (times if count % 5 == 0 else 1)

    patch.setattr(publisher, name, changed)


def drops_results(patch: Patch) -> None:
    every_other(patch, "_ended", 0)


def repeats_results(patch: Patch) -> None:
    every_other(patch, "_ended", 2)


def all_records(patch: Patch, edit: Callable[[publish.Outgoing], list[publish.Outgoing]]) -> None:
    publisher: Any = publish.Publisher
    made = publisher.records

    def changed(self: Any, *args: Any) -> Iterator[publish.Outgoing]:
        for record in made(self, *args):
            yield from edit(record)

    patch.setattr(publisher, "records", changed)


def is_batch(record: publish.Outgoing) -> bool:
    return ".batches." in record.topic and bool(record.value)


def drops_a_batch(patch: Patch) -> None:
    all_records(patch, lambda r: [] if is_batch(r) and len(r.value) % 7 == 0 else [r])


def dispatches_twice(patch: Patch) -> None:
    all_records(patch, lambda r: [r, r] if is_batch(r) and len(r.value) % 7 == 0 else [r])


def mixes_bodies_up(patch: Patch) -> None:
    def edit(record: publish.Outgoing) -> list[publish.Outgoing]:
        return [record._replace(value=record.value[::-1]) if is_batch(record) else record]

    all_records(patch, edit)


def keeps_cancels_back(patch: Patch) -> None:
    def edit(record: publish.Outgoing) -> list[publish.Outgoing]:
        return [] if ".batches." in record.topic and not record.value else [record]

    all_records(patch, edit)


def forgets_on_recovery(patch: Patch) -> None:
    """A recovered state differs from the one that decided."""
    fill = vars(fold)["finish_filling"]

    def changed(state: Any) -> None:
        fill(state)
        state.next_number += 1

    patch.setattr(fold, "finish_filling", changed)


def counts_wrongly(patch: Patch) -> None:
    """A worker tells the scheduler of other usage than the caller."""
    made = ending.finished

    def changed(*args: Any) -> Finished:
        said = made(*args)
        outcomes = tuple(
            msgspec.structs.replace(o, usage=Usage(input_tokens=1, output_tokens=9))
            for o in said.outcomes
        )
        return msgspec.structs.replace(said, outcomes=outcomes)

    patch.setattr(transaction, "finished", changed)


def turns_the_clock_back(patch: Patch) -> None:
    """A decision is of now, whatever the one before it was of."""
    run_cycle = vars(shard)["run_cycle"]

    def changed(state: Any, inputs: Any, now_ms: int) -> Any:
        state.now_ms = min(state.now_ms, now_ms)
        return run_cycle(state, inputs, now_ms)

    patch.setattr(shard, "run_cycle", changed)


def ignores_pauses(patch: Patch) -> None:
    patch.setattr(core_state.State, "is_paused", lambda *_: False)


def without_parents(policy: Policy) -> Policy:
    tenants = tuple(msgspec.structs.replace(t, parent="") for t in policy.tenants)
    return msgspec.structs.replace(policy, tenants=tenants)


def pauses_no_children(patch: Patch) -> None:
    """Who has a parent is asked for its own pauses alone."""
    reads_otherwise(patch, lambda policy: endpoints(without_parents(policy), in_flight=None))


def counts_no_children(patch: Patch) -> None:
    """Who has a parent is held to its own limits alone."""
    reads_otherwise(patch, without_parents)


def forgets_to_resume(patch: Patch) -> None:
    pause: Any = vars(core_apply)["_pause"]

    def changed(state: Any, tenant: str, endpoint: str, until_ms: int | None) -> None:
        if until_ms is not None or state.pauses.get((tenant, endpoint)):
            pause(state, tenant, endpoint, until_ms)

    patch.setattr(core_apply, "_pause", changed)


def resumes_early(patch: Patch) -> None:
    """A pause of a minute is taken for one of a second."""
    pause: Any = vars(core_apply)["_pause"]

    def changed(state: Any, tenant: str, endpoint: str, until_ms: int | None) -> None:
        pause(state, tenant, endpoint, until_ms and min(until_ms, state.now_ms + 1_000))

    patch.setattr(core_apply, "_pause", changed)


def ignores_limits_in_flight(patch: Patch) -> None:
    reads_otherwise(patch, lambda policy: endpoints(policy, in_flight=None))


def bursts_at_any_time(patch: Patch) -> None:
    """What is guaranteed and what is not are one number."""

    def edit(policy: Policy) -> Policy:
        of = {e.name: e for e in policy.endpoints}
        changed = tuple(
            msgspec.structs.replace(
                t, in_flight={name: most + of[name].burst for name, most in t.in_flight.items()}
            )
            for t in policy.tenants
        )
        merged = tuple(
            e
            if e.in_flight is None
            else msgspec.structs.replace(e, in_flight=e.in_flight + e.burst, burst=0)
            for e in policy.endpoints
        )
        return msgspec.structs.replace(policy, tenants=changed, endpoints=merged)

    reads_otherwise(patch, edit)


def lets_one_more_wait(patch: Patch) -> None:
    waits(patch, 1)


def lets_one_less_wait(patch: Patch) -> None:
    waits(patch, -1)


def waits(patch: Patch, more: int) -> None:
    def edit(policy: Policy) -> Policy:
        changed = tuple(
            e if e.waiting is None else msgspec.structs.replace(e, waiting=max(0, e.waiting + more))
            for e in policy.endpoints
        )
        return msgspec.structs.replace(policy, endpoints=changed)

    reads_otherwise(patch, edit)


def waits_too_long_for_batches(patch: Patch) -> None:
    reads_otherwise(patch, lambda policy: endpoints(policy, batch_wait_ms=500))


def fills_one_batch_a_cycle(patch: Patch) -> None:
    fill = vars(cycle)["fill_batches"]

    def changed(state: Any, made: Any, pool: Any) -> None:
        if not made.batches:
            fill(state, made, pool)

    patch.setattr(cycle, "fill_batches", changed)


def runs_what_came_too_late(patch: Patch) -> None:
    judge: Any = vars(cycle)["_judge"]

    def changed(*args: Any) -> str | None:
        reason: str | None = judge(*args)
        return None if reason in (Reason.EXPIRED, Reason.DEADLINE) else reason

    patch.setattr(cycle, "_judge", changed)


DEFECTS: dict[Callable[[Patch], None], set[Rule]] = {
    ignores_prefetch: {Rule.ROOM},
    ignores_batch_limits: {Rule.BATCH},
    ignores_the_wait: {Rule.EXPIRED},
    ignores_service_times: {Rule.EXPIRED},
    ignores_tiers: {Rule.POLICY},
    drops_results: {Rule.ENDS},
    repeats_results: {Rule.ONE_RESULT},
    drops_a_batch: {Rule.AGREE},
    dispatches_twice: {Rule.ONE_HAND},
    mixes_bodies_up: {Rule.BODY},
    keeps_cancels_back: {Rule.AGREE},
    forgets_on_recovery: {Rule.RECOVERY, Rule.HALTED, Rule.SEQUENCE},
    counts_wrongly: {Rule.USAGE},
    turns_the_clock_back: {Rule.CLOCK},
    ignores_pauses: {Rule.PAUSED},
    forgets_to_resume: {Rule.IDLE},
    resumes_early: {Rule.PAUSED},
    ignores_limits_in_flight: {Rule.IN_FLIGHT},
    lets_one_more_wait: {Rule.WAITING},
    lets_one_less_wait: {Rule.WAITING},
    waits_too_long_for_batches: {Rule.IDLE},
    fills_one_batch_a_cycle: {Rule.IDLE},
    runs_what_came_too_late: {Rule.EXPIRED},
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_is_found(defect: Callable[[Patch], None], monkeypatch: Patch) -> None:
    defect(monkeypatch)
    assert found(DEFECTS[defect])


STRAINED: dict[Callable[[Patch], None], set[Rule]] = {
    pauses_no_children: {Rule.PAUSED},
    counts_no_children: {Rule.IN_FLIGHT},
    bursts_at_any_time: {Rule.IN_FLIGHT},
}


@pytest.mark.parametrize("defect", STRAINED, ids=lambda defect: defect.__name__)
def test_a_defect_is_found_under_strain(
    defect: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    defect(monkeypatch)
    assert found(STRAINED[defect], strained)


def forgets_a_refund(patch: Patch) -> None:
    settle: Any = vars(heard)["_settle"]

    def changed(state: Any, queue: Any, flight: Any, surcharges: list[int]) -> None:
        settle(state, queue, flight, [max(0, surcharge) for surcharge in surcharges])

    patch.setattr(heard, "_settle", changed)


def refunds_twice(patch: Patch) -> None:
    settle: Any = vars(heard)["_settle"]

    def changed(state: Any, queue: Any, flight: Any, surcharges: list[int]) -> None:
        twice = [2 * surcharge if surcharge < 0 else surcharge for surcharge in surcharges]
        settle(state, queue, flight, twice)

    patch.setattr(heard, "_settle", changed)


def test_after_a_hand_back_accounts_are_as_if_nothing_was_picked(monkeypatch: Patch) -> None:
    seen = watch_refunds(monkeypatch)
    for seed in range(20):
        History(seed).run()
    assert sum(seen) > 20


def play_all() -> None:
    for seed in SEEDS:
        History(seed).run()


@pytest.mark.parametrize("defect", [forgets_a_refund, refunds_twice])
def test_a_wrong_refund_is_found(defect: Callable[[Patch], None], monkeypatch: Patch) -> None:
    defect(monkeypatch)
    watch_refunds(monkeypatch)
    with pytest.raises(RefundError):
        play_all()
