"""Faults of what divides a pool: floors, families, limits, debts, costs."""

import pytest

from fairlane.policy_file import parse
from schemas.policy import PolicyError

SMALL = """
[[tiers]]
name = "only"
[[pools]]
name = "gpu"
[[endpoints]]
name = "embed"
pool = "gpu"
[[tenants]]
name = "acme"
tiers = ["only"]
"""

# What is put into the small document (or replaced in it), and every message that must come.
WRONG: list[tuple[str, str, str, list[str]]] = [
    (
        "floor of the first tier",
        'name = "only"',
        'name = "only"\nfloor = 10',
        [
            (
                'tiers[0] "only": floor is 10, but the first tier is served first anyway: '
                "leave it out, and give floors to those behind it"
            )
        ],
    ),
    (
        "floors that leave nothing",
        'name = "only"',
        'name = "only"\n[[tiers]]\nname = "b"\nfloor = 50\n[[tiers]]\nname = "c"\nfloor = 41',
        [
            (
                "tiers: the floors are 91 percent of a pool (b 50, c 41), at most 90 can be given "
                "away: lower some"
            )
        ],
    ),
    (
        "floors that are no percentage",
        'name = "only"',
        'name = "only"\n[[tiers]]\nname = "b"\nfloor = -1\n[[tiers]]\nname = "c"\nfloor = 91',
        [
            'tiers[1] "b": floor is -1; allowed is 0..90 percent of a pool',
            'tiers[2] "c": floor is 91; allowed is 0..90 percent of a pool',
        ],
    ),
    (
        "debts that never fade",
        'pool = "gpu"',
        'pool = "gpu"\nhalf_life_ms = 0',
        [
            (
                'endpoints[0] "embed": half_life_ms is 0; allowed is 1000..86400000 (0 would '
                "switch the fading of debts off, not fairness on); leave it out for 60000"
            )
        ],
    ),
    (
        "debts that fade too soon or too late",
        'pool = "gpu"',
        (
            'pool = "gpu"\nhalf_life_ms = 999\n[[pools]]\nname = "b"\n'
            '[[endpoints]]\nname = "b"\npool = "b"\nhalf_life_ms = 86400001'
        ),
        [
            (
                'endpoints[0] "embed": half_life_ms is 999; allowed is 1000..86400000; '
                "leave it out for 60000"
            ),
            (
                'endpoints[1] "b": half_life_ms is 86400001; allowed is 1000..86400000; '
                "leave it out for 60000"
            ),
        ],
    ),
    (
        "limits and times out of range",
        'pool = "gpu"',
        (
            'pool = "gpu"\nin_flight = -1\nburst = -1\nwaiting = 1000000001\n'
            "token_us = 60000001\nservice_ms_max = 0\novertake_max = 257"
        ),
        [
            'endpoints[0] "embed": token_us is 60000001; allowed is 0..60000000',
            'endpoints[0] "embed": service_ms_max is 0; allowed is 1..3600000',
            'endpoints[0] "embed": overtake_max is 257; allowed is 0..256',
            'endpoints[0] "embed": burst is -1; allowed is 0..1000000000',
            (
                'endpoints[0] "embed": in_flight is -1; allowed is 0 (nothing) ..1000000000; '
                "no limit: leave it out"
            ),
            (
                'endpoints[0] "embed": waiting is 1000000001; allowed is 0 (nothing) ..1000000000; '
                "no limit: leave it out"
            ),
        ],
    ),
    (
        "adaptive costs that would all be the same",
        'pool = "gpu"',
        (
            'pool = "gpu"\ncost = "adaptive"\nquantum = 0\nservice_ms_max = 100\n'
            "service_ms = 101\ntoken_us = 102000"
        ),
        [
            (
                'endpoints[0] "embed": quantum is 0; allowed is 1..1000000000 milliseconds of '
                "service"
            ),
            (
                'endpoints[0] "embed": service_ms_max is 100, less than service_ms says a request '
                'takes (101 ms): with cost "adaptive" all would cost the same; raise it'
            ),
            (
                'endpoints[0] "embed": service_ms_max is 100, less than token_us says a request '
                'takes (102 ms): with cost "adaptive" all would cost the same; raise it'
            ),
        ],
    ),
    (
        "a tenant's own limits",
        'tiers = ["only"]',
        (
            'tiers = ["only"]\naging_ms = -1\nin_flight = { embed = -1, chat = 3 }\n'
            "burst = { embed = -2 }\nwaiting = { rerank = 1 }"
        ),
        [
            'tenants[0] "acme": aging_ms is -1; allowed is 0..302400000',
            (
                'tenants[0] "acme": in_flight is -1; allowed is 0 (nothing) ..1000000000; '
                "no limit: leave it out"
            ),
            'tenants[0] "acme": in_flight: endpoint "chat" is not defined; defined are: embed',
            (
                'tenants[0] "acme": burst is -2; allowed is 0 (nothing) ..1000000000; '
                "no limit: leave it out"
            ),
            'tenants[0] "acme": waiting: endpoint "rerank" is not defined; defined are: embed',
        ],
    ),
    (
        "parents that are none",
        "[[tenants]]",
        (
            '[[tenants]]\nname = "a"\ntiers = ["only"]\nparent = "acne"\n'
            '[[tenants]]\nname = "b"\ntiers = ["only"]\nparent = "b"\n'
            '[[tenants]]\nname = "c"\ntiers = ["only"]\nparent = "acme"\n'
            '[[tenants]]\nname = "d"\ntiers = ["only"]\nparent = "c"\n'
            "[[tenants]]"
        ),
        [
            ('tenants[0] "a": parent: tenant "acne" is not defined; defined are: a, acme, b, c, d'),
            'tenants[1] "b": parent is the tenant itself: leave it out',
            (
                'tenants[3] "d": parent "c" has a parent itself, "acme"; families have two levels: '
                'take the parent of "c" off, or name one that has none'
            ),
        ],
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "messages"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_each_fault_names_its_place_and_what_is_right(
    old: str, new: str, messages: list[str]
) -> None:
    assert old in SMALL
    with pytest.raises(PolicyError) as raised:
        parse(SMALL.replace(old, new, 1))
    assert raised.value.faults == messages


def test_a_child_may_use_tiers_that_its_parent_has_not() -> None:
    document = SMALL.replace("[[pools]]", '[[tiers]]\nname = "low"\n[[pools]]')
    child = '[[tenants]]\nname = "lab"\ntiers = ["low"]\nparent = "acme"\nweight = 3\n'
    policy = parse(child + document)
    assert [tenant.name for tenant in policy.children("acme")] == ["lab"]
    assert policy.children("lab") == ()
    assert [policy.root(name) for name in ("lab", "acme", "nobody")] == ["acme", "acme", "nobody"]


def test_a_tenants_limit_overrides_the_endpoints_and_zero_is_zero() -> None:
    document = SMALL.replace('pool = "gpu"', 'pool = "gpu"\nin_flight = 4\nburst = 2\nwaiting = 9')
    own = '[[tenants]]\nname = "own"\ntiers = ["only"]\n' + "".join(
        f"{field} = {{ embed = 0 }}\n" for field in ("in_flight", "burst", "waiting")
    )
    for text, expected in (
        (document, {"acme": (4, 2, 9), "own": (0, 0, 0)}),
        (SMALL, {"acme": (None, 0, None), "own": (0, 0, 0)}),
    ):
        policy = parse(text + own)
        endpoint = policy.endpoints[0]
        assert expected == {
            tenant.name: (
                policy.in_flight(tenant, endpoint),
                policy.burst(tenant, endpoint),
                policy.waiting(tenant, endpoint),
            )
            for tenant in policy.tenants
        }
