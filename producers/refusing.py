"""Recording refusals in the topic `refusals`: who was not let in, where and why."""

from producers.core.answers import Problem
from producers.core.refusals import RefusalMeter
from producers.directory import Directory
from producers.ports import Clock, Meter, NoMeter
from producers.publisher import Publisher
from schemas import codec
from schemas.front import Charge
from schemas.records import VERSION, Refusal
from schemas.topics import Topics, bucket


class RefusalLog:
    """Publishes refusals at a bounded rate; never waits, and drops what the log won't take."""

    def __init__(
        self,
        publisher: Publisher,
        directory: Directory,
        topics: Topics,
        clock: Clock,
        counted: Meter | None = None,
    ) -> None:
        """The directory tells the number of partitions; before a policy nothing is recorded."""
        self._publisher, self._directory = publisher, directory
        self._topics, self._clock = topics, clock
        self._meter, self._counted = RefusalMeter(), counted or NoMeter()

    def note(
        self, problem: Problem, tenant: str, endpoint: str, charge: Charge | None = None
    ) -> None:
        """Record one refusal, or count it when its tenant's come too fast."""
        self._counted.count("ingress_refusals", reason=problem.reason.value)
        refusal = Refusal(
            v=VERSION,
            id=charge.id if charge else "",
            tenant=tenant,
            endpoint=endpoint,
            reason=problem.reason.value,
            cost=charge.requests if charge else 0,
            limit=_limit(problem),
            retry_after_s=problem.retry_after_s,
        )
        self._publish(self._meter.note(refusal, self._clock.now_ms()))

    def tick(self) -> None:
        """Record the counts of the second that is over."""
        self._publish(self._meter.tick(self._clock.now_ms()))

    def drain(self) -> None:
        """Record all counts: the process is about to stop."""
        self._publish(self._meter.drain())

    def _publish(self, refusals: list[Refusal]) -> None:
        view = self._directory.view
        if view is None:
            return
        for refusal in refusals:
            partition = bucket(refusal.tenant, view.policy.topology.buckets)
            self._publisher.post(self._topics.refusals, partition, codec.encode(refusal))


def _limit(problem: Problem) -> str:
    """The limit that refused: its figure and its name; "" for other refusals."""
    said = dict(problem.extra)
    return f"{said['limit']} {said['limit_name']}" if "limit_name" in said else ""
