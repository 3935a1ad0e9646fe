"""Whatever is sent: no 500, and every answer is one that the OpenAPI document has.

Schemathesis makes the calls, out of the document as the ingress serves it, narrowed down to what
one policy knows: so what it holds for valid has to be taken. Behind the door a whole deployment
runs, so that what is accepted ends, and streams of events with it.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from fairlane.embedded import Embedded
from fairlane.http_protocol import GuardedProtocol
from fairlane.stack import free_ports
from producers.app import build_app
from producers.core import ids
from producers.core.listing import cursor
from producers.core.openapi import document
from schemas.front import Listed
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from tests.support import fuzz_hooks
from tests.support.door import until
from workers.engines.simulated import SimulatedEngine, SimulatedSettings

POLICY = Policy(
    tiers=(Tier(name="gold"),),
    pools=(Pool(name="chat"),),
    endpoints=(Endpoint(name="chat", pool="chat", batch_wait_ms=0),),
    tenants=(Tenant(name="acme", tiers=("gold",)),),
)
ENGINE = SimulatedEngine(SimulatedSettings(fixed_ms=1, per_token_us=0))
#: Calls of one kind; with all kinds a few hundred, some seconds.
EXAMPLES = 6
#: A bulk call is answered by 200 whatever is wrong with its lines: their verdicts tell.
SETTINGS = """
[[operations]]
include-path = "/v1/requests:bulk"

[operations.checks]
negative_data_rejection.enabled = false
"""


def narrowed() -> dict[str, Any]:
    """The document, with the names and bounds of the policy."""
    told = document()
    fields = told["components"]["schemas"]["Submission"]["properties"]
    fields["endpoint"] = {"const": "chat"}
    fields["tier"] = {"const": "gold"}
    fields["max_output_tokens"]["maximum"] = POLICY.endpoints[0].tokens_max
    line = {"$ref": "#/components/schemas/Submission"}
    lines = {"type": "array", "items": line}
    bulk = told["paths"][f"{ids.ROUTE}:bulk"]["post"]
    bulk["requestBody"]["content"][fuzz_hooks.NDJSON]["schema"] = lines
    # The same key with another body is refused, as it should be, and two calls may meet so.
    submit = told["paths"][ids.ROUTE]["post"]
    submit["parameters"] = [p for p in submit["parameters"] if p["name"] != "Idempotency-Key"]
    place = Listed(1, ids.request_id("acme", ids.ROUTE, "a"))
    for parameter in told["paths"][ids.ROUTE]["get"]["parameters"]:
        if parameter["name"] == "cursor":
            parameter["schema"] = {"const": cursor(place)}
    return told


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, str]]:
    """Address and key of a deployment behind a real server."""
    async with Embedded(POLICY, {"chat": ENGINE}) as deployment:
        (port,) = free_ports(1)
        config = uvicorn.Config(
            build_app(deployment.ingress),
            host="127.0.0.1",
            port=port,
            http=GuardedProtocol,
            lifespan="off",
            log_config=None,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{port}", deployment.keys["acme"]
        finally:
            server.should_exit = True
            await serving


async def fuzz(folder: Path) -> tuple[int, str]:
    """Exit code and report of schemathesis."""
    path = folder / "openapi.json"
    path.write_text(json.dumps(narrowed()))
    (folder / "schemathesis.toml").write_text(SETTINGS)
    async with served() as (url, key):
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", url),
            *("--header", f"Authorization: Bearer {key}", "--request-timeout", "10"),
            *("--phases", "coverage,fuzzing,stateful", "--max-examples", str(EXAMPLES)),
            *("--generation-deterministic", "--suppress-health-check", "all"),
            "--no-color",
        ]
        root = Path(__file__).parents[2]
        environment = os.environ | {
            "SCHEMATHESIS_HOOKS": "tests.support.fuzz_hooks",
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        }
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        report, _ = await process.communicate()
        return process.returncode or 0, report.decode()


@pytest.mark.timeout(300)  # some 20 s of work, and as much again for each busy neighbour
def test_no_call_is_answered_by_an_error_or_by_what_is_not_told(tmp_path: Path) -> None:
    code, report = asyncio.run(fuzz(tmp_path))
    assert code == 0, report
    assert "Stateful" in report
