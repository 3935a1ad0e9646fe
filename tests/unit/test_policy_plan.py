"""Plans: what applying a policy changes, and what it must not."""

from pathlib import Path

from msgspec.structs import replace

from fairlane.policy_file import load
from fairlane.policy_plan import forbidden, plan
from schemas.policy import Policy, Tenant, Tier, Topology

EXAMPLE = load(Path("examples/policy.toml"))


def lines(old: Policy | None, new: Policy) -> list[str]:
    return [str(change) for change in plan(old, new)]


def test_nothing_changes_nothing() -> None:
    assert lines(EXAMPLE, replace(EXAMPLE, version=9)) == []
    assert forbidden(EXAMPLE, EXAMPLE) == []


def test_the_first_policy_adds_all_of_it() -> None:
    shown = lines(None, EXAMPLE)
    assert shown[0] == "+ topology: shards 1, spread 1, buckets 1"
    assert '+ tier "premium"' in shown
    assert '+ pool "rerank-xl": lanes 2' in shown
    assert (
        '+ tenant "globex": tiers [premium], weight 2, requests_per_minute {embed=30000}' in shown
    )
    named = len(EXAMPLE.tiers) + len(EXAMPLE.pools) + len(EXAMPLE.endpoints) + len(EXAMPLE.tenants)
    assert len(shown) == 1 + named
    assert all(line.startswith("+ ") for line in shown)
    assert forbidden(None, EXAMPLE) == []


def test_added_changed_and_removed_are_told_apart() -> None:
    embed = replace(EXAMPLE.endpoints[1], quantum=99, requests_per_minute=None)
    tenants = (*EXAMPLE.tenants[:-1], Tenant(name="new", tiers=("trial",)))
    new = replace(
        EXAMPLE,
        endpoints=(EXAMPLE.endpoints[0], embed, EXAMPLE.endpoints[2]),
        tenants=tenants,
    )
    assert lines(EXAMPLE, new) == [
        '~ endpoint "embed": quantum 4096 -> 99, requests_per_minute 3000 -> none',
        '+ tenant "new": tiers [trial]',
        '- tenant "tyrell"',
    ]


def test_what_is_set_back_to_its_default_is_told() -> None:
    old = replace(EXAMPLE.tenants[0], parent="globex", waiting={"embed": 0, "chat": 7}, aging_ms=9)
    new = replace(old, parent="", waiting={"embed": 5}, aging_ms=0)
    before = replace(EXAMPLE, tenants=(old, *EXAMPLE.tenants[1:]))
    assert lines(before, replace(EXAMPLE, tenants=(new, *EXAMPLE.tenants[1:]))) == [
        (
            '~ tenant "acme": parent globex -> none, aging_ms 9 -> 0, '
            "waiting {embed=0, chat=7} -> {embed=5}"
        )
    ]
    tiers = (*EXAMPLE.tiers[:-1], replace(EXAMPLE.tiers[-1], floor=40))
    (line,) = lines(EXAMPLE, replace(EXAMPLE, tiers=tiers))
    assert line.endswith(" -> 40")


def test_the_rank_of_tiers_is_a_change() -> None:
    turned = replace(EXAMPLE, tiers=tuple(reversed(EXAMPLE.tiers)))
    assert lines(EXAMPLE, turned) == [
        "~ rank of tiers: premium, standard, trial -> trial, standard, premium"
    ]
    between = replace(EXAMPLE, tiers=(Tier(name="vip"), *EXAMPLE.tiers))
    assert lines(EXAMPLE, between) == ['+ tier "vip"']


def test_another_topology_is_refused_with_a_way_out() -> None:
    other = replace(EXAMPLE, topology=Topology(shards=2))
    (reason,) = forbidden(EXAMPLE, other)
    assert reason.startswith("topology: shards 1 -> 2: ")
    assert "FAIRLANE_PREFIX" in reason
    assert lines(EXAMPLE, other) == ["~ topology: shards 1 -> 2"]


def test_other_lanes_of_a_pool_are_refused_but_not_of_another_pool() -> None:
    for lanes in (3, 5):
        pools = (replace(EXAMPLE.pools[0], lanes=lanes), *EXAMPLE.pools[1:])
        (reason,) = forbidden(EXAMPLE, replace(EXAMPLE, pools=pools))
        assert reason.startswith(f'pool "chat": lanes 4 -> {lanes}: ')
        assert "another name" in reason
    renamed = replace(EXAMPLE.pools[0], name="chat-2", lanes=9)
    new = replace(EXAMPLE, pools=(renamed, *EXAMPLE.pools[1:]))
    assert forbidden(EXAMPLE, new) == []
