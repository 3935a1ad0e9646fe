"""Topics: every name under the prefix, partitions by the policy, requests on their shard."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlane.policy_file import load
from schemas.policy import Inbox, Tenant, Topology
from schemas.topics import Topics, bucket

EXAMPLE = load(Path("examples/policy.toml"))
WIDE = replace(EXAMPLE, topology=Topology(shards=3, spread=4, buckets=5))
TOPICS = Topics("site-1")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,47}", fullmatch=True)


def test_every_topic_stands_under_the_prefix_once() -> None:
    names = [spec.name for spec in TOPICS.of(WIDE)]
    assert len(set(names)) == len(names) == 2 + 3 + 3 * 3 + 6
    assert all(name.startswith("site-1.") for name in names)


def test_partitions_follow_the_policy() -> None:
    partitions = {spec.name: spec.partitions for spec in TOPICS.of(WIDE)}
    assert {partitions[TOPICS.requests(tier.name)] for tier in WIDE.tiers} == {3 * 4}
    for pool in WIDE.pools:
        assert partitions[TOPICS.batches(pool.name)] == pool.lanes
        assert partitions[TOPICS.workers(pool.name)] == pool.lanes
        assert partitions[TOPICS.usage(pool.name)] == pool.lanes
    assert partitions[TOPICS.decisions] == partitions[TOPICS.control] == 3
    assert {partitions[name] for name in (TOPICS.results, TOPICS.refusals, TOPICS.dead)} == {5}
    assert partitions[TOPICS.policy] == partitions[TOPICS.keys] == 1


def test_what_is_kept() -> None:
    config = {spec.name: spec.config for spec in TOPICS.of(WIDE)}
    assert config[TOPICS.policy]["cleanup.policy"] == "compact"
    assert config[TOPICS.keys]["cleanup.policy"] == "compact"
    assert config[TOPICS.costs]["cleanup.policy"] == "compact"
    assert config[TOPICS.usage("embed")]["cleanup.policy"] == "compact"
    requests = config[TOPICS.requests("premium")]
    assert requests["message.timestamp.type"] == "LogAppendTime"
    assert "cleanup.policy" not in requests, "requests are never compacted"
    kept, twice = int(requests["retention.ms"]), int(config[TOPICS.decisions]["retention.ms"])
    assert twice == 2 * kept, "decisions outlive the requests they are about"


@given(NAMES, NAMES)
def test_a_request_stands_on_its_pools_shard(pool: str, tenant: str) -> None:
    partition = TOPICS.request_partition(pool, tenant, WIDE)
    assert 0 <= partition < 12
    assert partition % 3 == TOPICS.shard_of(pool, 3)


def test_a_family_stands_on_its_parents_partition() -> None:
    """The order among children of one parent is kept, wherever their names would put them."""
    names = [f"lab-{number}" for number in range(20)]
    family = tuple(Tenant(name=name, tiers=("premium",), parent="acme") for name in names)
    policy = replace(WIDE, tenants=(*WIDE.tenants, *family))
    for pool in ("chat", "embed"):
        at = TOPICS.request_partition(pool, "acme", policy)
        assert {TOPICS.request_partition(pool, name, policy) for name in names} == {at}
        alone = {TOPICS.request_partition(pool, name, WIDE) for name in names}
        assert len(alone) == WIDE.topology.spread, "who has no parent stands by the own name"


def test_buckets_are_the_same_in_every_process_and_release() -> None:
    assert [bucket(name, 1_000) for name in ("acme", "globex", "")] == [814, 18, 0]


@given(st.integers(1, 64))
def test_a_bucket_is_one_of_them(buckets: int) -> None:
    assert 0 <= bucket("acme", buckets) < buckets


def test_a_tenant_with_an_inbox_has_two_topics_of_its_own() -> None:
    tenants = tuple(
        replace(tenant, inbox=Inbox.HOLD) if tenant.name == "acme" else tenant
        for tenant in WIDE.tenants
    )
    specs = {spec.name: spec for spec in TOPICS.of(replace(WIDE, tenants=tenants))}
    own = set(specs) - {spec.name for spec in TOPICS.of(WIDE)}
    assert own == {"site-1.inbox.acme", "site-1.results.acme"}
    inbox, results = specs["site-1.inbox.acme"], specs["site-1.results.acme"]
    assert (inbox.partitions, results.partitions) == (1, 1), "each is read in one order"
    assert inbox.config["message.timestamp.type"] == "LogAppendTime", "no tenant sets the time"
    assert inbox.config["compression.type"] == "uncompressed", "what is small stays small"
    assert int(inbox.config["retention.ms"]) < int(results.config["retention.ms"])
