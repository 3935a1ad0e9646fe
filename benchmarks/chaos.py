"""Kill -9 at random moments while requests flow over HTTP; then count.

One operation is one request: POSTed with an Idempotency-Key until a 202 comes (a killed
ingress answers nothing, so the client tries again with the same key), scheduled, run by the
simulated engine, ended by one result. One scheduler, two workers and one ingress run as
processes; each is killed at random moments and started again at once, as a supervisor does, and
so is what ends by itself (`ended_by_themselves`: a member that the broker took for its own
successor, say). The broker is killed and started again as well, a few times, evenly spread.
The broker runs with the first compiler only: in a run of minutes on two cores the full one
would compile most of the time, and its compiling would be what is measured.

Counted at the end on the log, read committed, when all have ended or none has for 60 s after the
last kill: `doubled` are 202s with two results, `stuck` those without one that the scheduler still
knows of, `lost` those without one that it does not, and
`redispatched_without_cause` dispatches beyond the first that no hand-back explains.
`recovery` is from SIGKILL of the scheduler to the first batch decided after it and read by
a committed reader, process start included.

    python -m benchmarks.chaos --json [--quick] [--kills 100] [--restarts 5] [--requests 100000]
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.recovery import Silence
from fairlane import keys
from fairlane.demo_http import Connection
from fairlane.run import EXIT_HALTED
from scheduler.recovery import recover
from schemas.codec import decode_header, decode_value
from schemas.log import Log
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import BatchCancel, HandedBack, LaneRecord, Result, WorkerRecord

TENANTS = ("acme", "globex", "initech", "umbrella")
#: Connections of the clients together.
CLIENTS = 48
#: How the broker is called among what was killed.
BROKER = "broker"
#: What may pass after the last kill without an end.
STUCK_S = 60.0

POLICY = Policy(
    tiers=(Tier(name="premium"), Tier(name="standard")),
    pools=(Pool(name="embed", lanes=4), Pool(name="chat", lanes=2)),
    endpoints=(
        Endpoint(
            name="embed",
            pool="embed",
            cost=CostModel.TOKEN,
            quantum=4_096,
            batch_requests=32,
            batch_tokens=16_384,
            tokens_max=8_192,
            batch_wait_ms=10,
            attempts_max=100,
        ),
        Endpoint(name="chat", pool="chat", attempts_max=100),
    ),
    tenants=tuple(Tenant(name=name, tiers=("premium", "standard")) for name in TENANTS),
)


class Flow:
    """The clients: `count` requests at `pace` a second, each until its 202."""

    def __init__(self, port: int, api_keys: dict[str, str], count: int, pace: int) -> None:
        self.port, self.api_keys, self.count, self.pace = port, api_keys, count, pace
        self.accepted: dict[str, float] = {}
        self.refused: dict[int, str] = {}
        self.retries = 0
        self.done = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())
        self.done.set()

    async def _run(self) -> None:
        numbers = iter(range(self.count))
        started = time.monotonic()
        await asyncio.gather(*(self._client(numbers, started) for _ in range(CLIENTS)))

    async def _client(self, numbers: Iterator[int], started: float) -> None:
        connection = Connection("127.0.0.1", self.port)
        for number in numbers:
            due = started + number / self.pace
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._one(connection, number)
        connection.close()

    async def _one(self, connection: Connection, number: int) -> None:
        tenant = TENANTS[number % len(TENANTS)]
        body = {
            "endpoint": "chat" if number % 10 == 0 else "embed",
            "tier": ("premium", "standard")[number % 3 == 0],
            "input": "x" * (50 + number % 400),
        }
        headers = {
            "Authorization": f"Bearer {self.api_keys[tenant]}",
            "Idempotency-Key": f"chaos-{number}",
        }
        while True:
            try:
                status, answer = await connection.post(
                    "/v1/requests", headers, json.dumps(body).encode()
                )
                if status == 202:
                    self.accepted[json.loads(answer)["id"]] = time.time()
                    self.refused.pop(number, None)
                    return
                self.refused[number] = f"{status}: {answer!r}"
                if status not in (409, 429, 503):
                    raise RuntimeError(self.refused[number])
            except (OSError, EOFError, ValueError, IndexError) as error:
                connection.close()
                self.refused[number] = repr(error)
            self.retries += 1
            await asyncio.sleep(0.1 + random.random() * 0.2)


class Watch:
    """Reads committed batches as they come: when each was read, when it was decided."""

    def __init__(self, log: Log, deployment: Deployment) -> None:
        self._reader = log.reader()
        topics = deployment.topics
        self._reader.assign(
            {
                (topics.batches(pool.name), lane): 0
                for pool in POLICY.pools
                for lane in range(pool.lanes)
            }
        )
        self.batches: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for record in self._reader.poll(1_000, 0.05):
                batch = decode_header(record, LaneRecord)
                if not isinstance(batch, BatchCancel):
                    self.batches.append((time.time(), batch.picked_ms))

    def first_after(self, killed_s: float) -> float | None:
        """Seconds from a kill to the first batch that was decided after it."""
        for read_s, picked_ms in list(self.batches):
            if picked_ms > killed_s * 1000 + 1:
                return read_s - killed_s
        return None

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()


def read_all(log: Log, topic: str) -> list[Any]:
    """Every committed record of a topic."""
    reader = log.reader()
    records: list[Any] = []
    for number in range(log.partitions(topic)):
        partition = (topic, number)
        end = reader.bounds(partition).end
        if end == 0:
            continue
        reader.assign({partition: 0})
        while not reader.reached(partition, end):
            records += reader.poll(10_000, 0.2)
    reader.close()
    return records


def dispatches(deployment: Deployment) -> tuple[Counter[str], Counter[str]]:
    """How often each request was dispatched, and handed back."""
    dispatched: Counter[str] = Counter()
    returned: Counter[str] = Counter()
    for pool in deployment.policy.pools:
        ids: dict[int, list[str]] = {}
        for record in read_all(deployment.log, deployment.topics.batches(pool.name)):
            batch = decode_header(record, LaneRecord)
            if not isinstance(batch, BatchCancel):
                ids[batch.number] = [item.id for item in batch.items]
                dispatched.update(ids[batch.number])
        for record in read_all(deployment.log, deployment.topics.workers(pool.name)):
            said = decode_value(record, WorkerRecord)
            if isinstance(said, HandedBack):
                returned.update(ids[said.number])
    return dispatched, returned


PROCESSES = {
    "scheduler-0": ("scheduler",),
    "worker-0": ("worker", "--pool", "embed", "--slots", "2"),
    "worker-1": ("worker", "--pool", "embed", "--slots", "2"),
    "worker-2": ("worker", "--pool", "chat", "--slots", "2"),
}


def run(kills: int, restarts: int, requests: int, pace: int, seed: int) -> dict[str, Any]:
    with Deployment(POLICY, benchmark=False) as deployment:
        port = str(deployment.http_port)
        for name, arguments in {**PROCESSES, "ingress-0": ("ingress", "--port", port)}.items():
            deployment.define(name, *arguments, "--instance", name)
            deployment.start(name)
        deployment.wait_ready()
        deployment.supervise()
        api_keys = {
            tenant: keys.create(deployment.log, deployment.topics, tenant, 0) for tenant in TENANTS
        }
        watch = Watch(deployment.log, deployment)
        flow = Flow(deployment.http_port, api_keys, requests, pace)
        sender = threading.Thread(target=flow.run)
        sender.start()
        killed = kill_at_random(deployment, flow, kills, restarts, random.Random(seed))
        while sender.is_alive():
            sender.join(5.0)
            waiting = list(flow.refused.values())
            print(f"{len(flow.accepted)} accepted, not yet: {waiting[:1]}", file=sys.stderr)
        ended, waited_s = wait_for_ends(deployment, flow, killed[-1][1])
        watch.close()
        missing = {request for request in flow.accepted if request not in ended}
        live: set[str] = set()
        if missing:
            tell_notes(deployment)
            live = set(recover(deployment.log, deployment.topics, 0, Silence()).state.ids)
        halted = [name for name in deployment.ended if name.endswith(f": {EXIT_HALTED}")]
        halted += [name for name in PROCESSES if "lane_broken" in deployment.notes(name)]
        if halted:
            raise RuntimeError(f"gave up, and must not: {halted}")
        dispatched, returned = dispatches(deployment)
    recoveries = [
        seconds
        for name, at_s in killed
        if name == "scheduler-0" and (seconds := watch.first_after(at_s)) is not None
    ]
    return {
        "kills": sum(1 for name, _ in killed if name != BROKER),
        "kills_by_process": dict(Counter(name for name, _ in killed)),
        "broker_restarts": sum(1 for name, _ in killed if name == BROKER),
        "requests": len(flow.accepted),
        "pace_per_s": pace,
        "client_retries": flow.retries,
        "ended_by_themselves": dict(deployment.ended),
        "lost": len(missing - live),
        "doubled": sum(1 for count in ended.values() if count > 1),
        "stuck": len(missing & live),
        "redispatched_without_cause": sum(
            max(0, count - 1 - returned[request]) for request, count in dispatched.items()
        ),
        "redispatched": sum(count - 1 for count in dispatched.values()),
        "all_ended_s_after_last_kill": round(waited_s, 2),
        "recoveries_s": [round(seconds, 3) for seconds in recoveries],
        "recovery_median_s": round(statistics.median(recoveries), 3) if recoveries else None,
        "recovery_worst_s": round(max(recoveries), 3) if recoveries else None,
        "seed": seed,
    }


def kill_at_random(
    deployment: Deployment, flow: Flow, kills: int, restarts: int, chance: random.Random
) -> list[tuple[str, float]]:
    """Kill and start again, spread over the time the flow takes; every other one a scheduler."""
    brokers = {(2 * number + 1) * kills // (2 * restarts) for number in range(restarts)}
    killed: list[tuple[str, float]] = []
    gap_s = flow.count / flow.pace / (kills + 1)
    names = list(deployment.processes)
    for number in range(kills):
        flow.done.wait(gap_s * (0.5 + chance.random()))
        if number in brokers:
            deployment.stack.kill_broker()
            killed.append((BROKER, time.time()))
            deployment.stack.start_broker()
            print("killed the broker", file=sys.stderr)
        name = "scheduler-0" if number % 2 else chance.choice(names)
        deployment.kill(name)
        killed.append((name, time.time()))
        deployment.start(name)
        print(f"killed {name}", file=sys.stderr)
    return killed


def wait_for_ends(
    deployment: Deployment, flow: Flow, last_kill_s: float
) -> tuple[Counter[str], float]:
    """Count results until every 202 has one, or no more come."""
    fewest, moved_s = len(flow.accepted) + 1, last_kill_s
    while True:
        ended = Counter(
            decode_header(record, Result).id
            for record in read_all(deployment.log, deployment.topics.results)
        )
        now_s = time.time()
        missing = sum(1 for request in flow.accepted if request not in ended)
        if missing < fewest:
            fewest, moved_s = missing, now_s
        print(f"{missing} have not ended, {now_s - last_kill_s:.0f} s later", file=sys.stderr)
        if not missing or now_s - moved_s > STUCK_S:
            return ended, now_s - last_kill_s
        time.sleep(0.5)


def tell_notes(deployment: Deployment) -> None:
    """What the processes said last, when something is stuck."""
    for name in PROCESSES:
        last = "\n".join(deployment.notes(name).splitlines()[-15:])
        print(f"--- {name}\n{last}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="6 kills, 1 restart, 2,000 requests")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=5, help="of the broker")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--pace", type=int, default=100, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.kills, arguments.restarts, arguments.requests = 6, 1, 2_000
    figures = run(
        arguments.kills, arguments.restarts, arguments.requests, arguments.pace, arguments.seed
    )
    tell(figures, quick=arguments.quick, as_json=arguments.json)


if __name__ == "__main__":
    main()
