"""A real corpus through the real stack and the real model, beside a tenant with live traffic.

One operation is one text embedded: read by `fairlane embed`, sent over HTTP with others of
its tenant, scheduled, run by the engine `embed`, written to a Parquet shard. 5,000 texts of
three tenants (benchmarks/corpus.py); a fourth tenant sends one short text a second to the
same endpoint all the time. One ingress, one scheduler, one worker with two threads
and two slots, so that it has the next batch when one is done.

First the bare loop on the same texts: ONNX Runtime and the tokenizer, nothing else, a text
at a time, once with two threads inside each run, which is the plain loop and the runtime's
default here, and once with two runs side by side; the faster one is the ceiling
(`tokens_per_s_ratio`), its vectors are the reference. The engine alone, which packs texts
into rows, is measured beside it. Then the fourth tenant alone on the idle system, then the
corpus (throughput and neighbour), then the corpus again into another folder while a worker
and then the command itself are killed with kill -9 and started again.

Throughput is the tokens of the corpus by the time from its first arrival to its last end,
as the results say. A wait is from arrival to pick; every request of the fourth tenant is
waited for and counted. Exit code 1: something is missing, doubled, wrong, or waited too long.

    python -m benchmarks.embed --json [--quick]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pyarrow.dataset
from numpy.typing import NDArray
from safetensors.numpy import load
from tokenizers import Tokenizer

from benchmarks.chaos import read_all
from benchmarks.corpus import Text, texts
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from fairlane import keys
from fairlane.client import AsyncClient
from fairlane.client_values import ClientError
from fairlane.models import folder
from schemas.codec import decode_header
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import Result
from workers.engine import EngineBatch, EngineRequest
from workers.engines import minilm, weights
from workers.engines.embed import TOKENS_MAX, EmbedEngine

NEIGHBOUR = "neighbour"
CORPUS = ("docs", "topics", "licences")
#: The neighbour alone, seconds: as many waits as seconds.
IDLE_S = 90
POLICY = Policy(
    tiers=(Tier(name="standard"),),
    pools=(Pool(name="embed", lanes=1, prefetch=0),),
    endpoints=(
        Endpoint(
            name="embed",
            pool="embed",
            cost=CostModel.TOKEN,
            quantum=1_024,
            batch_requests=2_000,  # texts: it is tokens that bound a batch here
            batch_tokens=4_096,
            tokens_max=4_096,
            batch_wait_ms=5,
            body_bytes_max=400_000,
            inputs_max=64,
            attempts_max=10,
        ),
    ),
    tenants=tuple(Tenant(name=name, tiers=("standard",)) for name in (*CORPUS, NEIGHBOUR)),
)
WORKER = "worker-0"

#: Texts in a call of the engine alone, about as many as a batch holds.
ALONE_TEXTS = 64
#: Cosine below which a vector is not that of the direct run.
COSINE_MIN = 0.9999

Vectors = NDArray[np.float32]


# --- the ceiling


class Bare(NamedTuple):
    """The faster of two plain loops: tokens a second, and its vectors by id."""

    name: str
    tokens: int
    tokens_per_s: float
    vectors: dict[str, Vectors]


def bare_loops(corpus: Sequence[Text]) -> list[Bare]:
    model = folder()
    tokenizer = Tokenizer.from_file(str(model / weights.TOKENIZER.name))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX)
    graph = minilm.build(load((model / weights.WEIGHTS.name).read_bytes())).SerializeToString()
    return [bare(graph, tokenizer, corpus, inside) for inside in (2, 1)]


def bare(graph: bytes, tokenizer: Any, corpus: Sequence[Text], inside: int) -> Bare:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = inside
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def embed(text: Text) -> tuple[int, Vectors]:
        ids = np.array(tokenizer.encode(text.text).ids, np.int64)
        row = {
            minilm.IDS: ids,
            minilm.PLACES: np.arange(len(ids)),
            minilm.TEXTS: np.zeros(len(ids), np.int64),
        }
        return len(ids), session.run((minilm.VECTORS,), row)[0][0]

    for text in corpus[:50]:
        embed(text)
    began = time.perf_counter()
    with ThreadPoolExecutor(2 // inside) as pool:
        ran = list(pool.map(embed, corpus))
    took = time.perf_counter() - began
    tokens = sum(count for count, _ in ran)
    vectors = {text.id: vector for text, (_, vector) in zip(corpus, ran, strict=True)}
    return Bare(f"{inside} inside, {2 // inside} abreast", tokens, tokens / took, vectors)


def engine_alone(corpus: Sequence[Text]) -> float:
    """Tokens a second of the engine on the same texts, as many a call as the command sends."""
    engine = EmbedEngine(folder(), 2)
    requests = [
        EngineRequest(0, text.id, text.tenant, "embed", json.dumps(text.text).encode())
        for text in corpus
    ]
    began = time.perf_counter()
    tokens = 0
    for start in range(0, len(requests), ALONE_TEXTS):
        batch = EngineBatch(0, tuple(requests[start : start + ALONE_TEXTS]))
        tokens += sum(o.usage.input_tokens for o in engine.run(batch, lambda _: False))
    return tokens / (time.perf_counter() - began)


# --- the fourth tenant


class Neighbour:
    """One request a second until it is stopped; keeps the ids it was given."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self.ids: list[str] = []
        self.trouble: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        began = time.monotonic()
        async with AsyncClient(self._url, self._key) as client, asyncio.TaskGroup() as tasks:
            number = 0
            while not self._stop.is_set():
                tasks.create_task(self._one(client, number))
                number += 1
                await asyncio.sleep(max(0.0, began + number - time.monotonic()))

    async def _one(self, client: AsyncClient, number: int) -> None:
        try:
            self.ids.append((await client.submit("embed", f"a live question, number {number}")).id)
        except ClientError as error:
            self.trouble.append(repr(error))

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        if self.trouble:
            raise RuntimeError(f"neighbour: {self.trouble}")
        return self.ids


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


