"""The limiter's edges, on the script (in-process Redis) and on its in-process twin."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from adapters.memory import MemoryLog
from adapters.redis import EMBEDDED, Gather, RedisIndex, RedisLimits, _answered, connect
from producers.limiting import PAUSE_MS, LimitKeeper, WhenDown
from schemas.front import (
    CHARGE_TTL_MS,
    SLOT_MS,
    SLOTS,
    Acceptance,
    Admission,
    Charge,
    Entry,
    RequestName,
    StoreDownError,
    Verdict,
)
from tests.support.door import Clock, door, until
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
        assert [v.remaining for v in verdicts] == [2, 1, 0, 0, 0]
        assert [v.used for v in verdicts] == [1, 2, 3, 3, 3]
        assert {v.limit for v in verdicts} == {3}

    run(scenario)


def test_a_refused_cost_leaves_the_rest_to_smaller_ones(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        assert (await counter.take(START_MS, 8, 10)).is_admitted
        assert not (await counter.take(START_MS, 5, 10)).is_admitted
        last = await counter.take(START_MS, 2, 10)
        assert (last.admission, last.remaining) == (Admission.CHARGED, 0)

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


@pytest.mark.parametrize(("cost", "limit"), [(1, 0), (11, 10), (1, -5)])
def test_what_never_fits_has_its_own_verdict(run: Run, cost: int, limit: int) -> None:
    async def scenario(counter: Counter) -> None:
        verdict = await counter.take(START_MS, cost, limit)
        assert (verdict.admission, verdict.retry_ms) == (Admission.NEVER, 0)
        assert not verdict.is_admitted
        assert verdict.remaining == max(0, limit)
        assert [key async for key in counter.redis.scan_iter()] == []

    run(scenario)


def test_a_repeated_charge_takes_nothing_for_the_whole_window(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        first = await counter.take(START_MS, 4, 10, charge_id="a")
        again = await counter.take(START_MS + 59_000, 4, 10, charge_id="a")
        assert (first.admission, again.admission) == (Admission.CHARGED, Admission.REPEATED)
        assert again.is_admitted
        assert again.used == 4

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
        assert (lowered.admission, lowered.used, lowered.remaining) == (0, 6, 0)

    run(scenario)


def test_a_clock_that_goes_back_frees_nothing_and_locks_nobody_out(run: Run) -> None:
    async def scenario(counter: Counter) -> None:
        assert (await counter.take(START_MS, 5, 10)).is_admitted
        back = await counter.take(START_MS - 30_000, 5, 10)
        assert (back.admission, back.used) == (Admission.CHARGED, 10)
        assert not (await counter.take(START_MS - 30_000, 1, 10)).is_admitted
        assert (await counter.take(START_MS + 65_000, 10, 10)).is_admitted

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
            assert (verdict.admission, verdict.used) == (Admission.CHARGED, 7)
            now_ms += pause_ms

    run(scenario)


def test_every_key_has_a_time_to_live_and_the_tenant_as_hash_tag() -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 1, 1)
        await counter.take(START_MS, 1, 1)
        keys = [key.decode() async for key in counter.redis.scan_iter()]
        assert sorted(keys) == ["test:{acme}:charge:chat:req_1", "test:{acme}:limit:chat"]
        for key in keys:
            assert CHARGE_TTL_MS - 5_000 < await counter.redis.pttl(key) <= CHARGE_TTL_MS

    with_script(scenario)


def test_a_refusal_changes_nothing_in_redis() -> None:
    async def scenario(counter: Counter) -> None:
        await counter.take(START_MS, 3, 3)
        before = await counter.redis.hgetall("test:{acme}:limit:chat")
        await counter.take(START_MS + 20_000, 1, 3)
        assert await counter.redis.hgetall("test:{acme}:limit:chat") == before

    with_script(scenario)


def test_concurrent_charges_are_gathered_and_never_exceed_the_limit() -> None:
    async def scenario() -> None:
        redis = connect(EMBEDDED)
        limits = RedisLimits(redis, "test", str(START_MS), timeout_s=10.0)
        sizes: list[int] = []
        plain = limits._gather._run

        async def counted(charges: list[Charge]) -> list[Verdict]:
            sizes.append(len(charges))
            return await plain(charges)

        limits._gather._run = counted
        verdicts = await asyncio.gather(
            *(limits.charge(Charge("acme", "chat", f"req_{n}", 1, 40)) for n in range(100))
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


class Broken:
    """Limits that are down until they are mended."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_mended = False

    async def charge(self, charge: Charge) -> Verdict:
        self.calls += 1
        if self.is_mended:
            return Verdict(Admission.CHARGED, charge.limit, 1, charge.limit - 1, 0)
        raise StoreDownError("Redis: gone")


