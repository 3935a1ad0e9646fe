"""The limiter's edges, on the script (in-process Redis) and on its in-process twin."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from adapters.redis import EMBEDDED, Gather, _answered, connect
from adapters.redis_limits import CALLS_MAX, RedisLimits, _Item
from producers.core.local import month_end_ms
from schemas.front import (
    CHARGE_TTL_MS,
    SLOT_MS,
    SLOTS,
    Admission,
    Charge,
    Settlement,
    StoreDownError,
)
from schemas.policy import Allowance
from tests.support.limits import START_MS, Counter, with_local, with_script

Run = Callable[[Callable[[Counter], Awaitable[None]]], None]


@pytest.fixture(params=[with_script, with_local], ids=["script", "local"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def test_verdicts_count_down_and_never_below_zero(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        verdicts = [await counter.take(START_MS, limit=3) for _ in range(5)]
        assert [v.admission for v in verdicts] == [1, 1, 1, 0, 0]
        assert [v.decisive.remaining for v in verdicts] == [2, 1, 0, 0, 0]
        assert [v.decisive.used for v in verdicts] == [1, 2, 3, 3, 3]
        assert {v.decisive.limit for v in verdicts} == {3}

    run(scenario)


def test_a_refused_cost_leaves_the_rest_to_smaller_ones(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        assert (await counter.take(START_MS, 8, 10)).is_admitted
        assert not (await counter.take(START_MS, 5, 10)).is_admitted
        last = await counter.take(START_MS, 2, 10)
        assert (last.admission, last.decisive.remaining) == (Admission.CHARGED, 0)

    run(scenario)


def test_refused_calls_do_not_prolong_the_wait(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 1, 1)
        free_ms = (START_MS // SLOT_MS + SLOTS) * SLOT_MS
        for now_ms in range(START_MS + 1_000, free_ms, 1_000):
            verdict = await counter.take(now_ms, 1, 1)
            assert (verdict.admission, verdict.retry_ms) == (Admission.REFUSED, free_ms - now_ms)
        assert (await counter.take(free_ms, 1, 1)).is_admitted

    run(scenario)


def test_the_wait_is_for_this_very_cost_and_exact(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        edge = START_MS // SLOT_MS * SLOT_MS
        for k, cost in enumerate((3, 4, 3)):
            assert (await counter.take(edge + k * SLOT_MS, cost, 10)).is_admitted
        now_ms = edge + 2 * SLOT_MS + 1
        for cost, slots_later in ((1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 2)):
            verdict = await counter.take(now_ms, cost, 10)
            assert verdict.admission is Admission.REFUSED
            assert now_ms + verdict.retry_ms == edge + (SLOTS + slots_later) * SLOT_MS
        verdict = await counter.take(now_ms, 8, 10)
        assert not (await counter.take(now_ms + verdict.retry_ms - 1, 8, 10)).is_admitted
        assert (await counter.take(now_ms + verdict.retry_ms, 8, 10)).is_admitted

    run(scenario)


@pytest.mark.parametrize(("cost", "limit"), [(1, 0), (11, 10)])
def test_what_never_fits_has_its_own_verdict(run: Run, cost: int, limit: int) -> None:
    async def scenario(counter: Counter) -> None:
        verdict = await counter.take(START_MS, cost, limit)
        assert (verdict.admission, verdict.retry_ms) == (Admission.NEVER, 0)
        assert not verdict.is_admitted
        assert verdict.decisive.remaining == max(0, limit)
        assert [key async for key in counter.redis.scan_iter()] == []

    run(scenario)


def test_a_repeated_charge_takes_nothing_for_the_whole_window(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        first = await counter.take(START_MS, 4, 10, charge_id="a")
        again = await counter.take(START_MS + 59_000, 4, 10, charge_id="a")
        assert (first.admission, again.admission) == (Admission.CHARGED, Admission.REPEATED)
        assert again.is_admitted
        assert again.decisive.used == 4

    run(scenario)


def test_one_id_is_charged_at_each_endpoint(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        for endpoint in ("chat", "heavy"):
            verdict = await counter.take(START_MS, 1, 3, charge_id="a", endpoint=endpoint)
            assert verdict.admission is Admission.CHARGED

    run(scenario)


def test_a_refused_id_may_be_charged_later(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 1, 1, charge_id="a")
        refused = await counter.take(START_MS, 1, 1, charge_id="b")
        later = await counter.take(START_MS + refused.retry_ms, 1, 1, charge_id="b")
        assert later.admission is Admission.CHARGED

    run(scenario)


def test_raised_and_lowered_limits_act_at_once(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        assert (await counter.take(START_MS, 5, 5)).is_admitted
        assert not (await counter.take(START_MS, 1, 5)).is_admitted
        assert (await counter.take(START_MS, 1, 6)).is_admitted
        lowered = await counter.take(START_MS, 1, 3)
        assert (lowered.admission, lowered.decisive.used, lowered.decisive.remaining) == (0, 6, 0)

    run(scenario)


def test_a_clock_that_goes_back_frees_nothing_and_locks_nobody_out(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        assert (await counter.take(START_MS, 5, 10)).is_admitted
        back = await counter.take(START_MS - 30_000, 5, 10)
        assert (back.admission, back.decisive.used) == (Admission.CHARGED, 10)
        assert not (await counter.take(START_MS - 30_000, 1, 10)).is_admitted
        assert (await counter.take(START_MS + 65_000, 10, 10)).is_admitted

    run(scenario)


def test_after_a_jump_of_the_clock_the_wait_is_as_long_as_it_takes(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        jumped_ms = START_MS + 3_600_000
        await counter.take(jumped_ms, 1, 1)
        refused = await counter.take(START_MS, 1, 1)
        free_ms = (jumped_ms // SLOT_MS + SLOTS) * SLOT_MS
        assert refused.retry_ms == free_ms - START_MS
        assert refused.decisive.reset_s == -(-refused.retry_ms // 1_000)
        assert not (await counter.take(free_ms - 1, 1, 1)).is_admitted
        assert (await counter.take(free_ms, 1, 1)).is_admitted

    run(scenario)


def test_tenants_and_endpoints_are_apart(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        for tenant in ("acme", "bolt"):
            for endpoint in ("chat", "embed"):
                taken = await counter.take(START_MS, 1, 1, tenant=tenant, endpoint=endpoint)
                assert taken.is_admitted

    run(scenario)


def test_long_silence_and_wrapped_counters_leave_nothing_behind(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        now_ms = START_MS
        for pause_ms in (SLOT_MS * SLOTS, SLOT_MS * (SLOTS * 2 + 1), 3_600_000, 65_000):
            verdict = await counter.take(now_ms, 7, 7)
            assert (verdict.admission, verdict.decisive.used) == (Admission.CHARGED, 7)
            now_ms += pause_ms

    run(scenario)


def test_every_key_has_a_time_to_live_and_the_tenant_as_hash_tag() -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 1, 1)
        await counter.take(START_MS, 1, 1)
        keys = [key.decode() async for key in counter.redis.scan_iter()]
        assert sorted(keys) == ["test:{acme}:charge:acme:chat:req_1", "test:{acme}:limit:acme:chat"]
        ttls = [await counter.redis.pttl(key) for key in sorted(keys)]
        month_ms = month_end_ms(START_MS) - START_MS + CHARGE_TTL_MS
        assert CHARGE_TTL_MS - 5_000 < ttls[0] <= CHARGE_TTL_MS
        assert month_ms - 5_000 < ttls[1] <= month_ms

    with_script(scenario)


def test_a_refusal_changes_nothing_in_redis() -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 3, 3)
        before = await counter.redis.hgetall("test:{acme}:limit:acme:chat")
        await counter.take(START_MS + 20_000, 1, 3)
        assert await counter.redis.hgetall("test:{acme}:limit:acme:chat") == before

    with_script(scenario)


def test_concurrent_charges_are_gathered_and_never_exceed_the_limit() -> None:
    async def scenario() -> None:
        redis = connect(EMBEDDED)
        limits = RedisLimits(redis, "test", str(START_MS), timeout_s=10.0)
        gather = limits._gathers[hash("acme") % CALLS_MAX]
        sizes: list[int] = []
        plain = gather._run

        async def counted(items: list[_Item]) -> list[list[int]]:
            sizes.append(len(items))
            return await plain(items)

        gather._run = counted
        verdicts = await asyncio.gather(
            *(
                limits.charge(Charge("acme", "chat", f"req_{n}", 1, 1, Allowance(40)))
                for n in range(100)
            )
        )
        assert sum(v.is_admitted for v in verdicts) == 40
        assert sizes == [64, 36]
        await redis.aclose()

    asyncio.run(scenario())


def test_a_gathered_call_that_is_given_up_hurts_no_other() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def double(items: list[int]) -> list[int]:
            await gate.wait()
            return [2 * item for item in items]

        gather = Gather(double, 10)
        calls = [asyncio.create_task(gather(n)) for n in range(5)]
        await asyncio.sleep(0)
        calls[1].cancel()
        gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [a for a in answers if isinstance(a, int)] == [0, 4, 6, 8]

    asyncio.run(scenario())


def test_an_error_of_a_gathered_call_reaches_all_and_the_next_goes_on() -> None:
    async def scenario() -> None:
        async def run(items: list[int]) -> list[int]:
            if 13 in items:
                raise StoreDownError("no")
            return items

        gather = Gather(run, 10)
        answers = await asyncio.gather(*map(gather, (1, 13)), return_exceptions=True)
        assert all(isinstance(answer, StoreDownError) for answer in answers)
        assert await gather(7) == 7

    asyncio.run(scenario())


def test_what_waits_behind_a_gathered_call_that_fails_fails_with_it() -> None:
    async def scenario() -> None:
        calls: list[list[int]] = []

        async def run(items: list[int]) -> list[int]:
            calls.append(items)
            await asyncio.sleep(0)
            raise StoreDownError("hung")

        gather = Gather(run, 2)
        answers = await asyncio.gather(*map(gather, range(9)), return_exceptions=True)
        assert all(isinstance(answer, StoreDownError) for answer in answers)
        assert calls == [[0, 1]]

    asyncio.run(scenario())


def test_who_waits_behind_slow_calls_for_too_long_fails() -> None:
    async def scenario() -> None:
        async def run(items: list[int]) -> list[int]:
            await asyncio.sleep(0.001)
            return items

        gather = Gather(run, 2, wait_s=0.0)
        answers = await asyncio.gather(*map(gather, range(9)), return_exceptions=True)
        assert answers[:4] == [0, 1, 2, 3]  # the second call is next in turn, whatever it takes
        assert all(isinstance(answer, StoreDownError) for answer in answers[4:])
        assert await gather(7) == 7

    asyncio.run(scenario())


def test_an_answer_that_is_there_counts_even_when_the_loop_was_busy_for_too_long() -> None:
    async def some_turns() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return 7

    async def never() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(1)

    ended: list[int] = []

    async def scenario() -> None:
        assert await _answered(some_turns(), timeout_s=0) == 7
        with pytest.raises(StoreDownError, match="no answer within 0 s"):
            await _answered(never(), timeout_s=0)
        assert ended == [1]

    asyncio.run(scenario())


FAMILY = Allowance(requests_per_minute=10, tokens_per_minute=100)


def child(name: str, charge_id: str, requests: int = 1, tokens: int = 10) -> Charge:
    return Charge(name, "chat", charge_id, requests, tokens, FAMILY, "root", FAMILY)


def test_a_child_takes_from_its_parent_or_from_neither(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        charge = counter.limiter.charge
        assert (await charge(child("alpha", "a", tokens=60), START_MS)).is_admitted
        refused = await charge(child("beta", "b", tokens=50), START_MS)
        assert (refused.refused_by, refused.refused_of) == ("tokens/minute", "root")
        assert (refused.decisive.used, refused.decisive.remaining) == (60, 40)
        alone = child("beta", "c", tokens=1)._replace(parent_allowance=Allowance())
        counted = await charge(alone, START_MS)
        assert [state.used for state in counted.states] == [1, 1]  # of b nothing was taken

    run(scenario)


def test_a_limit_in_shadow_counts_and_tells_and_refuses_nobody(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        tried = Allowance(5, 20, shadow=("tokens_per_minute",))
        verdicts = [
            await counter.limiter.charge(Charge("acme", "chat", f"req_{n}", 1, 15, tried), START_MS)
            for n in range(6)
        ]
        assert [v.is_admitted for v in verdicts] == [True] * 5 + [False]
        assert [v.shadowed for v in verdicts] == [(), *[("tokens/minute",)] * 4, ()]
        assert [state.name for state in verdicts[0].states] == ["requests/minute"]
        enforced = await counter.limiter.charge(
            Charge("acme", "chat", "x", 1, 15, Allowance(None, 90)), START_MS
        )
        assert (enforced.admission, enforced.decisive.used) == (Admission.CHARGED, 90)

    run(scenario)


def test_a_refund_gives_back_once_and_in_the_month_of_its_charge(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        end_ms = month_end_ms(START_MS)
        limits = Allowance(requests_per_month=9, requests_per_minute=9)
        one, two = (Charge("acme", "chat", name, 3, 0, limits) for name in "ab")
        await counter.limiter.charge(one, end_ms - 1)
        await counter.limiter.charge(two, end_ms)
        assert await counter.limiter.refund(one, end_ms + 1)
        assert not await counter.limiter.refund(one, end_ms + 1)
        later = await counter.limiter.charge(one, end_ms + 2)
        used = {state.name: state.used for state in later.states}
        assert used == {"requests/minute": 6, "requests/month": 6}

    run(scenario)


def test_a_charge_on_which_a_second_call_counts_is_not_given_back(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        limits = Allowance(10, 100)
        charge = Charge("acme", "chat", "a", 1, 10, limits)
        first = await counter.limiter.charge(charge, START_MS)
        second = await counter.limiter.charge(charge, START_MS + 1)
        assert (first.admission, second.admission) == (Admission.CHARGED, Admission.REPEATED)
        assert not await counter.limiter.refund(charge, START_MS + 2)
        assert await counter.limiter.settle(Settlement("acme", "chat", "a", 30), START_MS + 9_000)
        other = await counter.limiter.charge(charge._replace(id="b"), START_MS + 9_001)
        assert [state.used for state in other.states] == [2, 40]
        # What it took more than was estimated counts where the estimate did.
        later_ms = (START_MS // SLOT_MS + SLOTS) * SLOT_MS
        last = await counter.limiter.charge(charge._replace(id="c"), later_ms)
        assert [state.used for state in last.states] == [2, 20]

    run(scenario)


def test_true_tokens_take_the_place_of_the_estimate_once(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        limits = Allowance(None, 100)
        charge = Charge("acme", "chat", "a", 2, 60, limits, weight=2)
        await counter.limiter.charge(charge, START_MS)
        told = Settlement("acme", "chat", "a", 10)
        assert await counter.limiter.settle(told, START_MS + 20_000)
        assert not await counter.limiter.settle(told, START_MS + 20_000)
        assert not await counter.limiter.refund(charge, START_MS + 20_000)
        again = await counter.limiter.charge(charge, START_MS + 21_000)
        assert (again.admission, again.decisive.used) == (Admission.REPEATED, 20)
        more = await counter.limiter.charge(charge._replace(id="b"), START_MS + 22_000)
        assert await counter.limiter.settle(Settlement("acme", "chat", "b", 75), START_MS + 23_000)
        full = await counter.limiter.charge(charge._replace(id="c", tokens=1), START_MS + 24_000)
        assert (more.is_admitted, full.admission, full.decisive.used) == (True, 0, 170)

    run(scenario)


def test_a_month_counts_a_request_once_however_late_it_is_sent_again(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        charge = Charge("acme", "chat", "a", 1, 5, Allowance(requests_per_month=9))
        await counter.limiter.charge(charge, START_MS)
        again = await counter.limiter.charge(charge, START_MS + 3_600_000)
        assert (again.admission, again.decisive.used) == (Admission.REPEATED, 1)
        assert await counter.limiter.settle(
            Settlement("acme", "chat", "a", 5), START_MS + 3_600_001
        )

    run(scenario)


@pytest.mark.parametrize(
    "first", ["2026-02", "2028-02", "2100-02", "2026-12", "2027-01", "2026-04"]
)
def test_months_are_those_of_the_calendar(first: str) -> None:
    year, month = map(int, first.split("-"))
    begins = datetime(year, month, 1, tzinfo=UTC)
    ends = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    begin_ms, end_ms = (int(moment.timestamp()) * 1_000 for moment in (begins, ends))
    limits = Allowance(requests_per_month=1)

    async def scenario(counter: Counter) -> None:
        charge = Charge("acme", "chat", "a", 1, 1, limits)
        await counter.limiter.charge(charge, begin_ms)
        refused = await counter.limiter.charge(charge._replace(id="b"), begin_ms + 7_000)
        assert refused.retry_ms == end_ms - begin_ms - 7_000
        late = await counter.limiter.charge(charge._replace(id="b"), end_ms - 1)
        assert (late.admission, late.retry_ms, late.decisive.reset_s) == (0, 1, 1)
        assert (await counter.limiter.charge(charge._replace(id="b"), end_ms)).is_admitted

    with_script(scenario)
    with_local(scenario)
    assert month_end_ms(begin_ms) == month_end_ms(end_ms - 1) == end_ms


def test_the_twin_forgets_the_oldest_ids_before_it_grows_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producers.core.local.IDS_MAX", 3)

    async def scenario(counter: Counter) -> None:
        for name in "abcd":
            await counter.take(START_MS, charge_id=name)
        known = [await counter.take(START_MS, charge_id=name) for name in "bcd"]
        assert {verdict.admission for verdict in known} == {Admission.REPEATED}
        forgotten = await counter.take(START_MS, charge_id="a")
        assert (forgotten.admission, forgotten.decisive.used) == (Admission.CHARGED, 5)

    with_local(scenario)
