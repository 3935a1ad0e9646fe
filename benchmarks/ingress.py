"""How many requests one ingress process takes in, and how long a caller waits at half of that.

One operation is one POST /v1/requests of 1 kB over a kept connection: authenticated, charged
against the tenant's limit in Redis, published to Kafka (idempotent, acks=all, the answer waits
for it) and indexed in Redis, answered 202. Kafka and Redis are real, the ingress is the process
that `fairlane ingress` starts; no scheduler runs, so the requests stay in the log. A backlog is
published for it, so that each request's wait is predicted. `predicted_wait` has the figures of
`benchmarks.ingress_predicted`, in virtual time.

`requests_per_s` is the closed loop of 64 connections, by wrk where it is installed (`loaded_by`);
`p99_ms_half_load` is an open loop at half of that: latency counts from the time at which a call
was due. Both are medians of the rounds. `cpu_us_per_request` is the ingress process's own. All of
it shares one machine (`cores`).

    python -m benchmarks.ingress [--json] [--quick] [--seconds 10]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ingress_predicted
from benchmarks.deployment import Deployment
from benchmarks.figures import tell
from benchmarks.ingress_board import told
from benchmarks.ingress_calls import BODY_BYTES, wrk_script
from benchmarks.stream_bench import cpu_s
from fairlane import keys
from schemas.policy import Endpoint, Policy, Pool, Predict, Tenant, Tier

INGRESS = "ingress-0"
TENANTS = tuple(f"tenant-{number}" for number in range(8))
CONNECTIONS = 64
ROUNDS = 3
#: A limit that is charged each time and never reached.
PLENTY = 1_000_000_000

POLICY = Policy(
    tiers=(Tier(name="standard"),),
    pools=(Pool(name="chat"),),
    endpoints=(
        Endpoint(
            name="chat",
            pool="chat",
            requests_per_minute=PLENTY,
            predict=Predict.ON,
            latency_ms={"standard": 60_000},
        ),
    ),
    tenants=tuple(Tenant(name=name, tiers=("standard",)) for name in TENANTS),
)


class Callers:
    """The other side, always a process of its own."""

    def __init__(self, deployment: Deployment) -> None:
        made = [keys.create(deployment.log, deployment.topics, name, 0) for name in TENANTS]
        self._port, self._url = deployment.http_port, f"{deployment.url}/v1/requests"
        self._keys = deployment.folder / "keys"
        self._keys.write_text("\n".join(made))
        self._script = deployment.folder / "calls.lua"
        self._script.write_text(wrk_script(made))
        self._wrk = shutil.which("wrk")
        self.name = "wrk" if self._wrk else "benchmarks.ingress_load"

    def flood(self, seconds: float) -> dict[str, Any]:
        """As many as it takes: a closed loop."""
        if not self._wrk:
            return self._load(seconds, 0)
        duration = f"-d{max(1, round(seconds))}s"
        script = ("-s", str(self._script), self._url)
        said = _output(self._wrk, "-t1", f"-c{CONNECTIONS}", duration, *script)
        found = re.search(r"FIGURES (.*)", said)
        assert found, said
        figures: dict[str, Any] = json.loads(found[1])
        _check(figures["refused"] == 0 and figures["errors"] == 0, figures)
        return {"requests_per_s": figures["requests"] / figures["seconds"]} | figures

    def pace(self, seconds: float, rate: int) -> dict[str, Any]:
        """So many a second, whatever becomes of them: an open loop."""
        return self._load(seconds, rate)

    def _load(self, seconds: float, rate: int) -> dict[str, Any]:
        options = f"--port {self._port} --seconds {seconds} --rate {rate}".split()
        options += ["--connections", str(CONNECTIONS), "--keys", str(self._keys)]
        said = _output(sys.executable, "-m", "benchmarks.ingress_load", *options)
        figures: dict[str, Any] = json.loads(said)
        _check(set(figures["answers"]) == {"202"}, figures)
        return figures | {"requests": sum(figures["answers"].values())}


def run(seconds: float, warm_s: float) -> dict[str, Any]:
    """Warm everything up, then measure in rounds."""
    with (
        Deployment(POLICY) as deployment,
        told(deployment.addresses.redis_url, deployment.topics.prefix, POLICY, TENANTS),
    ):
        port = str(deployment.http_port)
        deployment.define(INGRESS, "ingress", "--port", port, "--instance", INGRESS)
        deployment.start(INGRESS)
        callers = Callers(deployment)
        deployment.wait_ready()
        callers.flood(warm_s)
        floods, paces, costs = [], [], []
        pid = deployment.processes[INGRESS].pid
        for _ in range(ROUNDS):
            before_s = cpu_s(pid)
            floods.append(flood := callers.flood(seconds))
            costs.append((cpu_s(pid) - before_s) / flood["requests"] * 1e6)
            paces.append(callers.pace(seconds, int(flood["requests_per_s"] / 2)))
        if "Traceback" in deployment.notes(INGRESS):
            raise RuntimeError(deployment.notes(INGRESS))
    return {
        "requests_per_s": round(median(flood["requests_per_s"] for flood in floods), 1),
        "p99_ms_half_load": median(pace["p99_ms"] for pace in paces),
        "p50_ms_half_load": median(pace["p50_ms"] for pace in paces),
        "p99_ms_full_load": median(flood["p99_ms"] for flood in floods),
        "cpu_us_per_request": round(median(costs), 1),
        "rounds_per_s": [round(flood["requests_per_s"], 1) for flood in floods],
        "rounds_p99_ms": [pace["p99_ms"] for pace in paces],
        "body_bytes": BODY_BYTES,
        "connections": CONNECTIONS,
        "loaded_by": callers.name,
        "cores": os.cpu_count(),
    }


def _output(*command: str) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    ).stdout


def _check(is_right: bool, figures: dict[str, Any]) -> None:
    if not is_right:
        raise RuntimeError(f"the ingress refused what it has to take: {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="2 s a measurement instead of 10")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    seconds, warm_s = (2.0, 3.0) if given.quick else (given.seconds, 30.0)
    figures = run(seconds, warm_s) | {
        "predicted_wait": ingress_predicted.figures(quick=given.quick)
    }
    tell(figures, quick=given.quick, as_json=given.json)


if __name__ == "__main__":
    main()
