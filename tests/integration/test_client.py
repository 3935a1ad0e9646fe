"""The client on the real stack, with an ingress that is killed in the middle."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

from adapters.kafka import KafkaLog
from fairlane import AsyncClient, Outcome, Submission
from fairlane.keys import create
from fairlane.policy_file import load
from fairlane.publish import publish_policy
from fairlane.stack import free_ports
from schemas.codec import decode_header
from schemas.records import Result
from schemas.topics import Topics
from tests.support.door import _read_all
from tests.support.processes import FairlaneProcess, Processes

POLICY = load(Path("examples/policy.toml"))
COUNT = 500


def test_every_submission_ends_once_over_the_death_of_the_ingress(
    processes: Processes, kafka_bootstrap: str, topics: Topics
) -> None:
    log = KafkaLog(kafka_bootstrap, replication=1)
    publish_policy(log, topics, POLICY)
    key = create(log, topics, "acme", 0)
    (port,) = free_ports(1)
    processes.start("scheduler", "--instance", "s")
    processes.start("worker", "--pool", "chat", "--instance", "w", "--fixed-ms", "20")

    def ingress() -> FairlaneProcess:
        started = processes.start("ingress", "--port", str(port), "--instance", "i")
        started.wait_for("listening")
        return started

    async def scenario() -> Counter[int]:
        running = await asyncio.to_thread(ingress)
        submissions = (Submission("chat", f"text {n}", tag=n) for n in range(COUNT))
        found = Counter[int]()
        async with AsyncClient(f"http://127.0.0.1:{port}", key) as client:
            async for submission, outcome in client.run_many(submissions, outstanding=40):
                assert isinstance(outcome, Outcome), outcome
                assert outcome.is_success, outcome
                assert isinstance(submission.tag, int)
                found[submission.tag] += 1
                if found.total() in {COUNT // 3, 2 * COUNT // 3}:
                    await asyncio.to_thread(running.stop, signal.SIGKILL)
                    running = await asyncio.to_thread(ingress)
        return found

    assert asyncio.run(scenario()) == dict.fromkeys(range(COUNT), 1)
    reader = log.reader()
    results = [
        decode_header(record, Result)
        for number in range(log.partitions(topics.results))
        for record in _read_all(reader, (topics.results, number))
    ]
    reader.close()
    log.close()
    assert len({result.id for result in results}) == len(results) == COUNT
