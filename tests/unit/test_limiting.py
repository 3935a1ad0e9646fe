"""The limits as the door uses them while Redis is away, and what it gives back."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from adapters.memory import MemoryLog
from adapters.metrics import PrometheusMeter
from adapters.redis import EMBEDDED, RedisIndex, connect
from producers.core.breaker import Breaker
from producers.core.local import Amount
from producers.core.shares import shared
from producers.directory import View
from producers.limiting import ANNOUNCE_MS, PAUSE_MS, LimitKeeper, Settler, WhenDown
from producers.publisher import PUBLISH_TIMEOUT_S, Publisher
from schemas import codec
from schemas.front import (
    SLOT_MS,
    SLOTS,
    Acceptance,
    Admission,
    Charge,
    Ending,
    Entry,
    LimitState,
    RequestName,
    Settlement,
    StoreDownError,
    Terminal,
    Verdict,
)
from schemas.log import LogError, TooLargeError, UnavailableError
from schemas.policy import Allowance, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import End, Request, Usage
from tests.support.door import Clock, Door, door, until
from tests.support.sick import SickProducer


def one(charge_id: str, cost: int = 1, limit: int = 3) -> Charge:
    return Charge("a", "e", charge_id, cost, 0, Allowance(limit))


class Broken:
    """Limits that are down until they are mended."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_mended = False
        self.living = 1

    def _call(self) -> None:
        self.calls += 1
        if not self.is_mended:
            raise StoreDownError("Redis: gone")

    async def charge(self, charge: Charge) -> Verdict:
        self._call()
        return Verdict(Admission.CHARGED, (LimitState("requests/minute", 3, 1, 2, 60, 65),))

    async def refund(self, charge: Charge) -> bool:
        self._call()
        return True

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        self._call()
        return len(settlements)

    async def announce(self, name: str) -> int:
        self._call()
        return self.living


def test_without_redis_the_same_limit_is_counted_here_and_redis_is_left_alone() -> None:
    async def scenario() -> None:
        broken, clock = Broken(), Clock()
        keeper = LimitKeeper(broken, clock)
        verdicts = [await keeper.charge(one(str(n), 1, 3)) for n in range(5)]
        assert [v.is_admitted for v in verdicts if v] == [True, True, True, False, False]
        assert (broken.calls, keeper.is_down) == (1, True)
        clock.value_ms += SLOTS * SLOT_MS
        broken.is_mended = True
        verdict = await keeper.charge(one("x", 1, 3))
        assert verdict is not None
        assert (verdict.decisive.used, broken.calls, keeper.is_down) == (1, 2, False)

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
            verdict = await keeper.charge(one(str(n), cost, 3))
        assert (verdict.is_admitted if verdict else None) == expected

    asyncio.run(scenario())


class Switched(RedisIndex):
    """Limits and index that are down until they are switched on."""

    is_on = False
    lookups = 0

    async def charge(self, charge: Charge) -> Verdict:
        raise StoreDownError("Redis: gone")

    async def refund(self, charge: Charge) -> bool:
        raise StoreDownError("Redis: gone")

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        raise StoreDownError("Redis: gone")

    async def announce(self, name: str) -> int:
        if not self.is_on:
            raise StoreDownError("Redis: gone")
        return 1

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


def test_what_may_wait_unindexed_is_not_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producers.intake.UNINDEXED_MAX", 1)

    async def scenario() -> None:
        switched = Switched(connect(EMBEDDED), "fairlane", 10.0)
        async with door(MemoryLog(Clock()), limits=switched, index=switched) as opened:
            kept = (await opened.post()).json()["id"]
            assert (await opened.post()).status_code == 202
            unknown = "req_" + "a" * 26
            switched.is_on = True
            opened.clock.value_ms += PAUSE_MS
            await until(lambda: not opened.ingress._keeper.is_down)
            await until(lambda: not opened.ingress._intake.unindexed)
            assert (await opened.get(kept)).status_code == 200
            early = await opened.get(unknown)
            assert "may wait and not be in the index" in early.json()["detail"]
            opened.clock.value_ms += Endpoint(name="", pool="").wait_ms_max
            late = await opened.get(unknown)
            assert late.status_code == 404, late.text
        await switched.close()

    asyncio.run(scenario())


