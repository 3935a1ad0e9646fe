"""A deployment whose workers are written by hand, on a real Kafka."""

import uuid
from collections import Counter
from pathlib import Path

from adapters.kafka import KafkaLog
from fairlane.publish import publish_policy
from fairlane.usage_read import read
from schemas.log import Log
from schemas.records import Finished
from schemas.topics import Topics
from schemas.usage import UsageSum, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, Lane, expected, finished, policy, tokens
from tests.support.processes import FairlaneProcess, Processes, until

ACME, GLOBEX = ("acme", "gpu"), ("globex", "gpu")
#: Whose batches stand on a lane of their own, two days apart.
INITECH = ("initech", "gpu")
#: Lanes that batches are put on in turn, and one more for INITECH.
LANES, APART = 2, 2


class World:
    """A deployment of one pool whose workers are written by hand."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.log: Log = KafkaLog(bootstrap, replication=1)
        self.topics = Topics(f"acct-{uuid.uuid4().hex[:12]}")
        env = {
            "FAIRLANE_KAFKA": bootstrap,
            "FAIRLANE_PREFIX": self.topics.prefix,
            "FAIRLANE_REPLICATION": "1",
        }
        self.processes = Processes(folder, env)
        publish_policy(self.log, self.topics, policy(gpu=LANES + 1))
        self.lanes = [Lane(self.log, self.topics, "gpu", lane) for lane in range(LANES + 1)]
        self.batches: list[Finished] = []
        self._number = 0
        self._process: FairlaneProcess | None = None

    def start(self, *arguments: str) -> FairlaneProcess:
        return self.processes.start("accounting", *arguments)

    def running(self) -> FairlaneProcess:
        """The process that tests share, started again if one of them ended it."""
        if self._process is None or self._process.process.poll() is not None:
            self._process = self.start("--instance", "a")
        return self._process

    def batch(self, after_ms: int = 0) -> Finished:
        self._number += 1
        return finished(
            self._number, BEFORE_MIDNIGHT_MS + after_ms, [ACME, GLOBEX, ACME], self._number
        )

    def finish(self, count: int, every_ms: int = 1_000) -> None:
        """Batches on lanes in turn; all of them have to be counted."""
        for _ in range(count):
            batch = self.batch(self._number * every_ms)
            self.batches.append(batch)
            self.lanes[self._number % LANES].finish(batch)

    def counted(self) -> list[UsageSum]:
        """What is published when the accounting has caught up."""
        until(lambda: not read(self.log, self.topics).behind, "the accounting has caught up")
        return read(self.log, self.topics).sums

    def is_right(self) -> bool:
        """All is counted, once. What was just committed is visible some milliseconds later."""
        right = expected(self.batches, Window)
        until(lambda: self._tokens() == right, "every batch is counted once")
        return self._tokens() == right

    def _tokens(self) -> Counter[tuple[object, ...]]:
        return tokens(total for total in self.counted() if total.tenant != INITECH[0])

    def close(self) -> None:
        self.processes.close()
        for lane in self.lanes:
            lane.close()
        self.log.close()
