"""The checker of policies: it never fails itself, and what it accepts survives every journey.

Figures are drawn from the edges of what a policy may hold, and beyond; names from few, so
that references hit, miss, double and form circles.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import fields

from fairlane.policy_file import parse
from fairlane.policy_hints import hints
from fairlane.policy_plan import forbidden, plan
from fairlane.policy_text import to_toml
from schemas.policy import (
    CostModel,
    Endpoint,
    Fairness,
    Policy,
    PolicyError,
    Pool,
    Tenant,
    Tier,
    Topology,
    decode_policy,
    encode_policy,
)
from schemas.policy_check import check, faults

NAMES = st.sampled_from(["a", "b", "c", "d"])
#: Also what no name is: empty, upper case, a lone surrogate that no encoding takes.
ANY_NAMES = NAMES | st.sampled_from(["", "A", "\ud800", "x" * 49])
EDGES = (-(1 << 70), -1, 0, 1, 2, 90, 999, 1_000, 60_000, 86_400_000, 1_000_000_000, 1 << 64)
FIGURES = st.sampled_from(EDGES) | st.integers()
LIMITS = st.none() | FIGURES


def any_of(kind: type[Any], **given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a Struct whose figures may be anything; fields not drawn have their default."""
    drawn = {
        field.name: FIGURES if field.type is int else LIMITS
        for field in fields(kind)
        if field.type is int or field.type == int | None
    }
    optional = {name: drawn[name] for name in drawn if name not in given_fields}
    return st.fixed_dictionaries(given_fields, optional=optional).map(lambda made: kind(**made))


def policies(names: st.SearchStrategy[str]) -> st.SearchStrategy[Policy]:
    """Policies with any figures and references, most of them faulty."""
    limits = st.dictionaries(names, FIGURES, max_size=3)

    def few(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.lists(values, max_size=4).map(tuple)

    return st.builds(
        Policy,
        tiers=few(any_of(Tier, name=names)),
        pools=few(any_of(Pool, name=names, fairness=st.sampled_from(Fairness))),
        endpoints=few(any_of(Endpoint, name=names, pool=names, cost=st.sampled_from(CostModel))),
        tenants=few(
            any_of(
                Tenant,
                name=names,
                tiers=few(names),
                parent=st.just("") | names,
                requests_per_minute=limits,
                in_flight=limits,
                burst=limits,
                waiting=limits,
            )
        ),
        topology=any_of(Topology),
    )


@st.composite
def sound(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Policy:
    """Policies without a fault, with every field that divides a pool drawn from all it may be."""
    counts = st.integers(0, 1_000_000_000)
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    floors = draw(st.lists(st.integers(0, 30), min_size=3, max_size=3))
    longest_ms = draw(st.integers(1, 3_600_000))
    endpoints = tuple(
        Endpoint(
            name=name,
            pool=name,
            cost=draw(st.sampled_from(CostModel)),
            quantum=draw(st.integers(1, 1_000_000_000)),
            service_ms=draw(st.integers(0, longest_ms)),
            token_us=draw(st.integers(0, min(60_000_000, 1_000 * longest_ms))),
            service_ms_max=longest_ms,
            overtake_max=draw(st.integers(0, 256)),
            half_life_ms=draw(st.integers(1_000, 86_400_000)),
            in_flight=draw(st.none() | counts),
            burst=draw(counts),
            waiting=draw(st.none() | counts),
        )
        for name in names
    )
    limits = st.dictionaries(st.sampled_from(names), counts)
    tenants = tuple(
        Tenant(
            name=name,
            tiers=tuple(draw(st.permutations(["t0", "t1", "t2", "t3"]))),
            weight=draw(st.integers(1, 1_000)),
            parent=draw(st.sampled_from(["", "root"])) if name != "root" else "",
            aging_ms=draw(st.integers(0, 302_400_000)),
            in_flight=draw(limits),
            burst=draw(limits),
            waiting=draw(limits),
        )
        for name in ("root", *names)
    )
    return Policy(
        tiers=(Tier(name="t0"), *(Tier(name=f"t{n}", floor=f) for n, f in enumerate(floors, 1))),
        pools=tuple(Pool(name=name, fairness=draw(st.sampled_from(Fairness))) for name in names),
        endpoints=endpoints,
        tenants=tenants,
    )


def meaning(policy: Policy) -> tuple[Any, ...]:
    """A policy without what means nothing: the order of all but tiers."""
    named = (policy.pools, policy.endpoints, policy.tenants)
    return policy.tiers, [{item.name: item for item in items} for items in named]


EMPTY = Policy(tiers=(), pools=(), endpoints=(), tenants=())
CIRCLE = (Tenant(name="a", tiers=(), parent="b"), Tenant(name="b", tiers=(), parent="a"))


@given(policies(ANY_NAMES))
@example(EMPTY)
@example(Policy(tiers=(), pools=(), endpoints=(), tenants=CIRCLE))
def test_no_policy_makes_the_checker_fail_and_each_fault_has_a_place(policy: Policy) -> None:
    for fault in faults(policy):
        section = fault.path.split(".")[0].split("[")[0]
        assert section in {"", "topology", "tiers", "pools", "endpoints", "tenants"}, fault
        assert fault.text.startswith(section or "policy"), fault
        assert fault.text.partition(": ")[2], fault


@given(policies(NAMES) | sound())
def test_what_is_accepted_is_the_same_after_the_topic_and_after_the_document(
    policy: Policy,
) -> None:
    assume(not check(policy))
    assert decode_policy(encode_policy(policy)) == policy
    assert parse(to_toml(policy)) == policy


@given(sound())
def test_all_that_the_fields_may_be_is_accepted(policy: Policy) -> None:
    assert check(policy) == []


@given(sound(), sound())
def test_every_change_has_a_line_in_the_plan_and_nothing_else(old: Policy, new: Policy) -> None:
    assert (plan(old, new) == []) == (meaning(old) == meaning(new))
    assert plan(old, old) == []
    assert forbidden(old, new) == [], "only lanes and the topology are fixed"
    assert all(hint.startswith(("endpoints[", "tenants[")) for hint in hints(new))


@given(policies(ANY_NAMES))
def test_who_is_asked_about_a_faulty_policy_still_finds_names(policy: Policy) -> None:
    """Services look tenants up in what was checked; a plan shows what was not."""
    plan(None, policy)
    for tenant in policy.tenants:
        first = policy.tenant(tenant.name)
        assert first is not None
        assert first.name == tenant.name
        assert policy.root(tenant.name) == (first.parent or first.name)
        if tenant.parent:
            assert tenant in policy.children(tenant.parent)


WORDS = st.sampled_from(
    [
        "[[tiers]]", "[[pools]]", "[[endpoints]]", "[[tenants]]", "[topology]", "floor", "parent",
        "name", "in_flight", "waiting", "burst", "half_life_ms", "aging_ms", "tiers", "pool", " = ",
        "0", "-1", '"a"', '"b"', "[", "]", "{ a = 1 }", "{", "}", "\n", "\n", "true", "1.5", "nan",
        "2026-01-01", "0xffffffffffffffffffffffff", "[1, 'a']",
    ]
)  # fmt: skip
LINES = st.tuples(WORDS, st.just(" = "), WORDS).map("".join)


@given(st.lists(WORDS | LINES, max_size=30).map("\n".join) | st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    found: list[str] = []
    policy = None
    try:
        policy = parse(text)
    except PolicyError as error:
        found = error.faults
    assert found if policy is None else check(policy) == []
