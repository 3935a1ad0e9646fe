"""The whole of it in one process: services, backlog and door; nothing is told by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from msgspec.structs import replace

from fairlane.embedded import Embedded, one_endpoint
from schemas.policy import Predict
from tests.support.door import PATIENCE_S
from workers.engines.simulated import SimulatedEngine, SimulatedSettings

#: A batch holds one request and takes 60 ms: what is far behind would be late.
ENGINE = SimulatedEngine(SimulatedSettings(fixed_ms=60, per_token_us=0, dimensions=8))
TARGET_MS = 1_500


@asynccontextmanager
async def opened(predict: Predict) -> AsyncIterator[httpx.AsyncClient]:
    """A deployment, and a plain caller that takes no for an answer."""
    plain = one_endpoint("embed", ["acme"], batch_requests=1)
    asked = replace(plain.endpoints[0], predict=predict, latency_ms={"standard": TARGET_MS})
    policy = replace(plain, endpoints=(asked,))
    async with Embedded(policy, {"embed": ENGINE}) as deployment:
        headers = {"Authorization": f"Bearer {deployment.keys['acme']}"}
        client = httpx.AsyncClient(
            transport=deployment._transport, base_url="http://door", headers=headers, timeout=60
        )
        async with client, asyncio.timeout(PATIENCE_S):
            yield client


async def submit(client: httpx.AsyncClient) -> httpx.Response:
    """Submit, as soon as the worker has been seen."""
    while True:
        answer = await client.post("/v1/requests", json={"endpoint": "embed", "input": "text"})
        if answer.status_code == 202 or answer.json()["reason"] != "no_workers":
            return answer
        await asyncio.sleep(0.01)


async def flood(client: httpx.AsyncClient) -> tuple[httpx.Response | None, list[str]]:
    """Submit until one is refused; returns it, and the ids of those that were let in."""
    let_in: list[str] = []
    for _ in range(150):
        answer = await submit(client)
        if answer.status_code != 202:
            return answer, let_in
        let_in.append(answer.json()["id"])
    return None, let_in


async def end(client: httpx.AsyncClient, request_id: str) -> str:
    """How a request ended."""
    while True:
        answer = await client.get(f"/v1/requests/{request_id}?wait=5")
        if answer.json()["state"] != "waiting":
            return str(answer.json()["state"])


def test_a_flood_is_refused_when_it_would_be_late_and_let_in_again_when_it_is_done() -> None:
    async def scenario() -> None:
        async with opened(Predict.ON) as client:
            refused, let_in = await flood(client)
            while refused is None:  # the first ones measure how fast the pool is
                refused, more = await flood(client)
                let_in += more
            assert (refused.status_code, refused.json()["reason"]) == (503, "would_wait")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert {await end(client, request_id) for request_id in let_in} == {"succeeded"}
            answer = await submit(client)
            assert answer.status_code == 202
            assert await end(client, answer.json()["id"]) == "succeeded"

    asyncio.run(scenario())


def test_in_shadow_the_same_flood_is_let_in() -> None:
    async def scenario() -> None:
        async with opened(Predict.SHADOW) as client:
            refused, let_in = await flood(client)
            assert refused is None
            for request_id in let_in:
                await client.post(f"/v1/requests/{request_id}/cancel")

    asyncio.run(scenario())