# --- the corpus


class Command:
    """`fairlane embed` as a process."""

    def __init__(
        self, deployment: Deployment, source: Path, out: Path, api: dict[str, str]
    ) -> None:
        self._arguments = [
            sys.executable,
            "-m",
            "fairlane",
            "embed",
            str(source),
            "--out",
            str(out),
        ]
        self._arguments += ["--url", deployment.url, "--tenant-column", "tenant"]
        for tenant in CORPUS:
            self._arguments += ["--tenant-key", f"{tenant}={api[tenant]}"]
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        self.process = subprocess.Popen(
            self._arguments, stdin=subprocess.DEVNULL, stdout=sys.stderr
        )
        return self.process

    def kill(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError("fairlane embed had ended before it could be killed")
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        if code := self.process.wait():
            raise RuntimeError(f"fairlane embed ended with {code}")


def results(deployment: Deployment) -> list[Result]:
    records = read_all(deployment.log, deployment.topics.results)
    return [decode_header(record, Result) for record in records]


def wait_for_inputs(deployment: Deployment, before: int, tokens: int) -> None:
    """Until the corpus's results since `before` hold so many tokens."""
    while True:
        ended = [r for r in results(deployment)[before:] if r.tenant in CORPUS]
        if sum(result.usage.input_tokens for result in ended) >= tokens:
            return
        time.sleep(0.5)


def compared(out: Path, reference: dict[str, Vectors]) -> dict[str, Any]:
    """Rows of a folder of shards, read apart from the command's own code."""
    table = pyarrow.dataset.dataset(out, format="parquet").to_table(columns=["id", "vector"])
    ids = table["id"].to_pylist()
    found = np.array(table["vector"].combine_chunks().flatten()).reshape(len(ids), -1)
    cosines = [
        float(found[row] @ reference[name])
        / float(np.linalg.norm(found[row]) * np.linalg.norm(reference[name]))
        for row, name in enumerate(ids)
    ]
    counted = Counter(ids)
    return {
        "rows": len(ids),
        "missing": len(reference.keys() - counted.keys()),
        "doubled": sum(1 for count in counted.values() if count > 1),
        "worst_cosine": min(cosines),
    }


def waits(deployment: Deployment, ids: Sequence[str]) -> list[int]:
    """Waits of all of these requests; the last of them may have to end first."""
    wanted, deadline = set(ids), time.monotonic() + 60.0
    while True:
        found = [r for r in results(deployment) if r.id in wanted]
        if len(found) >= len(wanted):
            return [r.picked_ms - r.arrived_ms for r in found]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(wanted) - len(found)} requests of the neighbour don't end")
        time.sleep(0.5)


