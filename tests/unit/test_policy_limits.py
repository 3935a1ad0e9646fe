"""Limits of the door in a policy: read, overridden, checked."""

from pathlib import Path

import pytest

from fairlane.policy_file import load
from fairlane.policy_hints import hints
from schemas.policy import (
    Allowance,
    Endpoint,
    Policy,
    Pool,
    Tenant,
    Tier,
    decode_policy,
    encode_policy,
)
from schemas.policy_check import COST_MAX, QUOTA_MAX, check


def policy(endpoint: Endpoint, **tenant: dict[str, int]) -> Policy:
    return Policy(
        tiers=(Tier(name="gold"),),
        pools=(Pool(name="chat"),),
        endpoints=(endpoint,),
        tenants=(
            Tenant(
                name="acme",
                tiers=("gold",),
                tokens_per_minute=tenant.get("tokens_per_minute", {}),
                requests_per_month=tenant.get("requests_per_month", {}),
            ),
            Tenant(name="bolt", tiers=("gold",), shadow={"chat": ()}),
        ),
    )


CHAT = Endpoint(
    name="chat",
    pool="chat",
    weight=2,
    requests_per_minute=10,
    tokens_per_minute=1_000,
    tokens_per_month=QUOTA_MAX,
    shadow=("tokens_per_minute",),
)


def test_a_tenant_overrides_limits_one_by_one() -> None:
    given = decode_policy(encode_policy(policy(CHAT, requests_per_month={"chat": 7})))
    assert check(given) == []
    acme, bolt = given.tenants
    assert given.allowance(acme, CHAT) == Allowance(10, 1_000, 7, QUOTA_MAX, ("tokens_per_minute",))
    assert given.allowance(bolt, CHAT) == Allowance(10, 1_000, None, QUOTA_MAX)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            policy(CHAT, tokens_per_minute={"chat": 1}),
            (
                'tenants[0] "acme": tokens_per_minute.chat is 1; allowed is 0 (nobody) or 2 (the '
                f"endpoint's weight: one token) ..{COST_MAX}"
            ),
        ),
        (
            policy(CHAT, requests_per_month={"chat": QUOTA_MAX + 1}),
            (
                f'tenants[0] "acme": requests_per_month.chat is {QUOTA_MAX + 1}; allowed is 0 '
                f"(nobody) or 2 (the endpoint's weight: one request) ..{QUOTA_MAX}"
            ),
        ),
        (
            policy(CHAT, requests_per_month={"embed": 1}),
            (
                'tenants[0] "acme": requests_per_month: endpoint "embed" is not defined; '
                "defined are: chat"
            ),
        ),
        (
            policy(Endpoint(name="chat", pool="chat", shadow=("in_flight",))),
            (
                'endpoints[0] "chat": shadow names "in_flight"; it may name requests_per_minute, '
                "tokens_per_minute, requests_per_month, tokens_per_month"
            ),
        ),
    ],
)
def test_faults_say_what_would_be_right(given: Policy, fault: str) -> None:
    assert check(given) == [fault]


def test_a_limit_in_shadow_that_nobody_has_is_a_hint() -> None:
    given = policy(Endpoint(name="chat", pool="chat", shadow=("tokens_per_month",)))
    assert check(given) == []
    assert hints(given) == [
        (
            'endpoints[0] "chat": shadow names "tokens_per_month", but there is no such limit to '
            "try out: give one"
        )
    ]


def test_the_example_has_them() -> None:
    example = load(Path("examples/policy.toml"))
    chat = example.endpoints[0]
    wonka = example.tenant("wonka")
    assert wonka is not None
    assert example.allowance(wonka, chat) == Allowance(
        60, 20_000, None, 2_000_000_000, ("tokens_per_month",)
    )
