"""What the engine `upstream` adds to a call, and whether every request ends as it should.

The server is `tests/support/openai_server.py` in a process of its own: OpenAI's interface, no
model. Two parts:

- *added*: one operation is one chat of 20 words answered whole. It is called in turn by bare
  `http.client` (`direct`), by an `httpx.Client` (`direct_httpx`), both on a kept connection, and
  by the engine as a slot calls it: body, trace, answer checked, usage read. `added` is the
  engine's figure less that of `http.client`; `stream` is the same for an answer of 25 pieces,
  which the engine puts together and `http.client` only reads.
- *ends*: 10,000 chats, every second as a stream, through ingress, scheduler, two workers, Kafka
  and Redis. 5 % meet a 500 and 2 % a stream that breaks: a half of both once, a half always. 1 %
  meet a 429, 1 % a 400. Which, follows from the request's number, and so does how each must
  end: `wrong` counts those whose end, reason, detail or answer is another, `lost` are 202s
  without a result, `doubled` those with two. `calls` are those the server saw, by what it did.

    python -m benchmarks.upstream --json [--quick] [--requests 10000]
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from adapters.clock import SystemClock
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from fairlane import keys
from fairlane.client import AsyncClient
from fairlane.client_values import RefusedError, Submission
from schemas.codec import decode_header
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import End, Result
from workers.engine import EngineBatch, EngineRequest
from workers.engines.upstream import UpstreamEngine, UpstreamSettings

TENANTS = ("acme", "globex")
POLICY = Policy(
    tiers=(Tier(name="standard"),),
    pools=(Pool(name="chat", lanes=2),),
    endpoints=(Endpoint(name="chat", pool="chat", attempts_max=100),),
    tenants=tuple(Tenant(name=name, tiers=("standard",)) for name in TENANTS),
)
#: Requests in flight in each of the two lanes.
SLOTS = 16
#: No result for so long: what is missing then is lost.
SILENT_S = 30.0
ROUTE = "/v1/chat/completions"


class Expected(NamedTuple):
    """How a request must end: reason and the beginning of its detail."""

    reason: str = ""
    detail: str = ""


def script(number: int) -> tuple[str, Expected]:
    """What the server does to request `number`, and how that must end."""
    twice = number // 100 % 2
    match number % 100:
        case 5 | 25 | 45 | 65 | 85:
            if (number // 20 + twice) % 2:
                return "500", Expected("engine_failed", "after 3 tries: 500: scripted 500")
            return "500,ok", Expected()
        case 11 | 51:
            if (number // 50 + twice) % 2:
                return "break=2", Expected("engine_failed", "after 3 tries: calling http://")
            return "break=2,ok", Expected()
        case 33:
            return "429=0.1,ok", Expected()
        case 77:
            return "400", Expected("engine_refused", "400: scripted 400")
        case _:
            return "ok", Expected()


def body(number: int) -> dict[str, Any]:
    """Chat of a request; a stream that is to break is one."""
    act, _ = script(number)
    return {
        "model": "m",
        "messages": [{"role": "user", "content": f"script:{act} number {number}"}],
        "stream": number % 2 == 1,
    }


@contextmanager
def server() -> Iterator[int]:
    """Port of a server in a process of its own."""
    command = [sys.executable, "-m", "tests.support.openai_server"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


# --- added


def measure_added(port: int, rounds: int) -> dict[str, Any]:
    engine = UpstreamEngine(UpstreamSettings(f"http://127.0.0.1:{port}", model="m"), SystemClock())
    bare = http.client.HTTPConnection("127.0.0.1", port)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        whole = _ways(engine, bare, client, {"stream": False})
        stream = _ways(engine, bare, client, {"stream": True, "stream_options": _USAGE})
        times = {name: _times(ways, rounds) for name, ways in (("", whole), ("stream", stream))}
    bare.close()
    engine.close()
    found: dict[str, Any] = {"calls_each": rounds}
    for name, taken in times.items():
        head = f"{name}_" if name else ""
        for at in (50, 99):
            direct, by_httpx, by_engine = (_percentile(values, at) for values in taken)
            found[f"{head}added_p{at}_ms"] = round(by_engine - direct, 3)
            found[f"{head}added_to_httpx_p{at}_ms"] = round(by_engine - by_httpx, 3)
            found[f"{head}direct_p{at}_ms"] = round(direct, 3)
            found[f"{head}direct_httpx_p{at}_ms"] = round(by_httpx, 3)
    return found


_USAGE = {"include_usage": True}


def _ways(
    engine: UpstreamEngine,
    bare: http.client.HTTPConnection,
    client: httpx.Client,
    options: dict[str, Any],
) -> list[Callable[[], object]]:
    """One call by each of the three ways."""
    said = {"messages": [{"role": "user", "content": "word " * 20}], "model": "m", **options}
    data = json.dumps(said).encode()
    kind = {"content-type": "application/json"}
    request = EngineRequest(1, "b-1", "acme", "chat", data)

    def by_bare() -> object:
        bare.request("POST", ROUTE, data, kind)
        return bare.getresponse().read()

    def by_httpx() -> object:
        return client.post(ROUTE, content=data, headers=kind).content

    def by_engine() -> object:
        (outcome,) = engine.run(EngineBatch(1, (request,)), lambda _: False)
        assert outcome.end is End.SUCCEEDED, outcome
        return outcome

    return [by_bare, by_httpx, by_engine]


def _times(ways: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of each call of each way; the ways take turns, the first twentieth warms up."""
    taken: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + rounds // 20):
        for way, times in zip(ways, taken, strict=True):
            began = time.perf_counter()
            way()
            if number >= rounds // 20:
                times.append((time.perf_counter() - began) * 1000)
    return taken