def test_charges_that_fail_together_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Hung(Broken):
        async def charge(self, charge: Charge) -> Verdict:
            await asyncio.sleep(0)
            raise StoreDownError("Redis: hung")

    async def scenario() -> None:
        clock = Clock()
        keeper = LimitKeeper(Hung(), clock)
        for _ in range(2):
            await asyncio.gather(*(keeper.charge(one(str(n), 1, 9)) for n in range(8)))
            told = [r.getMessage() for r in caplog.records]
            assert told == ["limits are degraded: Redis: hung"]
            clock.value_ms += PAUSE_MS

    asyncio.run(scenario())


def test_after_a_pause_one_caller_tries_and_the_others_go_on_without() -> None:
    async def scenario() -> None:
        clock, gate, asked = Clock(), asyncio.Event(), list[str]()

        class Slow(Broken):
            async def charge(self, charge: Charge) -> Verdict:
                asked.append(charge.id)
                if charge.id != "first":
                    await gate.wait()
                return await super().charge(charge)

        slow = Slow()
        keeper = LimitKeeper(slow, clock)
        await keeper.charge(one("first"))
        clock.value_ms += PAUSE_MS
        trial = asyncio.create_task(keeper.charge(one("trial")))
        await asyncio.sleep(0)
        local = [await keeper.charge(one(f"other{n}")) for n in range(3)]
        assert asked == ["first", "trial"]
        assert [v.is_admitted for v in local if v] == [True, True, False]
        slow.is_mended = True
        gate.set()
        assert await trial
        assert not keeper.is_down
        await keeper.charge(one("next"))
        assert asked == ["first", "trial", "next"]

    asyncio.run(scenario())


def test_a_trial_that_is_given_up_leaves_the_trying_to_another() -> None:
    breaker = Breaker(100)
    assert breaker.may_ask(0)
    assert breaker.failed(0)
    assert not breaker.may_ask(99)
    assert breaker.may_ask(100)
    assert not breaker.may_ask(100)
    breaker.gave_up()
    assert breaker.may_ask(100)
    assert breaker.answered()
    assert not breaker.is_open


def test_the_tick_finds_out_that_redis_is_back_and_how_many_ingresses_live() -> None:
    async def scenario() -> None:
        broken, clock = Broken(), Clock()
        keeper = LimitKeeper(broken, clock, name="here")
        broken.is_mended, broken.living = True, 4
        await keeper.turn()
        await keeper.turn()
        assert (broken.calls, keeper.ingresses) == (1, 4)
        broken.is_mended = False
        clock.value_ms += ANNOUNCE_MS
        await keeper.turn()
        assert (keeper.is_down, keeper.ingresses) == (True, 4)
        verdicts = [await keeper.charge(one(str(n), limit=8)) for n in range(3)]
        assert [v.is_admitted for v in verdicts if v] == [True, True, False]
        clock.value_ms += PAUSE_MS
        broken.is_mended = True
        await keeper.turn()
        assert not keeper.is_down

    asyncio.run(scenario())


def test_shares_sum_up_to_the_limit_and_let_each_cost_in_that_fits_it() -> None:
    charge = one("a", cost=2, limit=100)
    assert shared(charge, 1) == charge
    assert [shared(charge, n).allowance.requests_per_minute for n in (2, 3, 7)] == [50, 33, 14]
    small = one("a", cost=2, limit=5)
    assert shared(small, 4).allowance.requests_per_minute == 2
    assert shared(one("a", cost=9, limit=5), 4).allowance.requests_per_minute == 5
    assert shared(one("a", cost=1, limit=0), 4).allowance.requests_per_minute == 0


