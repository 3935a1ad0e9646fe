"""An embedded deployment: it stays small, and what it deletes nobody misses."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from adapters.clock import SystemClock
from fairlane.client_values import Outcome, Submission
from fairlane.embedded import Embedded, _Notes, one_endpoint
from fairlane.embedded_trim import Trimmer
from fairlane.errors import FairlaneError
from fairlane.run import NoMeter
from producers.ingress import Ingress
from scheduler.service import Scheduler
from schemas.policy import Policy
from schemas.records import End
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.service import WorkerService, WorkerSettings
from workers.slots import ThreadSlots

ENGINE = SimulatedEngine(SimulatedSettings(fixed_ms=1, per_token_us=0, dimensions=8))


def policy() -> Policy:
    return one_endpoint("embed", ["acme", "bolt"])


def held_bytes(deployment: Embedded) -> dict[str, int]:
    """Bytes of values that the log holds, by topic."""
    found: dict[str, int] = {}
    for (topic, _), part in deployment.log._store.parts.items():
        size = sum(len(record.value) for record in part.slots if record is not None)
        found[topic.partition(".")[2]] = found.get(topic.partition(".")[2], 0) + size
    return found


def submissions(count: int, size: int = 8_000) -> Iterator[Submission]:
    for number in range(count):
        yield Submission("embed", [f"{number} " + "x" * size], tag=number)


async def run(deployment: Embedded, tenant: str, count: int) -> AsyncIterator[tuple[int, Outcome]]:
    async with deployment.client(tenant) as client:
        async for submission, ended in client.run_many(submissions(count), outstanding=20):
            assert isinstance(ended, Outcome)
            assert isinstance(submission.tag, int)
            yield submission.tag, ended


def restart_scheduler(deployment: Embedded) -> None:
    """Kill -9 it and start another, which reads all from the log."""
    deployment.scheduler = Scheduler(
        deployment.log,
        deployment.topics,
        clock=SystemClock(),
        meter=NoMeter(),
        notes=_Notes(),
        instance="embedded",
        idle_wait_s=0.0,
    )


def restart_worker(deployment: Embedded) -> None:
    """Likewise the worker; what runs is handed back."""
    clock = SystemClock()
    deployment.workers[0] = WorkerService(
        deployment.log,
        deployment.topics,
        WorkerSettings("embed", "embedded"),
        lambda _: ThreadSlots(ENGINE, 2, clock),
        clock,
        NoMeter(),
        _Notes(),
    )


def test_what_passed_through_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.embedded_trim.REQUEST_BYTES", 200_000)
    monkeypatch.setattr("fairlane.embedded_trim.RESULT_BYTES", 20_000)
    monkeypatch.setattr("fairlane.embedded.TRIM_S", 0.0)

    async def story() -> dict[str, int]:
        async with Embedded(
            policy(), {"embed": ENGINE}, slots=2, index_bytes=200_000
        ) as deployment:
            ended = [number async for number, _ in run(deployment, "acme", 300)]
            assert sorted(ended) == list(range(300))
            return held_bytes(deployment)

    held = asyncio.run(story())
    assert held["requests.standard"] < 600_000  # of 2.4 MB
    assert held["batches.embed"] < 400_000
    assert held["results"] <= 20_000
    assert held["decisions"] < 400_000


def test_nothing_that_was_deleted_is_missed_after_crashes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scheduler and worker are killed and read the log again, trimmed as far as it goes."""
    monkeypatch.setattr("fairlane.embedded_trim.REQUEST_BYTES", 100_000)
    monkeypatch.setattr("fairlane.embedded.TRIM_S", 0.0)

    async def story() -> None:
        async with Embedded(policy(), {"embed": ENGINE}, slots=2) as deployment:
            seen: set[int] = set()
            async for number, outcome in run(deployment, "acme", 300):
                assert outcome.state is End.SUCCEEDED
                assert len(json.loads(outcome.output_bytes)["data"]) == 1
                assert number not in seen
                seen.add(number)
                if len(seen) in {50, 120, 210}:
                    restart_scheduler(deployment)
                if len(seen) in {90, 120, 250}:
                    restart_worker(deployment)
            assert seen == set(range(300))
            requests = deployment.log.partitions(deployment.topics.requests("standard"))
            assert requests == 1
            assert deployment.log._store.parts[deployment.topics.requests("standard"), 0].low > 0
            assert deployment.log._store.parts[deployment.topics.decisions, 0].low > 0

    asyncio.run(story())
    assert [record.message for record in caplog.records if "halted" in record.message] == []


def test_an_output_too_large_for_the_index_is_still_there() -> None:
    engine = SimulatedEngine(SimulatedSettings(fixed_ms=1, per_token_us=0, dimensions=8_192))

    async def story() -> None:
        async with (
            Embedded(policy(), {"embed": engine}) as deployment,
            deployment.client("bolt") as client,
        ):
            accepted = await client.submit("embed", ["a", "b"])
            outcome = (await client.wait(accepted.id)).raise_for_state()
            assert len(outcome.output["data"][1]["embedding"]) == 8_192

    asyncio.run(story())


def test_services_that_can_not_go_on_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Trimmer, "trim", broken)
    monkeypatch.setattr("fairlane.embedded.TRIM_S", 0.0)

    async def story() -> None:
        async with Embedded(policy(), {"embed": ENGINE}) as deployment:
            with pytest.raises(FairlaneError, match="out of order"):
                await deployment.failed()

    asyncio.run(story())


def test_services_that_can_not_even_begin_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Scheduler, "turn", broken)
    monkeypatch.setattr(Ingress, "why_not_ready", lambda _: "not yet")

    async def story() -> None:
        async with Embedded(policy(), {"embed": ENGINE}):
            raise AssertionError("it began")

    with pytest.raises(FairlaneError, match="out of order"):
        asyncio.run(story())


def test_an_ingress_that_takes_nothing_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ingress, "why_not_ready", lambda _: "it follows nobody")
    monkeypatch.setattr("fairlane.embedded.READY_S_MAX", 0.0)

    async def story() -> None:
        async with Embedded(policy(), {"embed": ENGINE}):
            raise AssertionError("it began")

    with pytest.raises(FairlaneError, match="it follows nobody"):
        asyncio.run(story())


def test_a_pool_without_an_engine_is_told() -> None:
    with pytest.raises(FairlaneError, match="no engine for embed"):
        Embedded(policy(), {"other": ENGINE})


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(FairlaneError, match="name 'A Tenant' is not valid"):
        one_endpoint("embed", ["A Tenant"])