def _percentile(values: list[float], at: int) -> float:
    return sorted(values)[len(values) * at // 100]


# --- ends


def measure_ends(port: int, requests: int) -> dict[str, Any]:
    with Deployment(POLICY, benchmark=False) as deployment:
        url = f"http://127.0.0.1:{port}"
        worker = ("worker", "--pool", "chat", "--slots", str(SLOTS), "--engine", "upstream")
        deployment.define("scheduler-0", "scheduler")
        deployment.define("worker-0", *worker, "--upstream-url", url)
        deployment.define("worker-1", *worker, "--upstream-url", url)
        deployment.define("ingress-0", "ingress", "--port", str(deployment.http_port))
        for name in ("scheduler-0", "worker-0", "worker-1", "ingress-0"):
            deployment.start(name)
        deployment.wait_ready()
        api_keys = [keys.create(deployment.log, deployment.topics, name, 0) for name in TENANTS]
        began = time.monotonic()
        accepted = asyncio.run(submit(deployment.url, api_keys, requests))
        results = read_results(deployment, set(accepted))
        seconds = time.monotonic() - began
        if len(results) != requests:
            notes = [deployment.notes(name)[-2_000:] for name in deployment.processes]
            print("\n".join(notes), file=sys.stderr)
    seen = httpx.get(f"http://127.0.0.1:{port}/seen").json()
    return {**judge(accepted, results), "calls": seen["acts"], "seconds": round(seconds, 1)}


async def submit(url: str, api_keys: list[str], requests: int) -> dict[str, int]:
    """Submit all by bulk calls, tenants side by side; returns numbers by id."""
    accepted: dict[str, int] = {}

    async def of_tenant(first: int, api_key: str) -> None:
        numbers = range(first, requests, len(api_keys))
        async with AsyncClient(url, api_key) as client:
            submissions = (Submission("chat", body(n), tag=n) for n in numbers)
            async for submission, verdict in client.submit_many(submissions):
                if isinstance(verdict, RefusedError):
                    raise verdict
                assert isinstance(submission.tag, int)
                accepted[verdict.id] = submission.tag

    await asyncio.gather(*(of_tenant(n, api_key) for n, api_key in enumerate(api_keys)))
    return accepted


def read_results(deployment: Deployment, ids: set[str]) -> list[tuple[Result, bytes]]:
    """Committed results until every id has one, or none came for SILENT_S; then what is left."""
    topic = deployment.topics.results
    reader = deployment.log.reader()
    reader.assign({(topic, number): 0 for number in range(deployment.log.partitions(topic))})
    results: list[tuple[Result, bytes]] = []
    missing = set(ids)
    last = time.monotonic()
    while missing and time.monotonic() < last + SILENT_S:
        for record in reader.poll(10_000, 0.5):
            results.append((decode_header(record, Result), record.value))
            missing.discard(results[-1][0].id)
            last = time.monotonic()
    while records := reader.poll(10_000, 2.0):  # a second result of one would come here
        results += [(decode_header(record, Result), record.value) for record in records]
    reader.close()
    return results


def judge(accepted: dict[str, int], results: list[tuple[Result, bytes]]) -> dict[str, Any]:
    """Hold what ended against what the script says."""
    ended = Counter(result.id for result, _ in results)
    wrong = [
        f"{number}: {result.end.value} {result.reason} {result.detail}"
        for result, output in results
        if (number := accepted.get(result.id, -1)) < 0 or not _is_right(number, result, output)
    ]
    for line in wrong[:10]:
        print(f"wrong: {line}", file=sys.stderr)
    return {
        "requests": len(accepted),
        "succeeded": sum(result.end is End.SUCCEEDED for result, _ in results),
        "failed_by_reason": dict(Counter(r.reason for r, _ in results if r.reason)),
        "failed_by_detail": dict(Counter(_kind(r.detail) for r, _ in results if r.reason)),
        "expected": dict(Counter(script(n)[1].reason or "succeeded" for n in accepted.values())),
        "scripted": dict(Counter(script(n)[0] for n in accepted.values())),
        "lost": sum(request not in ended for request in accepted),
        "doubled": sum(count > 1 for count in ended.values()),
        "wrong": len(wrong),
    }


def _is_right(number: int, result: Result, output: bytes) -> bool:
    expected = script(number)[1]
    if result.reason != expected.reason or not result.detail.startswith(expected.detail):
        return False
    if expected.reason:
        return result.end is End.FAILED
    said = json.loads(output)["choices"][0]["message"]["content"]
    has_usage = result.usage.input_tokens == 3 and result.usage.output_tokens == 5
    return result.end is End.SUCCEEDED and said.endswith(f"number {number}") and has_usage


def _kind(detail: str) -> str:
    """What of a detail is the same for all of its kind."""
    return detail.partition("http://")[0].strip() or detail


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer calls and requests")
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    with server() as port:
        figures = measure_added(port, 300 if given.quick else 2_000)
    with server() as port:
        figures |= measure_ends(port, 1_000 if given.quick else given.requests)
    tell(figures, quick=given.quick, as_json=given.json)


if __name__ == "__main__":
    main()
