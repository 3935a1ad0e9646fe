"""One idempotency key is one request: at once, later, and with another body."""

import asyncio
import json
from base64 import b32encode
from collections.abc import Awaitable, Callable
from hashlib import blake2b

import pytest

from adapters.memory import MemoryLog
from producers.core import ids
from schemas.log import Record
from tests.support.door import Clock, Door, door, until
from tests.support.sick import SickProducer

Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock())) as opened:
            await scenario(opened)

    asyncio.run(with_door())


def published(opened: Door) -> list[Record]:
    return opened.records(opened.topics.requests("gold"))


def test_simultaneous_copies_are_published_and_charged_once() -> None:
    async def scenario(opened: Door) -> None:
        posts = (opened.post(key="order-7", endpoint="heavy") for _ in range(20))
        answers = await asyncio.gather(*posts)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len(published(opened)) == 1
        # Charged once: a second request of cost 4 still fits into the limit of 10.
        assert (await opened.post(endpoint="heavy")).status_code == 202

    play(scenario)


def test_a_key_with_another_body_is_refused_at_once_and_later() -> None:
    async def scenario(opened: Door) -> None:
        both = await asyncio.gather(
            opened.post(key="k", input=1), opened.post(key="k", endpoint="heavy", input=1)
        )
        assert sorted(answer.status_code for answer in both) == [202, 422]
        later = await opened.post(key="k", input=2)
        assert (later.status_code, later.json()["reason"]) == (422, "key_reused")
        assert "this key belongs to another request" in later.json()["detail"]
        assert (await opened.post(key="k", input=1)).status_code == 202
        assert [json.loads(record.value) for record in published(opened)] == [1]

    play(scenario)


def test_an_entry_without_a_digest_takes_any_body() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post(key="k")).json()["id"]
        name = f"fairlane:{{acme}}:request:{request_id}"
        stored = json.loads(await opened.redis.hget(name, "accepted") or b"")
        del stored["digest"]
        await opened.redis.hset(name, "accepted", json.dumps(stored))
        assert (await opened.post(key="k", input="other")).json()["id"] == request_id

    play(scenario)


def test_a_caller_that_goes_away_ends_no_copys_submission() -> None:
    async def scenario(opened: Door) -> None:
        publisher, producer = opened.ingress._publisher, SickProducer()
        healthy, publisher._producer = publisher._producer, producer
        calls = [asyncio.create_task(opened.post(key="k")) for _ in range(2)]
        await until(lambda: producer.reports)
        calls[0].cancel()
        producer.reports[0](0, None)
        assert (await calls[1]).status_code == 202
        assert len(producer.reports) == 1
        assert opened.ingress._flights._under_way == {}
        publisher._producer = healthy

    play(scenario)


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("order-7", "order-7"),
        ('"order-7"', "order-7"),
        ('  "order-7" ', "order-7"),
        (r'"a\"b\\c"', r'a"b\c'),
        (r'a"b\c', r'a"b\c'),
        ("k" * ids.KEY_CHARS_MAX, "k" * ids.KEY_CHARS_MAX),
        ("k" * (ids.KEY_CHARS_MAX + 1), None),
        ("", None),
        ('""', None),
        ('"', None),
        ('"open', None),
        ('"two" "keys"', None),
        (r'"bad \n escape"', None),
        ("two words", None),
        ("k\xe9y", None),
    ],
)
def test_a_key_is_read_quoted_or_bare(field: str, key: str | None) -> None:
    assert ids.idempotency_key(field) == key


def test_an_id_is_the_hash_in_lower_case_base_32() -> None:
    for number in range(50):
        hashed = blake2b(digest_size=16)
        for part in ("acme", ids.ROUTE, str(number)):
            hashed.update(len(part).to_bytes(4) + part.encode())
        expected = b32encode(hashed.digest()).decode().rstrip("=").lower()
        assert ids.request_id("acme", ids.ROUTE, str(number)) == f"req_{expected}"