LIMITED = Policy(
    tiers=(Tier(name="gold"),),
    pools=(Pool(name="chat"), Pool(name="free"), Pool(name="monthly")),
    endpoints=(
        Endpoint(name="chat", pool="chat", weight=2, requests_per_minute=9, tokens_per_minute=500),
        Endpoint(name="free", pool="free"),
        Endpoint(name="monthly", pool="monthly", requests_per_month=9),
    ),
    tenants=(
        Tenant(name="acme", tiers=("gold",)),
        Tenant(name="bolt", tiers=("gold",), parent="acme", tokens_per_minute={"free": 9}),
    ),
)


def test_only_what_is_charged_until_its_end_is_settled() -> None:
    async def scenario() -> None:
        told: list[Settlement] = []

        class Limits(Broken):
            async def settle(self, settlements: Sequence[Settlement]) -> int:
                told.extend(settlements)
                return len(settlements)

        def ending(tenant: str, endpoint: str, end: End, tokens: int) -> Ending:
            terminal = Terminal(endpoint, end, "results", 0, 0, usage=Usage(tokens, tokens))
            return Ending(RequestName(tenant, "req"), terminal, b"")

        view = View(LIMITED, {tenant.name: tenant for tenant in LIMITED.tenants})
        endings = [
            ending("acme", "chat", End.SUCCEEDED, 7),
            ending("bolt", "chat", End.SUCCEEDED, 0),
            ending("bolt", "free", End.EXPIRED, 0),
            ending("acme", "free", End.SUCCEEDED, 7),
            ending("acme", "monthly", End.SUCCEEDED, 7),
            ending("gone", "chat", End.SUCCEEDED, 7),
            ending("acme", "gone", End.SUCCEEDED, 7),
        ]
        await Settler(Limits(), lambda: view).settle(endings)
        assert told == [
            Settlement("acme", "chat", "req", 14),
            Settlement("bolt", "chat", "req", None, "acme"),
            Settlement("bolt", "free", "req", 0, "acme"),
            Settlement("acme", "monthly", "req", 14),
        ]
        with pytest.raises(StoreDownError):
            await Settler(Limits(), lambda: None).settle(endings)

    asyncio.run(scenario())


async def counted(opened: Door) -> Amount:
    """What stands in the counters of acme at chat, for this minute."""
    head = await opened.redis.hget("fairlane:{acme}:limit:acme:chat", "head")
    assert head is not None
    _, _, _, requests, tokens, *_ = map(int, head.split())
    return Amount(requests, tokens)


@pytest.mark.parametrize(
    ("error", "used"),
    [(TooLargeError("big"), 2), (UnavailableError("full"), 2), (LogError("in doubt"), 4)],
)
def test_what_is_certainly_not_in_the_log_is_not_paid_for(
    error: LogError, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with door(MemoryLog(Clock()), policy=LIMITED) as opened:

            async def failing(*_: object, **__: object) -> int:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(Publisher, "publish", failing)
                assert (await opened.post()).status_code in {413, 503}
            refused = await opened.post(max_output_tokens=300)
            said = refused.json()
            assert (said["reason"], said["limit_name"]) == ("never_fits", "tokens/minute")
            assert (await opened.post()).status_code == 202
            assert (await counted(opened)).requests == used

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "is_sent_again", "used"),
    [
        (UnavailableError("gone"), False, 2),
        (UnavailableError("gone"), True, 4),
        (LogError(), False, 4),
    ],
)
def test_a_doubt_that_ends_outside_of_the_log_is_not_paid_for(
    error: LogError, used: int, *, is_sent_again: bool
) -> None:
    """Not if it was sent again meanwhile: then the second is in the log, not charged."""

    async def scenario() -> None:
        async with door(MemoryLog(Clock()), policy=LIMITED) as opened:
            publisher, producer = opened.ingress._publisher, SickProducer()
            healthy, publisher._producer = publisher._producer, producer
            publisher._timeout_s = 0.02
            assert (await opened.post(key="k")).json()["reason"] == "in_doubt"
            publisher._producer, publisher._timeout_s = healthy, PUBLISH_TIMEOUT_S
            if is_sent_again:
                assert (await opened.post(key="k")).status_code == 202
            producer.reports[0](None, error)
            other = await opened.post(endpoint="chat")  # after the report, in the loop's order
            await opened.ingress._keeper.turn()
            assert other.status_code == 202
            assert (await counted(opened)).requests == used

    asyncio.run(scenario())


