"""Kill the accounting and the workers under load; then recount who used what.

One operation is one request over HTTP (benchmarks.chaos: the same clients and tenants), run
by the simulated engine, ended by one result and told once by its batch. `fairlane accounting`
and the workers are killed with SIGKILL in turn, at random moments from a seed, and started
again at once. When all have ended and the accounting has caught up, `fairlane usage --json`
by minute is compared with a recount of the topic `results`, which the accounting never
reads: tokens of each tenant, endpoint and minute.

`aborted_seen` are records of workers that stand in the log and were never committed: what
must not be counted; one is written after each kill. `caught_up_s` is from the last result
to the last batch counted.
`batches_per_s` is how fast a stopped accounting works off a heap of batches of 32 requests
of four tenants when it starts again, its start included.

With `--accountings 2` a second one counts along, which has no name: each of its starts shares
the lanes out anew, and so does each of its deaths, after ten seconds, or at once when it was
stopped, as every other time. Both are killed in turn.

    python -m benchmarks.usage --json [--quick] [--kills 20] [--requests 20000] [--pace 150]
                               [--accountings 1]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from accounting.names import group
from benchmarks.chaos import POLICY, PROCESSES, TENANTS, Flow, read_all, wait_for_ends
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from fairlane import keys
from schemas.codec import decode_header, encode
from schemas.records import VERSION, End, Finished, Outcome, Result, Usage

#: How long the accounting may take to catch up before the run is given up.
PATIENCE_S = 300.0
WORKERS = tuple(name for name in PROCESSES if name.startswith("worker"))
#: Batches of the heap, and how many of them a transaction writes.
HEAP_BATCHES = 10_000
HEAP_TRANSACTION = 100

#: The second accounting: a new member of the group whenever it starts.
NAMELESS = "accounting-1"

Key = tuple[str, str, int]


def abort_a_batch(deployment: Deployment, chance: random.Random) -> None:
    """Write a finished batch that is aborted, as a holder of a lane does that fails."""
    producer = deployment.log.transactional("bench.aborted")
    producer.init()
    producer.begin()
    outcome = Outcome(1, End.SUCCEEDED, Usage(1_000, 1_000, 0, 0, 1_000))
    said = Finished(VERSION, 1, (outcome,), ("acme",), ("embed",), int(time.time() * 1000))
    partition = deployment.topics.workers("embed"), chance.randrange(4)
    everything = deployment.log.reader(committed_only=False)
    before = everything.bounds(partition).end
    producer.send(*partition, encode(said))
    while everything.bounds(partition).end == before:  # else an abort would drop it unwritten
        time.sleep(0.01)
    everything.close()
    producer.abort()
    producer.close()


def leave(deployment: Deployment) -> None:
    """Stop the second accounting; its lanes wait for nobody then."""
    deployment.processes[NAMELESS].terminate()
    deployment.processes[NAMELESS].wait()


def kill_in_turn(
    deployment: Deployment, flow: Flow, accountings: list[str], kills: int, chance: random.Random
) -> int:
    """Kill and start again: an accounting, a worker, the next accounting, ..."""
    gap_s = flow.count / flow.pace / (kills + 1)
    for number in range(kills):
        flow.done.wait(gap_s * (0.5 + chance.random()))
        counting = accountings[number // 2 % len(accountings)]
        name = chance.choice(WORKERS) if number % 2 else counting
        if name == NAMELESS and number // 4 % 2:
            leave(deployment)
        else:
            deployment.kill(name)
        deployment.start(name)
        abort_a_batch(deployment, chance)
        print(f"killed {name}", file=sys.stderr)
    return kills


def usage(deployment: Deployment) -> dict[str, Any]:
    """What `fairlane usage --by minute --json` prints."""
    env = {
        **os.environ,
        "FAIRLANE_KAFKA": deployment.addresses.kafka,
        "FAIRLANE_PREFIX": deployment.topics.prefix,
    }
    command = [sys.executable, "-m", "fairlane", "usage", "--by", "minute", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_until_counted(deployment: Deployment) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = usage(deployment)
        if not found["behind"]:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"not caught up after {PATIENCE_S:.0f} s: {found['behind']}")


def recount(deployment: Deployment) -> tuple[dict[Key, Counter[str]], int]:
    """Use by (tenant, endpoint, minute) from the results alone; when the last one ended."""
    found: dict[Key, Counter[str]] = {}
    last_ms = 0
    for record in read_all(deployment.log, deployment.topics.results):
        result: Result = decode_header(record, Result)
        if not result.picked_ms:
            continue  # ended while it waited: nobody worked on it
        key = (result.tenant, result.endpoint, result.ended_ms // 60_000 * 60_000)
        found.setdefault(key, Counter()).update(
            requests=1,
            input_tokens=result.usage.input_tokens,
            output_tokens=result.usage.output_tokens,
            service_ms=result.usage.service_ms,
        )
        last_ms = max(last_ms, result.ended_ms)
    return found, last_ms


def compare(counted: dict[str, Any], truth: dict[Key, Counter[str]]) -> dict[str, int]:
    windows = {(w["tenant"], w["endpoint"], w["start_ms"]): w for w in counted["windows"]}
    fields = ("requests", "input_tokens", "output_tokens", "service_ms")
    wrong = difference = 0
    for key in windows.keys() | truth.keys():
        ours, theirs = windows.get(key, {}), truth.get(key, Counter())
        differences = [abs(ours.get(field, 0) - theirs[field]) for field in fields]
        wrong += any(differences)
        difference += differences[1] + differences[2]
    return {
        "windows_compared": len(windows.keys() | truth.keys()),
        "windows_wrong": wrong,
        "difference_tokens": difference,
        "tokens": sum(use["input_tokens"] + use["output_tokens"] for use in truth.values()),
    }


def aborted(deployment: Deployment) -> int:
    """Records of workers that are in the log and not committed."""
    seen = 0
    for pool in POLICY.pools:
        topic = deployment.topics.workers(pool.name)
        reader = deployment.log.reader(committed_only=False)
        for lane in range(pool.lanes):
            partition = (topic, lane)
            end = reader.bounds(partition).end
            reader.assign({partition: 0})
            while end and not reader.reached(partition, end):
                seen += len(reader.poll(10_000, 0.2))
        reader.close()
        seen -= len(read_all(deployment.log, topic))
    return seen


def work_off_a_heap(deployment: Deployment, batches: int) -> float:
    """Batches a second of an accounting that starts behind."""
    topic = deployment.topics.workers("embed")
    lanes = 4
    deployment.kill("accounting-0")
    outcomes = tuple(Outcome(key, End.SUCCEEDED, Usage(100, 10, 0, 0, 20)) for key in range(32))
    tenants, endpoints = tuple(TENANTS[key % 4] for key in range(32)), ("embed",) * 32
    producer = deployment.log.transactional("bench.heap")
    producer.init()
    now_ms = int(time.time() * 1000)
    for start in range(0, batches, HEAP_TRANSACTION):
        producer.begin()
        for number in range(start, start + HEAP_TRANSACTION):
            said = Finished(VERSION, number, outcomes, tenants, endpoints, now_ms + number)
            producer.send(topic, number % lanes, encode(said))
        producer.commit()
    producer.close()
    reader = deployment.log.reader()
    partitions = [(topic, lane) for lane in range(lanes)]
    # A marker ends each transaction: the last record stands one before the end.
    ends = {partition: reader.bounds(partition).end - 1 for partition in partitions}
    started = time.monotonic()
    deployment.start("accounting-0")
    while True:
        committed = reader.committed(group(deployment.topics), partitions)
        if all((found := committed[p]) and found.offset >= ends[p] for p in partitions):
            break
        if time.monotonic() > started + PATIENCE_S:
            raise RuntimeError(f"{committed} of {ends}: {deployment.notes('accounting-0')[-2000:]}")
        time.sleep(0.05)
    reader.close()
    return batches / (time.monotonic() - started)


def start(deployment: Deployment, accountings: list[str]) -> None:
    """Start what the deployment consists of, until it takes requests."""
    port = str(deployment.http_port)
    services = {**PROCESSES, "accounting-0": ("accounting",)}
    for name, arguments in {**services, "ingress-0": ("ingress", "--port", port)}.items():
        deployment.define(name, *arguments, "--instance", name)
        deployment.start(name)
    if NAMELESS in accountings:
        deployment.define(NAMELESS, "accounting")
        deployment.start(NAMELESS)
    deployment.wait_ready()


def run(
    kills: int, requests: int, pace: int, seed: int, heap: int, accountings: list[str]
) -> dict[str, Any]:
    with Deployment(POLICY, benchmark=False) as deployment:
        start(deployment, accountings)
        api_keys = {
            tenant: keys.create(deployment.log, deployment.topics, tenant, 0) for tenant in TENANTS
        }
        flow = Flow(deployment.http_port, api_keys, requests, pace)
        sender = threading.Thread(target=flow.run)
        sender.start()
        killed = kill_in_turn(deployment, flow, accountings, kills, random.Random(seed))
        sender.join()
        ended, _ = wait_for_ends(deployment, flow, time.time())
        counted = wait_until_counted(deployment)
        caught_up_s = time.time()
        truth, last_ms = recount(deployment)
        if NAMELESS in accountings:
            leave(deployment)
        figures = {
            "accountings": len(accountings),
            "kills": killed,
            "requests": len(flow.accepted),
            "results": sum(ended.values()),
            **compare(counted, truth),
            "aborted_seen": aborted(deployment),
            "caught_up_s": round(caught_up_s - last_ms / 1000, 2),
            "batches_per_s": round(work_off_a_heap(deployment, heap)),
        }
    return {**figures, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="4 kills, 1,500 requests")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--pace", type=int, default=150, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--accountings", type=int, choices=(1, 2), default=1)
    arguments = parser.parse_args()
    accountings = ["accounting-0", NAMELESS][: arguments.accountings]
    heap = HEAP_BATCHES
    if arguments.quick:
        heap //= 5
        arguments.kills, arguments.requests = 4, 1_500
    figures = run(
        arguments.kills, arguments.requests, arguments.pace, arguments.seed, heap, accountings
    )
    tell(figures, quick=arguments.quick, as_json=arguments.json)


if __name__ == "__main__":
    main()
