"""Names, partitions and retention of every topic: the only place they are written.

One prefix is one deployment. Explicit partitions everywhere: `bucket` spreads tenants over
the hashed topics, `request_partition` puts a root tenant's requests of a pool on its shard.
"""

from typing import NamedTuple
from zlib import crc32

from schemas.log import TopicSpec
from schemas.policy import Inbox, Policy

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: Requests, batches, workers, results: twice the longest wait plus the replay window.
RETENTION_MS = 7 * DAY_MS
#: Segments roll by time as well, so that retention acts on quiet topics.
SEGMENT_MS = DAY_MS
#: A weekend in which nobody takes inboxes in loses nothing; requests a week late help nobody.
INBOX_RETENTION_MS = 3 * DAY_MS
#: One: the order of the whole inbox is kept, and a partition takes more than a tenant is let in.
INBOX_PARTITIONS = 1
#: An older sum that is written after a newer one (by a process that was stopped and woke up)
#: must not be what compaction leaves: both stay this long, and readers take the newer.
COMPACTION_LAG_MS = HOUR_MS


def bucket(name: str, buckets: int) -> int:
    """Stable hash partition of a name: crc32 mod buckets (the same in every process)."""
    return crc32(name.encode()) % buckets


class Topics(NamedTuple):
    """Topic names under one prefix."""

    prefix: str = "fairlane"

    def requests(self, tier: str) -> str:
        """Accepted requests of a tier."""
        return f"{self.prefix}.requests.{tier}"

    def batches(self, pool: str) -> str:
        """Batches of a pool; partition = lane."""
        return f"{self.prefix}.batches.{pool}"

    def workers(self, pool: str) -> str:
        """What a pool's workers say; partition = lane."""
        return f"{self.prefix}.workers.{pool}"

    def inbox(self, tenant: str) -> str:
        """Requests that a tenant puts on the bus itself: the topic alone says whose they are."""
        return f"{self.prefix}.inbox.{tenant}"

    def results_of(self, tenant: str) -> str:
        """What became of a tenant's requests, for a tenant that has an inbox."""
        return f"{self.prefix}.results.{tenant}"

    @property
    def decisions(self) -> str:
        """What each shard decided; partition = shard."""
        return f"{self.prefix}.decisions"

    @property
    def control(self) -> str:
        """Cancels, pauses, resumes; partition = shard."""
        return f"{self.prefix}.control"

    @property
    def results(self) -> str:
        """Terminal outcomes; partition = bucket(tenant)."""
        return f"{self.prefix}.results"

    @property
    def refusals(self) -> str:
        """Refused at the door; partition = bucket(tenant)."""
        return f"{self.prefix}.refusals"

    @property
    def dead(self) -> str:
        """What could not be served; partition = bucket(tenant)."""
        return f"{self.prefix}.dead"

    def usage(self, pool: str) -> str:
        """Sums of use over what a pool's workers say; partition = lane, compacted."""
        return f"{self.prefix}.usage.{pool}"

    @property
    def costs(self) -> str:
        """Learned cost per token; partition = bucket(tenant), compacted."""
        return f"{self.prefix}.costs"

    @property
    def policy(self) -> str:
        """The policy, one partition, compacted; record key b"policy"."""
        return f"{self.prefix}.policy"

    @property
    def keys(self) -> str:
        """Digests of API keys, one partition, compacted; record key = id of the key."""
        return f"{self.prefix}.keys"

    def shard_of(self, pool: str, shards: int) -> int:
        """Shard that owns a pool: a ring never spans shards."""
        return bucket(pool, shards)

    def request_partition(self, pool: str, tenant: str, policy: Policy) -> int:
        """Partition of `requests.<tier>` for a tenant's requests to a pool.

        A root tenant's children share its partition: their order among each other is kept.
        """
        topology = policy.topology
        shard = self.shard_of(pool, topology.shards)
        return shard + topology.shards * bucket(policy.root(tenant), topology.spread)

    def base(self) -> list[TopicSpec]:
        """Topics that exist before any policy does."""
        compacted = {"cleanup.policy": "compact"}
        return [TopicSpec(self.policy, 1, compacted), TopicSpec(self.keys, 1, compacted)]

    def usage_spec(self, pool: str, lanes: int) -> TopicSpec:
        """The topic of a pool's sums; also of a pool that left the policy."""
        config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
        return TopicSpec(self.usage(pool), lanes, config)

    def inbox_specs(self, tenant: str) -> list[TopicSpec]:
        """The two topics of a tenant that has an inbox.

        Brokers stamp what comes in, so that deadlines count on their clock. They keep it
        unpacked: a small packed batch of zeros would be a huge one in whoever reads it.
        """
        taken = {
            "retention.ms": str(INBOX_RETENTION_MS),
            "segment.ms": str(SEGMENT_MS),
            "message.timestamp.type": "LogAppendTime",
            "compression.type": "uncompressed",
        }
        given = {"retention.ms": str(RETENTION_MS), "segment.ms": str(SEGMENT_MS)}
        return [
            TopicSpec(self.inbox(tenant), INBOX_PARTITIONS, taken),
            TopicSpec(self.results_of(tenant), 1, given),
        ]

    def of(self, policy: Policy) -> list[TopicSpec]:
        """Every topic that a policy needs, with its partitions and broker settings."""
        top = policy.topology
        kept = {"retention.ms": str(RETENTION_MS), "segment.ms": str(SEGMENT_MS)}
        twice = {**kept, "retention.ms": str(2 * RETENTION_MS)}
        appended = {**kept, "message.timestamp.type": "LogAppendTime"}
        specs = [
            TopicSpec(self.requests(tier.name), top.shards * top.spread, appended)
            for tier in policy.tiers
        ]
        for pool in policy.pools:
            specs += [
                TopicSpec(self.batches(pool.name), pool.lanes, kept),
                TopicSpec(self.workers(pool.name), pool.lanes, kept),
                self.usage_spec(pool.name, pool.lanes),
            ]
        specs += [
            TopicSpec(self.decisions, top.shards, twice),
            TopicSpec(self.control, top.shards, kept),
            TopicSpec(self.results, top.buckets, kept),
            TopicSpec(self.refusals, top.buckets, kept),
            TopicSpec(self.dead, top.buckets, twice),
            TopicSpec(self.costs, top.buckets, {"cleanup.policy": "compact"}),
        ]
        for tenant in policy.tenants:
            if tenant.inbox is not Inbox.OFF:
                specs += self.inbox_specs(tenant.name)
        return self.base() + specs
