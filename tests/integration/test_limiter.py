"""The limiter on a real Redis: the contract, several ingresses, lost scripts, a cluster."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from adapters.redis import RedisIndex, connect
from adapters.redis_limits import RedisLimits
from schemas.front import (
    CHARGE_TTL_MS,
    INGRESS_TTL_MS,
    OPEN_CHARGE_TTL_MS,
    WAITING_TTL_MS,
    Acceptance,
    Admission,
    Charge,
    Ending,
    MonthUse,
    RequestName,
    Settlement,
    StoreDownError,
    Terminal,
)
from schemas.policy import Allowance
from schemas.records import End
from tests.property.test_limits import CALLS, STARTS, Call, expected, playing
from tests.support.limits import with_script
from tests.support.oracle_limits import next_month_ms
from tests.support.redis_alone import RedisAlone, redis_alone

PLACE = Acceptance("chat", "gold", "requests.gold", 0, 7, 1)
ENDED = Terminal("chat", End.SUCCEEDED, "results", 0, 3, size=4)
MONTH_MS = 31 * 86_400_000


def charges(count: int, limit: int, tenant: str = "acme") -> list[Charge]:
    allowance = Allowance(limit, requests_per_month=10_000)
    return [Charge(tenant, "chat", f"req_{n}", 1, 10, allowance) for n in range(count)]


@settings(max_examples=40)
@given(st.sampled_from(STARTS), CALLS)
def test_the_script_does_what_the_list_does(
    redis_url: str, start_ms: int, played: list[Call]
) -> None:
    answers = with_script(playing(start_ms, played), redis_url, f"t{token_hex(8)}")
    assert answers == expected(start_ms, played)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisAlone]:
    with redis_alone(tmp_path_factory.mktemp("cluster"), is_cluster=True) as alone:
        yield alone


@settings(max_examples=15)
@given(st.sampled_from(STARTS), CALLS)
def test_a_cluster_takes_every_call(cluster: RedisAlone, start_ms: int, played: list[Call]) -> None:
    answers = with_script(
        playing(start_ms, played), cluster.url, f"t{token_hex(8)}", is_cluster=True
    )
    assert answers == expected(start_ms, played)


def test_on_a_cluster_one_call_carries_one_family(cluster: RedisAlone) -> None:
    async def scenario() -> None:
        client, prefix = Redis.from_url(cluster.url), f"t{token_hex(4)}"
        limits = RedisLimits(client, prefix, timeout_s=10.0, is_cluster=True)
        both = [c for pair in zip(charges(9, 5), charges(9, 5, "bolt"), strict=True) for c in pair]
        verdicts = await asyncio.gather(*map(limits.charge, both))
        assert [v.is_admitted for v in verdicts] == [True] * 10 + [False] * 8
        together = RedisLimits(client, prefix, timeout_s=10.0)
        mixed = [Charge(f"t{n}", "chat", "req", 1, 1, Allowance(5)) for n in range(20)]
        refused = await asyncio.gather(*map(together.charge, mixed), return_exceptions=True)
        assert all("slot" in str(error) for error in refused)
        assert all(v.is_admitted for v in await asyncio.gather(*map(limits.charge, mixed)))
        await client.aclose()

    asyncio.run(scenario())


def test_concurrent_charges_of_two_front_doors_never_exceed_the_limit(redis_url: str) -> None:
    async def scenario() -> None:
        prefix = f"t{token_hex(4)}"
        clients = [connect(redis_url) for _ in range(2)]
        doors = [RedisLimits(client, prefix, timeout_s=10.0) for client in clients]
        verdicts = await asyncio.gather(
            *(doors[n % 2].charge(charge) for n, charge in enumerate(charges(500, 120)))
        )
        assert sum(v.admission is Admission.CHARGED for v in verdicts) == 120
        again = await asyncio.gather(*(doors[0].charge(c) for c in charges(500, 120)))
        assert sum(v.admission is Admission.REPEATED for v in again) == 120
        refused = next(v for v in again if v.admission is Admission.REFUSED)
        assert 55_000 < refused.retry_ms <= 65_000
        for client in clients:
            await client.aclose()

    asyncio.run(scenario())


def test_the_first_to_come_of_each_family_are_let_in(redis_url: str) -> None:
    """Several calls are under way at a time; the charges of one family keep their order."""

    async def scenario() -> None:
        client = connect(redis_url)
        limits = RedisLimits(client, f"t{token_hex(4)}", timeout_s=10.0)
        names = [f"tenant{n}" for n in range(6)]
        queues = [charges(90, 50, name) for name in names]
        asked = [charge for rank in zip(*queues, strict=True) for charge in rank]
        verdicts = await asyncio.gather(*map(limits.charge, asked))
        assert [v.is_admitted for v in verdicts] == [True] * 300 + [False] * 240
        await client.aclose()

    asyncio.run(scenario())


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.integers(0, 4_000), st.lists(st.integers(1, 9), min_size=1, max_size=40)),
        min_size=20,
        max_size=40,
    )
)
def test_greedy_clients_of_several_ingresses_get_the_limit_in_any_minute(
    redis_url: str, waves: list[tuple[int, list[int]]]
) -> None:
    """All at once, at each of the times; requests and tokens, of two children of one parent."""

    async def scenario() -> None:
        client, prefix = connect(redis_url), f"t{token_hex(8)}"
        ingresses = [RedisLimits(client, prefix, timeout_s=10.0) for _ in range(3)]
        allowance, above = Allowance(40, 150), Allowance(60, 200)
        taken: list[tuple[int, Charge]] = []
        numbers, now_ms = itertools.count(), 1_800_000_000_000
        for pause_ms, costs in waves:
            now_ms += pause_ms
            asked = [
                Charge(
                    f"child{n % 2}", "chat", f"r{next(numbers)}", c, c * 3, allowance, "root", above
                )
                for n, c in enumerate(costs)
            ]
            for ingress in ingresses:
                ingress.now_override_ms = str(now_ms)
            verdicts = await asyncio.gather(
                *(ingresses[n % 3].charge(charge) for n, charge in enumerate(asked))
            )
            taken += [(now_ms, c) for c, v in zip(asked, verdicts, strict=True) if v.is_admitted]
        for start_ms, _ in taken:
            inside = [c for time_ms, c in taken if start_ms <= time_ms < start_ms + 60_000]
            assert sum(charge.requests for charge in inside) <= 60
            assert sum(charge.tokens for charge in inside) <= 200
            for child in ("child0", "child1"):
                own = [charge for charge in inside if charge.tenant == child]
                assert sum(charge.requests for charge in own) <= 40
                assert sum(charge.tokens for charge in own) <= 150
        assert taken
        await client.aclose()

    asyncio.run(scenario())


def test_lost_months_are_restored(redis_url: str) -> None:
    async def scenario() -> None:
        client = connect(redis_url)
        limits = RedisLimits(client, f"t{token_hex(4)}", str(STARTS[0]), timeout_s=10.0)
        (charge,) = charges(1, 5)
        end_ms = next_month_ms(STARTS[0])
        assert await limits.restore([MonthUse("acme", "chat", end_ms, 9_999, 0)]) == 1
        used = {state.name: state.used for state in (await limits.charge(charge)).states}
        assert used == {"requests/minute": 1, "requests/month": 10_000}
        refused = await limits.charge(charge._replace(id="x"))
        assert (refused.refused_by, refused.retry_ms) == ("requests/month", end_ms - STARTS[0])
        await client.aclose()

    asyncio.run(scenario())


def test_a_server_that_forgot_the_script_is_taught_it_again(redis_url: str) -> None:
    async def scenario() -> None:
        client = connect(redis_url)
        limits = RedisLimits(client, f"t{token_hex(4)}", timeout_s=10.0)
        one, two = (Charge("a", "e", name, 1, 1, Allowance(5)) for name in "12")
        assert (await limits.charge(one)).decisive.used == 1
        await client.script_flush()
        assert (await limits.charge(two)).decisive.used == 2
        await client.aclose()

    asyncio.run(scenario())


def test_a_server_that_was_started_anew_goes_unnoticed(tmp_path: Path) -> None:
    """The script is gone, and so is the connection: the same call still answers."""

    async def scenario(alone: RedisAlone) -> None:
        client = connect(alone.url)
        limits = RedisLimits(client, "t", timeout_s=10.0)
        for number in range(3):
            charge = Charge("a", "e", str(number), 1, 1, Allowance(5))
            assert (await limits.charge(charge)).decisive.used == 1
            await asyncio.to_thread(alone.restart)
        await client.aclose()

    with redis_alone(tmp_path) as alone:
        asyncio.run(scenario(alone))


def test_a_master_that_became_a_replica_is_left_for_whoever_has_its_name(tmp_path: Path) -> None:
    """After a fail-over the old one may live on; only a new connection finds the new one."""

    async def scenario(alone: RedisAlone) -> None:
        client, other = connect(alone.url), connect(alone.url)
        limits = RedisLimits(client, "t", timeout_s=10.0)
        await limits.charge(Charge("a", "e", "1", 1, 1, Allowance(5)))
        before = {line["id"] for line in await other.client_list()}
        await other.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreDownError):
            await limits.charge(Charge("a", "e", "2", 1, 1, Allowance(5)))
        mine = {str(await other.client_id())}
        assert {line["id"] for line in await other.client_list()} & before == mine
        await client.aclose()
        await other.aclose()

    with redis_alone(tmp_path) as alone:
        asyncio.run(scenario(alone))


def test_every_key_is_tagged_with_its_family_and_expires(redis_url: str) -> None:
    async def scenario() -> None:
        client, prefix = connect(redis_url), f"t{token_hex(4)}"
        limits = RedisLimits(client, prefix, timeout_s=10.0)
        index = RedisIndex(client, prefix, 10.0)
        for tenant in ("acme", "bolt"):
            for charge in charges(3, 2, tenant):
                await limits.charge(charge)
            await index.accept(RequestName(tenant, "req_1"), PLACE)
            await index.finish([Ending(RequestName(tenant, "req_2"), ENDED, b"1234")])
        child = Charge("kid", "chat", "req_1", 1, 9, Allowance(5, 50), "acme", Allowance(5, 50))
        await limits.charge(child)
        await limits.charge(child._replace(id="req_2"))
        await limits.settle([Settlement("kid", "chat", "req_2", 3, "acme")])
        keys = [key.decode() async for key in client.scan_iter(f"{prefix}:*")]
        limited = {key for key in keys if ":request" not in key}
        assert limited == {
            f"{prefix}:{{acme}}:limit:acme:chat",
            f"{prefix}:{{acme}}:limit:kid:chat",
            f"{prefix}:{{bolt}}:limit:bolt:chat",
            *(
                f"{prefix}:{{{root}}}:charge:{tenant}:chat:req_{n}"
                for root, tenant, n in (
                    *(("acme", "acme", n) for n in range(2)),
                    *(("bolt", "bolt", n) for n in range(2)),
                    ("acme", "kid", 1),
                    ("acme", "kid", 2),
                )
            ),
        }
        for key in keys:
            ttl_ms = await client.pttl(key)
            if ":request" in key:  # entries, and the list of them
                assert 0 < ttl_ms <= WAITING_TTL_MS
            elif ":limit:" in key:
                assert CHARGE_TTL_MS < ttl_ms + 5_000 <= MONTH_MS + CHARGE_TTL_MS
            else:
                is_open = not key.endswith("kid:chat:req_2")  # which is settled
                most_ms = OPEN_CHARGE_TTL_MS if is_open else CHARGE_TTL_MS
                assert most_ms - 60_000 < ttl_ms <= most_ms
        await client.aclose()

    asyncio.run(scenario())


def test_living_ingresses_are_counted_and_dead_ones_no_more(redis_url: str) -> None:
    async def scenario() -> None:
        client, prefix = connect(redis_url), f"t{token_hex(4)}"
        limits = RedisLimits(client, prefix, timeout_s=10.0)
        assert [await limits.announce(name) for name in ("a", "b", "a", "c")] == [1, 2, 2, 3]
        key = f"{prefix}:ingresses"
        assert 0 < await client.pttl(key) <= INGRESS_TTL_MS
        await client.zadd(key, {"b": time.time_ns() // 1_000_000 - 1})
        assert await limits.announce("a") == 2
        await client.aclose()

    asyncio.run(scenario())


def test_index_halves_never_overwrite_each_other_in_either_order(redis_url: str) -> None:
    async def scenario() -> None:
        client = connect(redis_url)
        index = RedisIndex(client, f"t{token_hex(4)}", 10.0)
        late, early = RequestName("acme", "req_late"), RequestName("acme", "req_early")
        other = Acceptance("chat", "gold", "requests.gold", 0, 99, 2)
        await index.accept(late, PLACE)
        await index.finish([Ending(late, ENDED, b"1234"), Ending(early, ENDED, b"1234")])
        await index.finish([Ending(late, ENDED, b"5678")])
        await index.accept(early, PLACE)
        await index.accept(early, other)
        entries = await index.lookup_all([late, early, RequestName("bolt", "req_late")])
        assert entries[2] is None
        for entry in entries[:2]:
            assert entry is not None
            assert (entry.acceptance, entry.terminal, entry.body) == (PLACE, ENDED, b"1234")
        await client.aclose()

    asyncio.run(scenario())


def test_nobody_at_the_address_is_a_store_that_is_down() -> None:
    async def scenario() -> None:
        client = connect("redis://127.0.0.1:1/0")
        limits, index = RedisLimits(client, "t"), RedisIndex(client, "t")
        answers = await asyncio.gather(
            *(limits.charge(charge) for charge in charges(5, 5)),
            limits.refund(charges(1, 5)[0]),
            limits.settle([Settlement("a", "b", "c", 1)]),
            limits.announce("a"),
            index.lookup(RequestName("a", "b")),
            index.accept(RequestName("a", "b"), PLACE),
            index.finish([Ending(RequestName("a", "b"), ENDED, None)]),
            return_exceptions=True,
        )
        assert all(isinstance(answer, StoreDownError) for answer in answers)
        assert not await index.is_up()
        await client.aclose()

    asyncio.run(scenario())


def test_a_server_that_accepts_but_never_answers_is_down_too() -> None:
    async def scenario() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = connect(f"redis://127.0.0.1:{port}/0")
        answers = await asyncio.gather(
            *(RedisLimits(client, "t").charge(charge) for charge in charges(3, 5)),
            return_exceptions=True,
        )
        assert all(isinstance(answer, StoreDownError) for answer in answers)
        await client.aclose()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
