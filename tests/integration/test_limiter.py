"""The limiter on a real Redis: gathered, forgotten scripts, expiry, greed."""

import asyncio
from secrets import token_hex

from adapters.redis import RedisIndex, RedisLimits, connect
from schemas.front import (
    CHARGE_TTL_MS,
    WAITING_TTL_MS,
    Acceptance,
    Admission,
    Charge,
    Ending,
    RequestName,
    StoreDownError,
    Terminal,
)
from schemas.records import End

PLACE = Acceptance("chat", "gold", "requests.gold", 0, 7, 1)
ENDED = Terminal("chat", End.SUCCEEDED, "results", 0, 3, size=4)


def charges(count: int, limit: int, tenant: str = "acme") -> list[Charge]:
    return [Charge(tenant, "chat", f"req_{n}", 1, limit) for n in range(count)]


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


def test_a_server_that_forgot_the_script_is_taught_it_again(redis_url: str) -> None:
    async def scenario() -> None:
        client = connect(redis_url)
        limits = RedisLimits(client, f"t{token_hex(4)}", timeout_s=10.0)
        assert (await limits.charge(Charge("a", "e", "1", 1, 5))).used == 1
        await client.script_flush()
        assert (await limits.charge(Charge("a", "e", "2", 1, 5))).used == 2
        await client.aclose()

    asyncio.run(scenario())


def test_every_key_is_tagged_with_its_tenant_and_expires(redis_url: str) -> None:
    async def scenario() -> None:
        client, prefix = connect(redis_url), f"t{token_hex(4)}"
        limits = RedisLimits(client, prefix, timeout_s=10.0)
        index = RedisIndex(client, prefix, 10.0)
        for tenant in ("acme", "bolt"):
            for charge in charges(3, 2, tenant):
                await limits.charge(charge)
            await index.accept(RequestName(tenant, "req_1"), PLACE)
            await index.finish([Ending(RequestName(tenant, "req_2"), ENDED, b"1234")])
        keys = [key.decode() async for key in client.scan_iter(f"{prefix}:*")]
        assert len(keys) == 2 * (1 + 2 + 2)
        for key in keys:
            assert key.startswith((f"{prefix}:{{acme}}:", f"{prefix}:{{bolt}}:"))
            longest_ms = WAITING_TTL_MS if ":request:" in key else CHARGE_TTL_MS
            assert 0 < await client.pttl(key) <= longest_ms
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
