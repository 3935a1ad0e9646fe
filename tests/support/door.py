"""An ingress on any log and any Redis, with a policy and keys, driven through its HTTP door."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
from redis.asyncio import Redis

from adapters.redis import EMBEDDED, RedisIndex, connect
from adapters.redis_claims import RedisClaims
from adapters.redis_limits import RedisLimits
from producers.app import build_app
from producers.core.inputs import TokenCount
from producers.ingress import Ingress
from producers.parts import Parts
from producers.ports import BacklogReader, Claims, Index, Limits, Meter, NoMeter
from schemas import codec
from schemas.keys import key_record, new_key
from schemas.log import Log, Partition, Reader, Record
from schemas.policy import POLICY_KEY, Endpoint, Policy, Pool, Tenant, Tier, encode_policy
from schemas.records import VERSION, ApiKey, End, Result, Usage
from schemas.topics import Topics, bucket
from tests.support import conforms

#: Conditions come true within milliseconds, on a busy machine seconds, or the test has failed.
PATIENCE_S = 60.0
#: The service gives up on Redis after 0.1 s; a busy machine's tests must not.
REDIS_S = 10.0

POLICY = Policy(
    tiers=(Tier(name="gold"), Tier(name="batch")),
    pools=tuple(Pool(name=name) for name in ("chat", "heavy", "free", "large")),
    endpoints=(
        Endpoint(name="chat", pool="chat", requests_per_minute=100),
        Endpoint(name="heavy", pool="heavy", weight=4, requests_per_minute=10),
        Endpoint(name="free", pool="free", body_bytes_max=1_000),
        Endpoint(name="large", pool="large"),
    ),
    tenants=(
        Tenant(name="acme", tiers=("gold", "batch")),
        Tenant(name="bolt", tiers=("batch",), requests_per_minute={"heavy": 0, "chat": 0}),
    ),
)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition to be true; the test's only way to wait."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            value = condition()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return
            await asyncio.sleep(0.005)


@dataclass
class Door:
    """An open door: HTTP in front, the log and Redis behind it."""

    log: Log
    topics: Topics
    ingress: Ingress
    http: httpx.AsyncClient
    redis: "Redis"
    clock: Clock
    keys: dict[str, str] = field(default_factory=dict)

    def publish_policy(self, policy: Policy) -> None:
        self._publish(self.topics.policy, POLICY_KEY, encode_policy(policy))

    def publish_key(self, record: ApiKey) -> None:
        self._publish(self.topics.keys, record.id.encode(), codec.encode(record))

    def _publish(self, topic: str, key: bytes, value: bytes) -> None:
        producer = self.log.producer()
        producer.send(topic, 0, value, key=key)
        producer.close()

    def bearer(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant]}"}

    async def post(
        self, tenant: str = "acme", *, key: str | None = None, **fields: Any
    ) -> httpx.Response:
        headers = self.bearer(tenant) | ({"Idempotency-Key": key} if key else {})
        body = {"endpoint": "chat", "input": "hello"} | fields
        return await self.http.post("/v1/requests", json=body, headers=headers)

    async def get(
        self, request_id: str, tenant: str = "acme", wait: str | None = None
    ) -> httpx.Response:
        query = f"?wait={wait}" if wait else ""
        return await self.http.get(f"/v1/requests/{request_id}{query}", headers=self.bearer(tenant))

    async def cancel(self, request_id: str, tenant: str = "acme") -> httpx.Response:
        return await self.http.post(
            f"/v1/requests/{request_id}/cancel", headers=self.bearer(tenant)
        )

    def finish(
        self,
        request_id: str,
        body: bytes = b'{"text": "hi"}',
        tenant: str = "acme",
        headers: tuple[tuple[str, bytes], ...] = (),
        **fields: Any,
    ) -> None:
        """Publish a result in a transaction, as a lane does."""
        defaults: dict[str, Any] = {
            "end": End.SUCCEEDED,
            "usage": Usage(input_tokens=3, output_tokens=5, service_ms=70),
            "arrived_ms": 1_000,
            "picked_ms": 1_250,
            "ended_ms": 1_320,
            "attempt": 1,
        }
        result = Result(
            v=VERSION, id=request_id, tenant=tenant, endpoint="chat", **defaults | fields
        )
        producer = self.log.transactional(f"{self.topics.prefix}.lane")
        producer.init()
        producer.begin()
        producer.send(
            self.topics.results,
            bucket(tenant, self.log.partitions(self.topics.results)),
            body,
            headers=codec.header(result, headers),
        )
        producer.commit()
        producer.close()

    def records(self, topic: str) -> list[Record]:
        """Everything that stands in a topic, partition by partition."""
        reader = self.log.reader()
        found: list[Record] = []
        for number in range(self.log.partitions(topic)):
            found += _read_all(reader, (topic, number))
        reader.close()
        return found


def _read_all(reader: Reader, part: Partition) -> list[Record]:
    low, end = reader.bounds(part)
    reader.assign({part: low})
    found: list[Record] = []
    while not reader.reached(part, end):
        found += reader.poll(1_000, 0.1)
    return found


def _is_used(topic: str, topics: Topics) -> bool:
    """Whether an ingress reads or writes it; making the others takes a broker seconds."""
    own = (topics.policy, topics.keys, topics.control, topics.results, topics.refusals)
    return topic in own or topic.startswith(topics.requests(""))


async def _conforms(answer: httpx.Response) -> None:
    """Every answer of every test is held to the OpenAPI document."""
    await answer.aread()
    conforms.check(answer)


@asynccontextmanager
async def door(
    log: Log,
    *,
    redis_url: str = EMBEDDED,
    prefix: str = "fairlane",
    policy: Policy | None = POLICY,
    limits: Limits | None = None,
    index: Index | None = None,
    claims: Claims | None = None,
    meter: Meter | None = None,
    seed: int = 1,
    backlog: BacklogReader | None = None,
    token_counts: Mapping[str, TokenCount] | None = None,
) -> AsyncIterator[Door]:
    """Open a door: topics made, policy and one key a tenant published and read."""
    topics, random, clock = Topics(prefix), Random(seed), Clock()
    log.ensure_topics([s for s in topics.of(policy or POLICY) if _is_used(s.name, topics)])
    redis = connect(redis_url)
    parts = Parts(
        log=log,
        topics=topics,
        limits=limits or RedisLimits(redis, prefix, timeout_s=REDIS_S),
        index=index or RedisIndex(redis, prefix, REDIS_S),
        clock=clock,
        random_bytes=random.randbytes,
        backlog=backlog,
        token_counts=token_counts or {},
        claims=claims or RedisClaims(redis, prefix, REDIS_S),
        meter=meter or NoMeter(),
    )
    ingress = Ingress(parts)
    transport = httpx.ASGITransport(build_app(ingress))
    hooks = {"response": [_conforms]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://door", timeout=60, event_hooks=hooks
    ) as http:
        opened = Door(log, topics, ingress, http, redis, clock)
        if policy:
            opened.publish_policy(policy)
        for tenant in ("acme", "bolt", "gone"):
            opened.keys[tenant] = key = new_key(random.randbytes)
            opened.publish_key(key_record(key, tenant, 1))
        ingress.start()
        try:
            await until(lambda: ingress.directory.is_read)
            yield opened
        finally:
            await ingress.stop()
            await redis.aclose()