def run(count: int, idle_s: int) -> dict[str, Any]:
    corpus = texts(count)
    loops = bare_loops(corpus)
    best = max(loops, key=lambda loop: loop.tokens_per_s)
    alone = engine_alone(corpus)
    print([(loop.name, round(loop.tokens_per_s)) for loop in loops], file=sys.stderr)
    with Deployment(POLICY, benchmark=False) as deployment:
        source = deployment.folder / "corpus.jsonl"
        source.write_text("".join(json.dumps(text._asdict()) + "\n" for text in corpus))
        worker = ("worker", "--pool", "embed", "--engine", "embed", "--threads", "2")
        processes = {
            "scheduler-0": ("scheduler",),
            "ingress-0": ("ingress", "--port", str(deployment.http_port)),
            WORKER: (*worker, "--slots", "2"),
        }
        for name, arguments in processes.items():
            deployment.define(name, *arguments, "--instance", name)
            deployment.start(name)
        deployment.wait_ready()
        tenants = (*CORPUS, NEIGHBOUR)
        api = {name: keys.create(deployment.log, deployment.topics, name, 0) for name in tenants}
        return {
            **(figures := measured(deployment, source, api, best, idle_s)),
            "tokens_per_s_ratio_of_plain_loop": round(
                figures["tokens_per_s"] / loops[0].tokens_per_s, 3
            ),
            "bare_tokens_per_s": {loop.name: round(loop.tokens_per_s) for loop in loops},
            "engine_alone_tokens_per_s": round(alone),
            "tokens": best.tokens,
        }


def measured(
    deployment: Deployment, source: Path, api: dict[str, str], best: Bare, idle_s: int
) -> dict[str, Any]:
    warm = Neighbour(deployment.url, api[NEIGHBOUR])
    while not warm.ids:
        time.sleep(0.2)
    waits(deployment, warm.stop())
    neighbour = Neighbour(deployment.url, api[NEIGHBOUR])
    time.sleep(idle_s)
    idle = waits(deployment, neighbour.stop())

    neighbour = Neighbour(deployment.url, api[NEIGHBOUR])
    began = time.monotonic()
    before = len(results(deployment))
    Command(deployment, source, deployment.folder / "calm", api).wait()
    took_s = time.monotonic() - began
    beside = waits(deployment, neighbour.stop())
    ended = [r for r in results(deployment)[before:] if r.tenant in CORPUS]
    flow_s = (max(r.ended_ms for r in ended) - min(r.arrived_ms for r in ended)) / 1_000
    service = [r.usage.service_ms for r in ended]
    calm = compared(deployment.folder / "calm", best.vectors)

    neighbour = Neighbour(deployment.url, api[NEIGHBOUR])
    before = len(results(deployment))
    command = Command(deployment, source, deployment.folder / "killed", api)
    wait_for_inputs(deployment, before, best.tokens // 3)
    deployment.kill(WORKER)
    deployment.start(WORKER)
    wait_for_inputs(deployment, before, best.tokens * 2 // 3)
    command.kill()
    command.start()
    command.wait()
    through_kills = waits(deployment, neighbour.stop())
    ids = Counter(r.id for r in results(deployment))
    killed = compared(deployment.folder / "killed", best.vectors)
    return {
        **{name: max(calm[name], killed[name]) for name in ("missing", "doubled")},
        "rows": min(calm["rows"], killed["rows"]),
        "worst_cosine": min(calm["worst_cosine"], killed["worst_cosine"]),
        "killed": [WORKER, "fairlane embed"],
        "results_doubled": sum(1 for count in ids.values() if count > 1),
        "tokens_per_s": round(best.tokens / flow_s),
        "tokens_per_s_ratio": round(best.tokens / flow_s / best.tokens_per_s, 3),
        "command_s": round(took_s, 1),
        "batch_service_ms": {"p50": percentile(service, 0.5), "p99": percentile(service, 0.99)},
        "neighbour_wait_idle_p99_ms": percentile(idle, 0.99),
        "neighbour_wait_p99_ms": percentile(beside, 0.99),
        "neighbour_wait_more_ms": percentile(beside, 0.99) - percentile(idle, 0.99),
        "neighbour_wait_through_kills_p99_ms": percentile(through_kills, 0.99),
        "neighbour_requests": [len(idle), len(beside), len(through_kills)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="300 texts, 5 s idle")
    arguments = parser.parse_args()
    figures = run(300, 5) if arguments.quick else run(5_000, IDLE_S)
    tell(figures, quick=arguments.quick, as_json=arguments.json)
    sys.exit(0 if is_right(figures) else 1)


def is_right(figures: dict[str, Any]) -> bool:
    return (
        not (figures["missing"] or figures["doubled"] or figures["results_doubled"])
        and figures["worst_cosine"] >= COSINE_MIN
        and figures["neighbour_wait_more_ms"] <= figures["batch_service_ms"]["p99"]
    )


if __name__ == "__main__":
    main()
