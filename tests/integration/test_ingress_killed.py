"""Kill -9 of ingresses and of Redis while callers send: every key gets its 202, and one result.

Real processes: two ingresses, a scheduler, a worker, and a stack of the test's own. A caller goes
from one ingress to the other until it has its 202, always with the same key.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from adapters.kafka import KafkaLog
from fairlane.keys import create
from fairlane.publish import publish_policy
from fairlane.stack import Stack, free_ports
from schemas import codec
from schemas.log import Log
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.reasons import Reason
from schemas.records import End, Result
from schemas.topics import Topics
from tests.support.door import until as soon
from tests.support.processes import DEADLINE_S, FairlaneProcess, Processes, until

TOPICS = Topics("killed")
#: Keys, and how many of them are on their way at once.
KEYS, CALLERS = 120, 8
#: Each key is posted by two callers at once, to both ingresses.
COPIES = 2


def _policy(requests_per_minute: int) -> Policy:
    return Policy(
        tiers=(Tier(name="standard"),),
        pools=(Pool(name="chat", lanes=2),),
        endpoints=(
            Endpoint(
                name="chat",
                pool="chat",
                requests_per_minute=requests_per_minute,
                attempts_max=100,
            ),
        ),
        tenants=(Tenant(name="acme", tiers=("standard",)),),
    )


class Callers:
    """A tenant that sends every key to every ingress until it is taken."""

    def __init__(self, ports: list[int], api_key: str) -> None:
        self._urls = [f"http://127.0.0.1:{port}" for port in ports]
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self.ids: dict[str, set[str]] = {}
        self.statuses: Counter[int] = Counter()
        self.done = 0

    async def run(self) -> None:
        keys = iter([f"key-{number}" for number in range(KEYS)])
        async with httpx.AsyncClient(timeout=DEADLINE_S, headers=self._headers) as http:
            await asyncio.gather(*(self._caller(http, keys) for _ in range(CALLERS)))

    async def _caller(self, http: httpx.AsyncClient, keys: Iterator[str]) -> None:
        for key in keys:
            await asyncio.gather(*(self._post(http, key, copy) for copy in range(COPIES)))
            self.done += 1

    async def _post(self, http: httpx.AsyncClient, key: str, attempt: int) -> None:
        async with asyncio.timeout(DEADLINE_S):  # nothing may keep a key for ever
            while True:
                url = self._urls[attempt % len(self._urls)]
                attempt += 1
                try:
                    answer = await http.post(
                        f"{url}/v1/requests",
                        json={"endpoint": "chat", "input": key},
                        headers={"Idempotency-Key": key},
                    )
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                self.statuses[answer.status_code] += 1
                if answer.status_code == 202:
                    self.ids.setdefault(key, set()).add(answer.json()["id"])
                    return
                assert answer.status_code in {409, 503}, answer.text
                await asyncio.sleep(0.05)


@pytest.fixture
def processes(own_stack: Stack, tmp_path: Path) -> Iterator[Processes]:
    addresses = own_stack.up()
    env = {
        "FAIRLANE_KAFKA": addresses.kafka,
        "FAIRLANE_REDIS": addresses.redis_url,
        "FAIRLANE_PREFIX": TOPICS.prefix,
        "FAIRLANE_REPLICATION": "1",
    }
    found = Processes(tmp_path, env)
    yield found
    found.close()


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _results(log: Log) -> Counter[str]:
    """How often each request ended, and all of them well."""
    reader = log.reader()
    found: Counter[str] = Counter()
    for number in range(log.partitions(TOPICS.results)):
        part = (TOPICS.results, number)
        bounds = reader.bounds(part)
        reader.assign({part: bounds.low})
        while not reader.reached(part, bounds.end):
            for record in reader.poll(1_000, 0.1):
                result: Result = codec.decode_header(record, Result)
                if result.reason != Reason.DUPLICATE:
                    assert result.end is End.SUCCEEDED
                    found[result.id] += 1
    reader.close()
    return found


def _play(
    own_stack: Stack,
    processes: Processes,
    policy: Policy,
    kill: Callable[[list[FairlaneProcess], int], None],
) -> Callers:
    """Send everything, with a kill after each quarter; then wait for all results."""
    log = KafkaLog(own_stack.up().kafka, replication=1)
    publish_policy(log, TOPICS, policy)
    api_key = create(log, TOPICS, "acme", 0)
    ports = free_ports(2)

    def ingress(number: int) -> FairlaneProcess:
        return processes.start("ingress", "--port", str(ports[number]))

    ingresses = [ingress(0), ingress(1)]
    processes.start("scheduler")
    processes.start("worker", "--pool", "chat", "--slots", "2")
    until(lambda: all(map(_ready, ports)), "both ingresses are ready")
    callers = Callers(ports, api_key)

    async def scenario() -> None:
        sending = asyncio.create_task(callers.run())
        for quarter in (1, 2, 3):
            enough = KEYS * quarter // 4
            await soon(lambda enough=enough: callers.done >= enough or sending.done())  # type: ignore[misc]
            await asyncio.to_thread(kill, ingresses, quarter)
            for number, process in enumerate(ingresses):
                if process.process.poll() is not None:
                    ingresses[number] = ingress(number)
        await sending

    asyncio.run(scenario())
    assert set(callers.ids) == {f"key-{number}" for number in range(KEYS)}
    ids = [request_id for same in callers.ids.values() for request_id in same]
    assert len(ids) == len(set(ids)) == KEYS  # a key is one id, wherever it was posted

    until(lambda: len(_results(log)) == KEYS, "every 202 has its result")
    assert _results(log) == Counter(ids)
    for port in ports:
        until(lambda port=port: _ready(port), "the ingress is back")  # type: ignore[misc]
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", headers=headers, timeout=60) as http:
        for request_id in ids:
            answer = http.get(f"/v1/requests/{request_id}?wait=30")
            assert answer.json()["state"] == "succeeded", answer.text
    log.close()
    return callers


def test_ingresses_killed_in_the_middle_lose_nothing_and_hold_no_key(
    own_stack: Stack, processes: Processes
) -> None:
    def kill(ingresses: list[FairlaneProcess], quarter: int) -> None:
        ingresses[quarter % 2].process.kill()
        ingresses[quarter % 2].process.wait(DEADLINE_S)

    # Room for every key once: whoever is charged twice takes the place of another one.
    callers = _play(own_stack, processes, _policy(KEYS), kill)
    assert set(callers.statuses) <= {202, 409, 503}


def test_redis_killed_in_the_middle_loses_nothing_and_holds_no_key(
    own_stack: Stack, processes: Processes
) -> None:
    def kill(_: list[FairlaneProcess], quarter: int) -> None:
        own_stack.kill_redis()
        own_stack.start_redis()

    # Without Redis each of the two counts alone, up to half of it.
    _play(own_stack, processes, _policy(2 * KEYS), kill)
