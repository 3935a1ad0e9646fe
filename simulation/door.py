"""What an ingress does, without HTTP: requests, cancels and policies onto the log.

What belongs here: which record goes to which partition. What does not: who asks for what
(simulation.tenants), and when.
"""

from typing import NamedTuple

from schemas.codec import encode, header
from schemas.log import Log
from schemas.policy import POLICY_KEY, Policy, encode_policy
from schemas.records import VERSION, Cancel, Pause, Request, Resume
from schemas.topics import Topics


class Arrival(NamedTuple):
    """A request to come: `at_ms` after the beginning."""

    at_ms: int
    tenant: str
    endpoint: str
    tier: str
    body: bytes
    output_tokens_max: int = 0
    priority: int = 500
    deadline_ms: int = 0  # after its arrival; 0: none
    id: str = ""  # "": numbered
    inputs: int = 1


class Place(NamedTuple):
    """Where a request stands: its name for a cancel; `shard` is whose control it goes to."""

    topic: str
    partition: int
    offset: int
    shard: int


class Door:
    """Publishes under the policy that was published last."""

    def __init__(self, log: Log, topics: Topics, policy: Policy) -> None:
        self.producer = log.producer()
        self._unread = log.reader(committed_only=False)
        self._topics = topics
        self._policy = policy
        self._pools = {endpoint.name: endpoint.pool for endpoint in policy.endpoints}

    def publish(self, policy: Policy) -> None:
        """Publish a policy; the services follow it."""
        self._policy = policy
        self._pools |= {endpoint.name: endpoint.pool for endpoint in policy.endpoints}
        self.producer.send(self._topics.policy, 0, encode_policy(policy), key=POLICY_KEY)

    def submit(self, arrival: Arrival, request_id: str, now_ms: int) -> Place:
        """Publish a request under an id; its deadline counts from `now_ms`."""
        meta = Request(
            v=VERSION,
            id=request_id,
            tenant=arrival.tenant,
            endpoint=arrival.endpoint,
            priority=arrival.priority,
            deadline_ms=now_ms + arrival.deadline_ms if arrival.deadline_ms else 0,
            input_tokens=-(-len(arrival.body) // 4),
            output_tokens_max=arrival.output_tokens_max,
            inputs=arrival.inputs,
        )
        topic, partition, shard = self._where(arrival)
        offsets: list[int] = []
        self.producer.send(
            topic,
            partition,
            arrival.body,
            key=arrival.tenant.encode(),
            headers=header(meta),
            on_delivery=lambda offset, _: offsets.append(-1 if offset is None else offset),
        )
        return Place(topic, partition, offsets[0] if offsets else -1, shard)

    def next_place(self, arrival: Arrival) -> Place:
        """Where the request would stand if it were published now: for a cancel that overtakes."""
        topic, partition, shard = self._where(arrival)
        return Place(topic, partition, self._unread.bounds((topic, partition)).end, shard)

    def cancel(self, place: Place) -> None:
        """Cancel what stands, or will stand, at a place."""
        record = Cancel(VERSION, place.topic, place.partition, place.offset)
        self.producer.send(self._topics.control, place.shard, encode(record))

    def tell(self, record: Pause | Resume) -> None:
        """Pause or resume: every shard is told."""
        for shard in range(self._policy.topology.shards):
            self.producer.send(self._topics.control, shard, encode(record))

    def _where(self, arrival: Arrival) -> tuple[str, int, int]:
        pool = self._pools[arrival.endpoint]
        partition = self._topics.request_partition(pool, arrival.tenant, self._policy)
        shard = self._topics.shard_of(pool, self._policy.topology.shards)
        return self._topics.requests(arrival.tier), partition, shard
