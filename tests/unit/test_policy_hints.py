"""Hints: what is allowed, but hardly meant."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlane.policy_file import load
from fairlane.policy_hints import hints
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.policy_check import check


def policy(endpoint: Endpoint, **own: dict[str, int]) -> Policy:
    found = Policy(
        tiers=(Tier(name="only"),),
        pools=(Pool(name="gpu"),),
        endpoints=(endpoint,),
        tenants=(Tenant(name="acme", tiers=("only",), **own),),  # type: ignore[arg-type]
    )
    assert check(found) == []
    return found


EMBED = Endpoint(name="embed", pool="gpu", batch_requests=32, batch_tokens=200_000)


def test_the_example_needs_none() -> None:
    assert hints(load(Path("examples/policy.toml"))) == []


@pytest.mark.parametrize(
    ("cost", "most", "batch", "unit"),
    [
        (CostModel.REQUEST, 32, "a batch", "requests"),
        (CostModel.TOKEN, 200_000, "a batch", "tokens"),
        (CostModel.ADAPTIVE, 60_000, "the longest request", "milliseconds of service"),
    ],
)
def test_a_quantum_in_the_unit_of_another_cost_model(
    cost: CostModel, most: int, batch: str, unit: str
) -> None:
    usual = replace(EMBED, cost=cost, quantum=most)
    assert hints(policy(usual)) == []
    (hint,) = hints(policy(replace(usual, quantum=most + 1)))
    assert hint == (
        f'endpoints[0] "embed": quantum is {most + 1} {unit}, {batch} has {most}: a tenant is '
        f'served so much before the next one; cost "{cost}" counts {unit}'
    )


def test_a_burst_above_no_limit() -> None:
    why = "without in_flight there is no limit that it could be above: give in_flight too"
    everybodys = replace(EMBED, burst=2)
    assert hints(policy(everybodys)) == [f'endpoints[0] "embed": burst is 2, but {why}']
    assert hints(policy(everybodys, in_flight={"embed": 1})) == []
    assert hints(policy(replace(everybodys, in_flight=0))) == []
    assert hints(policy(EMBED, burst={"embed": 3})) == [
        f'tenants[0] "acme": burst.embed is 3, but {why}'
    ]
    assert hints(policy(replace(EMBED, in_flight=1), burst={"embed": 3})) == []
    assert hints(policy(EMBED, burst={"embed": 0})) == []
