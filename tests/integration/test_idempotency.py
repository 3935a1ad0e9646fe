"""One idempotency key is one request, whichever ingress a copy comes to; on a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex

import httpx

from adapters.memory import MemoryLog
from producers.publisher import PUBLISH_TIMEOUT_S
from schemas.front import CLAIM_MS
from schemas.log import Record
from tests.support.door import Clock, Door, door, until
from tests.support.sick import SickProducer

Scenario = Callable[[Door, Door], Awaitable[None]]


def play(scenario: Scenario, redis: str) -> None:
    """Two ingresses of one deployment."""

    async def with_doors() -> None:
        log, prefix = MemoryLog(Clock()), f"t{token_hex(4)}"
        async with (
            door(log, redis_url=redis, prefix=prefix) as first,
            door(log, redis_url=redis, prefix=prefix, seed=2) as second,
        ):
            await scenario(first, second)

    asyncio.run(with_doors())


def published(opened: Door) -> list[Record]:
    return opened.records(opened.topics.requests("gold"))


@asynccontextmanager
async def unfinished(opened: Door, key: str) -> AsyncIterator[SickProducer]:
    """A POST whose record the log has not confirmed; its ingress is as good as dead."""
    publisher, producer = opened.ingress._publisher, SickProducer()
    healthy, publisher._producer = publisher._producer, producer
    post = asyncio.create_task(opened.post(key=key))
    await until(lambda: producer.reports)
    try:
        yield producer
    finally:
        post.cancel()
        await asyncio.wait((post,))
        publisher._producer = healthy


async def seen(opened: Door, answers: list[int], **post: object) -> httpx.Response:
    """POST again and again until one of these statuses is the answer."""
    found: list[httpx.Response] = []

    async def is_there() -> bool:
        found.append(await opened.post(**post))  # type: ignore[arg-type]
        return found[-1].status_code in answers

    await until(is_there)
    return found[-1]


def test_a_copy_elsewhere_is_told_of_the_first_one_until_that_is_finished(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        publisher, producer = first.ingress._publisher, SickProducer()
        healthy, publisher._producer = publisher._producer, producer
        post = asyncio.create_task(first.post(key="k"))
        await until(lambda: producer.reports)
        copy = await second.post(key="k")
        assert (copy.status_code, copy.json()["reason"]) == (409, "unfinished")
        assert (copy.headers["retry-after"], copy.json()["retry"]) == ("1", "later")
        other = await second.post(key="k", input="other")
        assert (other.status_code, other.json()["reason"]) == (422, "key_reused")
        producer.reports[0](7, None)
        accepted = await post
        later = await second.post(key='"k"')
        assert (accepted.status_code, later.status_code) == (202, 202)
        assert later.json() == accepted.json()
        assert len(producer.reports) == 1
        assert published(second) == []
        publisher._producer = healthy

    play(scenario, redis_url)


def test_a_first_one_that_dies_holds_its_key_for_a_moment_only(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        assert CLAIM_MS < PUBLISH_TIMEOUT_S * 1_000
        async with unfinished(first, "k"):
            assert (await second.post(key="k")).status_code == 409
            answer = await seen(second, [202], key="k")
            assert (await second.post(key="k")).json() == answer.json()
            assert (await second.post(key="k", input="other")).status_code == 422
        assert len(published(second)) == 1

    play(scenario, redis_url)


def test_a_key_stays_its_bodys_after_a_first_one_that_died(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        async with unfinished(first, "k"):
            # Perhaps it is in the log: another body could be taken for it there.
            name = await first.redis.keys(f"{first.topics.prefix}:*:request:*")
            stored = str(await first.redis.hget(name[0], "claim"), "ascii")  # type: ignore[arg-type]
            await first.redis.hset(name[0], "claim", " ".join(["1", *stored.split()[1:]]))
            assert (await second.post(key="k", input="other")).status_code == 422
            assert (await second.post(key="k")).status_code == 202

    play(scenario, redis_url)


def test_a_refused_first_one_leaves_its_key_free_for_any_body(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        for _ in range(2):
            assert (await first.post(endpoint="heavy")).status_code == 202
        refused = await first.post(key="k", endpoint="heavy")
        assert refused.status_code == 429
        assert (await second.post(key="k", endpoint="heavy")).status_code == 429
        assert (await second.post(key="k", endpoint="free", input=1)).status_code == 202
        keys = await first.redis.keys(f"{first.topics.prefix}:*:request:*")
        assert len(keys) == 3  # a refusal leaves nothing behind

    play(scenario, redis_url)


def test_a_doubt_is_settled_at_once_by_the_same_body_and_by_no_other(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        publisher = first.ingress._publisher
        healthy, publisher._producer = publisher._producer, SickProducer()
        publisher._timeout_s = 0.02
        named, unnamed = await first.post(key="k"), await first.post(input="own")
        publisher._producer = healthy
        for doubted, text in ((named, "hello"), (unnamed, "own")):
            problem = doubted.json()
            assert (doubted.status_code, problem["reason"]) == (503, "in_doubt")
            key = problem["idempotency_key"]
            other = await second.post(key=key, input="other")
            assert (other.status_code, other.json()["reason"]) == (422, "key_reused")
            again = await second.post(key=key, input=text)
            assert (again.status_code, again.json()["id"]) == (202, problem["id"])

    play(scenario, redis_url)


def test_lines_of_a_bulk_call_hold_their_keys_as_single_calls_do(redis_url: str) -> None:
    async def scenario(first: Door, second: Door) -> None:
        publisher, producer = first.ingress._publisher, SickProducer()
        healthy, publisher._producer = publisher._producer, producer
        fields = {"endpoint": "chat", "input": "hello", "idempotency_key": "k"}
        bulk = asyncio.create_task(
            first.http.post(
                "/v1/requests:bulk", content=json.dumps(fields), headers=first.bearer("acme")
            )
        )
        await until(lambda: producer.reports)
        assert (await second.post(key="k")).status_code == 409
        producer.reports[0](3, None)
        verdict = json.loads((await bulk).text)
        assert (await second.post(key="k")).json()["id"] == verdict["id"]
        publisher._producer = healthy

    play(scenario, redis_url)


def test_a_key_is_a_tenants_own_and_outlives_every_ingress(redis_url: str) -> None:
    log, prefix = MemoryLog(Clock()), f"t{token_hex(4)}"

    async def scenario() -> None:
        async with door(log, redis_url=redis_url, prefix=prefix) as opened:
            request_id = (await opened.post(key="k")).json()["id"]
            strangers = await opened.post("bolt", key="k", endpoint="free", input="other")
            assert strangers.status_code == 202
            assert strangers.json()["id"] != request_id
            opened.finish(request_id)
            assert (await opened.get(request_id, wait="30")).json()["state"] == "succeeded"
        async with door(log, redis_url=redis_url, prefix=prefix, seed=2) as opened:
            answer = await opened.post(key="k")
            assert answer.status_code == 202
            assert answer.json() == {"id": request_id, "state": "succeeded"}
            assert (await opened.post(key="k", input=2)).status_code == 422
            assert len(published(opened)) == 1

    asyncio.run(scenario())