def test_without_redis_the_same_limit_is_counted_here_and_redis_is_left_alone() -> None:
    async def scenario() -> None:
        broken, clock = Broken(), Clock()
        keeper = LimitKeeper(broken, clock)
        verdicts = [await keeper.charge(Charge("a", "e", str(n), 1, 3)) for n in range(5)]
        assert [v.is_admitted for v in verdicts if v] == [True, True, True, False, False]
        assert (broken.calls, keeper.is_down) == (1, True)
        clock.value_ms += PAUSE_MS
        broken.is_mended = True
        verdict = await keeper.charge(Charge("a", "e", "x", 1, 3))
        assert verdict is not None
        assert (verdict.used, broken.calls, keeper.is_down) == (1, 2, False)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("when_down", "cost", "expected"),
    [(WhenDown.CLOSED, 1, None), (WhenDown.OPEN, 1, True), (WhenDown.OPEN, 9, False)],
)
def test_the_operator_may_close_or_open_the_door_without_redis(
    when_down: WhenDown, cost: int, expected: bool | None
) -> None:
    async def scenario() -> None:
        keeper = LimitKeeper(Broken(), Clock(), when_down)
        verdict = None
        for n in range(9):
            verdict = await keeper.charge(Charge("a", "e", str(n), cost, 3))
        assert (verdict.is_admitted if verdict else None) == expected

    asyncio.run(scenario())


class Switched(RedisIndex):
    """Limits and index that are down until they are switched on."""

    is_on = False
    lookups = 0

    async def charge(self, charge: Charge) -> Verdict:
        raise StoreDownError("Redis: gone")

    async def accept(self, name: RequestName, acceptance: Acceptance) -> None:
        if not self.is_on:
            raise StoreDownError("Redis: gone")
        await super().accept(name, acceptance)

    async def lookup(self, name: RequestName) -> Entry | None:
        self.lookups += 1
        if not self.is_on:
            raise StoreDownError("Redis: gone")
        return await super().lookup(name)


def test_without_redis_requests_are_taken_and_indexed_when_it_is_back() -> None:
    async def scenario() -> None:
        switched = Switched(connect(EMBEDDED), "fairlane", 10.0)
        async with door(MemoryLog(Clock()), limits=switched, index=switched) as opened:
            answers = [await opened.post(endpoint="heavy") for _ in range(3)]
            assert [answer.status_code for answer in answers] == [202, 202, 429]
            request_id = answers[0].json()["id"]
            assert (await opened.get(request_id)).json()["state"] == "waiting"
            other = await opened.get("req_" + "a" * 26)
            assert (other.status_code, other.json()["reason"]) == (503, "unavailable")
            assert switched.lookups == 0  # left alone since the first charge failed
            switched.is_on = True
            name = RequestName("acme", request_id)
            await until(lambda: switched.lookup(name))
        await switched.close()

    asyncio.run(scenario())


def test_charges_that_fail_together_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Hung:
        async def charge(self, charge: Charge) -> Verdict:
            await asyncio.sleep(0)
            raise StoreDownError("Redis: hung")

    async def scenario() -> None:
        clock = Clock()
        keeper = LimitKeeper(Hung(), clock)
        for told in (1, 2):
            await asyncio.gather(*(keeper.charge(Charge("a", "e", str(n), 1, 9)) for n in range(8)))
            assert [r.getMessage() for r in caplog.records] == [
                "limits are degraded: Redis: hung"
            ] * told
            clock.value_ms += PAUSE_MS

    asyncio.run(scenario())