def test_results_settle_what_the_door_estimated() -> None:
    async def scenario() -> None:
        async with door(MemoryLog(Clock()), policy=LIMITED) as opened:
            first = await opened.post(max_output_tokens=200)
            assert first.status_code == 202
            refused = await opened.post(max_output_tokens=200)
            said = refused.json()
            assert (refused.status_code, said["limit_name"], said["used"]) == (
                429,
                "tokens/minute",
                402,
            )
            opened.finish(first.json()["id"])  # 3 tokens in, 5 out

            async def is_settled() -> bool:
                return (await counted(opened)).tokens == 16

            await until(is_settled)
            assert (await opened.post(max_output_tokens=200)).status_code == 202

    asyncio.run(scenario())


def test_an_output_without_a_maximum_takes_the_endpoints_default() -> None:
    """Otherwise its true tokens may come when their minute is over, and count nowhere."""
    chat = structs.replace(LIMITED.endpoints[0], output_tokens_default=100)
    policy = structs.replace(LIMITED, endpoints=(chat, *LIMITED.endpoints[1:]))

    async def scenario() -> None:
        async with door(MemoryLog(Clock()), policy=policy) as opened:
            assert (await opened.post()).status_code == 202
            assert (await counted(opened)).tokens == 2 * (1 + 100)
            assert (await opened.post(max_output_tokens=9)).status_code == 202
            assert (await counted(opened)).tokens == 2 * (1 + 100) + 2 * (1 + 9)
            [request] = [
                codec.decode_header(record, Request)
                for record in opened.records(opened.topics.requests("gold"))
            ][:1]
            assert request.output_tokens_max == 0  # nobody is told to write less

    asyncio.run(scenario())


def test_a_childs_requests_count_for_its_parent_at_the_door() -> None:
    async def scenario() -> None:
        async with door(MemoryLog(Clock()), policy=LIMITED) as opened:
            assert (await opened.post("bolt", max_output_tokens=150)).status_code == 202
            refused = await opened.post("acme", max_output_tokens=150)
            said = refused.json()
            assert (refused.status_code, said["limit_name"], said["used"]) == (
                429,
                "tokens/minute",
                302,
            )
            assert "for all" not in said["detail"]
            child = await opened.post("bolt", max_output_tokens=150)
            assert child.json()["detail"] == (
                "302 of 500 tokens/minute at 'chat' are used, the request costs 302"
            )
            assert (await opened.post("acme")).status_code == 202
            shared_out = await opened.post("bolt", max_output_tokens=98)
            assert shared_out.json()["detail"] == (
                "304 of 500 tokens/minute at 'chat' for all of 'acme' are used, the request costs "
                "198"
            )

    asyncio.run(scenario())


def test_limits_in_shadow_and_charges_without_redis_are_counted() -> None:
    async def scenario() -> None:
        broken, clock, meter = Broken(), Clock(), PrometheusMeter()
        keeper = LimitKeeper(broken, clock, meter=meter)
        tried = Allowance(9, requests_per_month=2, shadow=("requests_per_month",))
        for number in range(4):
            verdict = await keeper.charge(Charge("a", "e", str(number), 1, 0, tried))
            assert verdict is not None
            assert verdict.is_admitted
        assert (
            meter.value("ingress_shadow_refusals_total", kind="requests/month", endpoint="e") == 2
        )
        assert meter.value("ingress_charges_without_redis_total", kind="degraded") == 4

    asyncio.run(scenario())
