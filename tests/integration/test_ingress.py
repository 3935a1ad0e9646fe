"""The ingress on a real Kafka and a real Redis, through its HTTP door."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Any, cast

import msgspec

from adapters.kafka import KafkaLog
from fairlane.stack import Stack
from schemas import codec
from schemas.log import Commit, Partition, Reader
from schemas.policy import Topology
from schemas.records import ApiKey, Cancel, Request
from tests.support.door import POLICY, Door, door, until

Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, kafka: str, redis: str, **options: Any) -> None:
    async def with_door() -> None:
        log = KafkaLog(kafka)
        prefix = options.pop("prefix", None) or f"t{token_hex(4)}"
        try:
            async with door(log, redis_url=redis, prefix=prefix, **options) as opened:
                await scenario(opened)
        finally:
            log.close()

    asyncio.run(with_door())


def test_requests_go_to_the_log_and_results_come_back_by_long_poll(
    kafka_bootstrap: str, redis_url: str
) -> None:
    async def scenario(opened: Door) -> None:
        answers = await asyncio.gather(*(opened.post(input=n) for n in range(40)))
        ids = [answer.json()["id"] for answer in answers]
        records = opened.records(opened.topics.requests("gold"))
        found = {codec.decode_header(r, Request).id: json.loads(r.value) for r in records}
        assert found == {request_id: n for n, request_id in enumerate(ids)}

        polls = [asyncio.create_task(opened.get(request_id, wait="30")) for request_id in ids]
        for n, request_id in enumerate(ids):
            opened.finish(request_id, json.dumps({"n": n}).encode())
        for n, poll in enumerate(polls):
            document = (await poll).json()
            assert (document["state"], document["output"]) == ("succeeded", {"n": n})

    policy = msgspec.structs.replace(POLICY, topology=Topology(shards=2, spread=2, buckets=3))
    play(scenario, kafka_bootstrap, redis_url, policy=policy)


def test_large_outputs_are_read_back_from_the_log(kafka_bootstrap: str, redis_url: str) -> None:
    async def scenario(opened: Door) -> None:
        ids = [(await opened.post()).json()["id"] for _ in range(3)]
        for n, request_id in enumerate(ids):
            opened.finish(request_id, json.dumps(str(n) * 200_000).encode())
        for n, request_id in reversed(list(enumerate(ids))):
            assert (await opened.get(request_id, wait="30")).json()["output"] == str(n) * 200_000

    play(scenario, kafka_bootstrap, redis_url)


def test_a_cancel_goes_to_the_shard_of_the_pool(kafka_bootstrap: str, redis_url: str) -> None:
    policy = msgspec.structs.replace(POLICY, topology=Topology(shards=3, spread=2, buckets=1))

    async def scenario(opened: Door) -> None:
        for endpoint in ("chat", "heavy", "free"):
            request_id = (await opened.post(endpoint=endpoint)).json()["id"]
            assert (await opened.cancel(request_id)).status_code == 202
        places = {r.place for r in opened.records(opened.topics.requests("gold"))}
        cancels = opened.records(opened.topics.control)
        named = [codec.decode_value(record, Cancel) for record in cancels]
        assert {f"{c.topic}[{c.partition}]@{c.offset}" for c in named} == places
        shards = {opened.topics.shard_of(e, 3) for e in ("chat", "heavy", "free")}
        assert {record.partition for record in cancels} == shards

    play(scenario, kafka_bootstrap, redis_url, policy=policy)


def _committed(opened: Door) -> int:
    part = (opened.topics.results, 0)
    reader = opened.log.reader()
    commit = reader.committed(f"{opened.topics.prefix}.index", [part])[part]
    reader.close()
    return commit.offset if commit else 0


def _end(opened: Door) -> int:
    """Next offset after the last result; the marker of its transaction comes after it."""
    return opened.records(opened.topics.results)[-1].offset + 1


class Uncommitting:
    """A reader whose commits never arrive."""

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader

    def commit(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def test_a_second_ingress_goes_on_where_the_first_stopped_without_a_word(
    kafka_bootstrap: str, redis_url: str
) -> None:
    prefix, ids = f"t{token_hex(4)}", list[str]()

    async def first(opened: Door) -> None:
        for _ in range(2):
            ids.append((await opened.post()).json()["id"])
        opened.finish(ids[0])
        assert (await opened.get(ids[0], wait="30")).json()["state"] == "succeeded"
        # As a kill would: written, but never committed.
        await until(lambda: _committed(opened) == _end(opened))
        opened.ingress._indexer._reader = cast(
            "Reader", Uncommitting(opened.ingress._indexer._reader)
        )
        opened.finish(ids[1], b'"once"')
        assert (await opened.get(ids[1], wait="30")).json()["state"] == "succeeded"
        assert _committed(opened) < _end(opened)
        await opened.redis.delete(f"{prefix}:{{acme}}:request:{ids[1]}")

    async def second(opened: Door) -> None:
        async def is_indexed_again() -> bool:
            answer = await opened.get(ids[1])
            return answer.status_code == 200 and answer.json()["output"] == "once"

        await until(is_indexed_again)

    play(first, kafka_bootstrap, redis_url, prefix=prefix)
    play(second, kafka_bootstrap, redis_url, prefix=prefix, seed=2)


def test_a_revocation_acts_while_requests_flow(kafka_bootstrap: str, redis_url: str) -> None:
    async def scenario(opened: Door) -> None:
        assert (await opened.post()).status_code == 202
        key_id = opened.keys["acme"].split("_")[1]
        stored = [codec.decode_value(r, ApiKey) for r in opened.records(opened.topics.keys)]
        (record,) = (key for key in stored if key.id == key_id)
        opened.publish_key(msgspec.structs.replace(record, revoked_ms=5))

        async def is_refused() -> bool:
            return (await opened.post()).status_code == 401

        await until(is_refused)
        assert (await opened.post("bolt", endpoint="free")).status_code == 202

    play(scenario, kafka_bootstrap, redis_url)


def test_killed_redis_and_killed_kafka_are_told_and_outlived(own_stack: Stack) -> None:
    addresses = own_stack.up()

    async def scenario(opened: Door) -> None:
        before = (await opened.post(endpoint="free", key="before")).json()["id"]
        own_stack.kill_redis()
        answers = [await opened.post(endpoint="heavy") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 65
        during = answers[0].json()["id"]
        assert (await opened.get(during)).json()["state"] == "waiting"
        lost = await opened.get(before)
        assert (lost.status_code, lost.json()["reason"]) == (503, "unavailable")
        opened.finish(during, b'"done"')
        await asyncio.to_thread(own_stack.start_redis)
        assert (await opened.get(during, wait="30")).status_code in {200, 503}

        async def is_known() -> bool:
            opened.clock.value_ms += 1_000
            answer = await opened.get(during, wait="5")
            return answer.status_code == 200 and answer.json()["state"] == "succeeded"

        await until(is_known)

        opened.ingress._publisher._timeout_s = 0.5
        own_stack.kill_broker()
        doubted = await opened.post(endpoint="free", key="doubted")
        assert (doubted.status_code, doubted.json()["reason"]) == (503, "in_doubt")
        assert (await opened.post(key="before", endpoint="free")).json()["id"] == before
        await asyncio.to_thread(own_stack.start_broker)

        async def is_taken() -> bool:
            answer = await opened.post(endpoint="free", key="doubted")
            return answer.status_code == 202 and answer.json()["id"] == doubted.json()["id"]

        await until(is_taken)

    play(scenario, addresses.kafka, addresses.redis_url)
