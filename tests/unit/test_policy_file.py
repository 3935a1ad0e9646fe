"""Policy documents: what is accepted, and that a wrong one is told all its faults at once."""

import re
import zlib
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlane.policy_file import load, parse
from fairlane.policy_text import to_toml
from schemas.policy import (
    TEXT_BYTES_MAX,
    CostModel,
    Fairness,
    Policy,
    PolicyError,
    Tenant,
    decode_policy,
    encode_policy,
)
from schemas.policy_check import POLICY_BYTES_MAX, check

EXAMPLE = Path("examples/policy.toml")

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
        "undefined pool",
        'pool = "gpu"',
        'pool = "gpu-x"',
        ['endpoints[0] "embed": pool "gpu-x" is not defined; defined are: gpu'],
    ),
    (
        "typo of a field",
        'pool = "gpu"',
        'pool = "gpu"\nquantums = 3',
        ['endpoints[0] "embed": unknown field "quantums"; did you mean "quantum"?'],
    ),
    (
        "field that resembles nothing",
        'name = "only"',
        'name = "only"\nzzz = 3',
        ['tiers[0] "only": unknown field "zzz"; known are: name, floor'],
    ),
    (
        "typo of a section",
        "[[tenants]]",
        "[[tennants]]",
        ['policy: unknown field "tennants"; did you mean "tenants"?'],
    ),
    (
        "version given",
        "[[tiers]]",
        "version = 7\n[[tiers]]",
        ["policy: version is counted when it is applied; leave it out"],
    ),
    (
        "missing name and missing pool",
        'name = "embed"\npool = "gpu"',
        "quantum = 2",
        ["endpoints[0]: name is missing", "endpoints[0]: pool is missing"],
    ),
    (
        "wrong types",
        'pool = "gpu"',
        'pool = 3\nquantum = "8"\nbatch_bytes = true\nweight = 1.5',
        [
            'endpoints[0] "embed": pool is 3 (an integer); it must be a string',
            'endpoints[0] "embed": quantum is "8" (a string); it must be an integer',
            'endpoints[0] "embed": batch_bytes is true (true or false); it must be an integer',
            'endpoints[0] "embed": weight is 1.5 (a fraction); it must be an integer',
        ],
    ),
    (
        "table where a value belongs, value where a table belongs",
        'pool = "gpu"',
        'pool = "gpu"\nquantum = { a = 1 }\nweight = [1]\n[topology]\nshards = 1979-05-27',
        [
            'endpoints[0] "embed": quantum is a table; it must be an integer',
            'endpoints[0] "embed": weight is an array; it must be an integer',
            "topology: shards is 1979-05-27 (a date or time); it must be an integer",
        ],
    ),
    (
        "unknown words",
        'pool = "gpu"',
        'pool = "gpu"\ncost = "tokens"',
        [
            (
                'endpoints[0] "embed": cost "tokens" is not known; one of: request, token, '
                'adaptive; did you mean "token"?'
            )
        ],
    ),
    (
        "names that can be no topic",
        'name = "acme"',
        'name = "Acme Inc."',
        [
            (
                "tenants[0]: name 'Acme Inc.' is not valid: 1..48 of a-z 0-9 _ -, "
                "starting with a letter or digit"
            )
        ],
    ),
    (
        "name with a line's end",
        'name = "acme"',
        'name = "acme\\n"',
        [
            (
                "tenants[0]: name 'acme\\n' is not valid: 1..48 of a-z 0-9 _ -, "
                "starting with a letter or digit"
            )
        ],
    ),
    (
        "same name twice",
        "[[tenants]]",
        '[[tenants]]\nname = "acme"\ntiers = ["only"]\n[[tenants]]',
        ['tenants[1] "acme": the name is already taken by tenants[0]'],
    ),
    (
        "two endpoints on a pool",
        "[[tenants]]",
        '[[endpoints]]\nname = "chat"\npool = "gpu"\n[[tenants]]',
        [
            (
                'endpoints[1] "chat": pool "gpu" already serves endpoint "embed"; '
                "one endpoint a pool: define another pool"
            )
        ],
    ),
    (
        "figures out of range",
        'pool = "gpu"',
        'pool = "gpu"\nquantum = 0\nweight = 0\nattempts_max = 101\nwait_ms_max = 302400001',
        [
            'endpoints[0] "embed": quantum is 0; allowed is 1..1000000000 requests',
            'endpoints[0] "embed": wait_ms_max is 302400001; allowed is 1..302400000',
            'endpoints[0] "embed": attempts_max is 101; allowed is 1..100',
            'endpoints[0] "embed": weight is 0; allowed is 1..1000',
        ],
    ),
    (
        "lanes and partitions out of range",
        'name = "gpu"\n',
        (
            'name = "gpu"\nlanes = 0\nprefetch = -1\n'
            "[topology]\nshards = 1024\nspread = 2\nbuckets = 0\n"
        ),
        [
            "topology: buckets is 0; allowed is 1..1024",
            "topology: shards x spread is 2048, at most 1024 is served",
            'pools[0] "gpu": lanes is 0; allowed is 1..1024',
            'pools[0] "gpu": prefetch is -1; allowed is 0..64',
        ],
    ),
    (
        "bodies that fit in no batch",
        'pool = "gpu"',
        'pool = "gpu"\nbatch_bytes = 1000\nbody_bytes_max = 1001',
        [
            (
                'endpoints[0] "embed": body_bytes_max is 1001, above batch_bytes (1000): '
                "such a body would fit in no batch"
            )
        ],
    ),
    (
        "requests that fit in no batch",
        'pool = "gpu"',
        'pool = "gpu"\nbatch_tokens = 1000',
        [
            (
                'endpoints[0] "embed": tokens_max is 128000, above batch_tokens (1000): '
                "such a request would fit in no batch"
            )
        ],
    ),
    (
        "batch above half a record",
        'pool = "gpu"',
        'pool = "gpu"\nbatch_bytes = 500001',
        ['endpoints[0] "embed": batch_bytes is 500001; allowed is 1..500000'],
    ),
    (
        "limits that let nothing in",
        'pool = "gpu"',
        'pool = "gpu"\nweight = 4\nrequests_per_minute = 3',
        [
            (
                'endpoints[0] "embed": requests_per_minute is 3; allowed is 0 (nobody) or 4 '
                "(the endpoint's weight: one request) ..1000000000"
            )
        ],
    ),
    (
        "tenant's references",
        'tiers = ["only"]',
        'tiers = ["only", "only", "gold"]\nweight = 1001\nrequests_per_minute = { chat = 1 }',
        [
            'tenants[0] "acme": tier "only" is listed 2 times; once is enough',
            'tenants[0] "acme": tier "gold" is not defined; defined are: only',
            'tenants[0] "acme": weight is 1001; allowed is 1..1000',
            (
                'tenants[0] "acme": requests_per_minute: endpoint "chat" is not defined; '
                "defined are: embed"
            ),
        ],
    ),
    (
        "tenant without a tier",
        'tiers = ["only"]',
        "tiers = []",
        ['tenants[0] "acme": tiers is empty; name at least one, the first is the default'],
    ),
    (
        "one wrong element does not hide another",
        'tiers = ["only"]',
        'tiers = ["gold", 3]',
        [
            'tenants[0] "acme": tiers[1] is 3 (an integer); it must be a string',
            'tenants[0] "acme": tier "gold" is not defined; defined are: only',
        ],
    ),
    (
        "sections that are no tables",
        '[[tiers]]\nname = "only"',
        "tiers = 3",
        [
            "policy: tiers is 3 (an integer); it must be an array of tables, [[...]]",
            'tenants[0] "acme": tier "only" is not defined; defined are: none',
        ],
    ),
    (
        "a figure that no integer holds",
        'pool = "gpu"',
        f'pool = "gpu"\nquantum = {1 << 63}\nwaiting = 0x{"f" * 9_000}',
        [
            'endpoints[0] "embed": quantum is beyond 64 bits; it must be an integer',
            'endpoints[0] "embed": waiting is beyond 64 bits; it must be an integer',
        ],
    ),
]


def faults_of(document: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        parse(document)
    return raised.value.faults


@pytest.mark.parametrize(
    ("old", "new", "messages"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_each_fault_names_its_place_and_what_is_right(
    old: str, new: str, messages: list[str]
) -> None:
    assert old in SMALL
    assert faults_of(SMALL.replace(old, new, 1)) == messages


def test_faults_of_all_kinds_come_together() -> None:
    document = SMALL.replace('pool = "gpu"', 'pool = "x"\nquantums = 1\nquantum = 0\nweight = "1"')
    assert len(faults_of(document)) == 4


def test_an_empty_document_lacks_every_section_but_tenants() -> None:
    assert faults_of("") == [
        "tiers: at least one is needed: [[tiers]] with a name",
        "pools: at least one is needed: [[pools]] with a name",
        "endpoints: at least one is needed: [[endpoints]] with a name",
    ]


def test_a_syntax_error_names_its_line() -> None:
    (fault,) = faults_of("[[tiers]]\nname = \n")
    assert re.search(r"policy: no valid TOML: .*line 2", fault)


def test_what_the_reader_of_toml_gives_up_on_is_no_document() -> None:
    for value in ("9" * 5_000, "[" * 100_000):
        (fault,) = faults_of(f"tiers = {value}")
        assert fault.startswith("policy: no valid TOML: ")


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(PolicyError, match=r"none\.toml: can't be read: No such file"):
        load(missing)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match=r"binary\.toml: is no UTF-8 text"):
        load(binary)


def test_a_policy_too_large_for_one_record_is_refused() -> None:
    names = (sha256(str(number).encode()).hexdigest()[:40] for number in range(20_000))
    tenants = tuple(Tenant(name=name, tiers=("only",)) for name in names)
    (fault,) = check(replace(parse(SMALL), tenants=tenants))
    assert fault.startswith("policy: takes ")
    assert "400000 and 64000000 are read" in fault


def test_a_hundred_thousand_tenants_fit_into_one_record() -> None:
    tenants = tuple(Tenant(name=f"t{number}", tiers=("only",)) for number in range(100_000))
    policy = replace(parse(SMALL), tenants=tenants)
    assert check(policy) == []
    document = encode_policy(policy)
    assert len(document) <= POLICY_BYTES_MAX
    assert decode_policy(document) == policy


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (b"x\x9cnothing", "can't be unpacked"),
        (zlib.compress(b"{" * 1_000)[:-6], "its end is missing"),
        (zlib.compress(bytes(TEXT_BYTES_MAX + 1)), "more than 64000000 bytes"),
    ],
)
def test_what_can_not_be_unpacked_is_no_policy(document: bytes, fault: str) -> None:
    """The last one would take a thousand times its size."""
    with pytest.raises(PolicyError, match=fault):
        decode_policy(document)


def test_many_names_are_not_all_listed() -> None:
    pools = "".join(f'[[pools]]\nname = "p{n:02}"\n' for n in range(30))
    (fault,) = faults_of(SMALL.replace('pool = "gpu"', 'pool = "x"') + pools)
    assert fault.endswith("p07, p08 and 21 more")


def test_the_example_shows_tiers_streaming_batches_and_a_heavy_model() -> None:
    policy = load(EXAMPLE)
    assert check(policy) == []
    assert [tier.name for tier in policy.tiers] == ["premium", "standard", "trial"]
    chat, embed, heavy = policy.endpoints
    assert (chat.cost, chat.quantum, chat.batch_requests) == (CostModel.REQUEST, 1, 1)
    assert (embed.cost, embed.batch_requests) == (CostModel.TOKEN, 32)
    assert 4 * embed.quantum >= embed.batch_tokens
    assert heavy.weight == 4
    assert len(policy.tenants) == 9


def test_the_example_shows_a_floor_limits_and_a_family() -> None:
    policy = load(EXAMPLE)
    assert [tier.floor for tier in policy.tiers] == [0, 0, 5]
    chat = policy.endpoints[0]
    parent = policy.tenant("umbrella")
    assert parent is not None
    assert [child.name for child in policy.children("umbrella")] == [
        "umbrella-search",
        "umbrella-labs",
    ]
    assert (policy.in_flight(parent, chat), policy.burst(parent, chat)) == (8, 200)
    assert (policy.waiting(parent, chat), chat.waiting) == (5_000, 100_000)


def test_a_policy_survives_the_topic_and_the_document_that_show_prints() -> None:
    family = SMALL + 'aging_ms = 5\n[[tenants]]\nname = "lab"\ntiers = ["only"]\nparent = "acme"\n'
    limited = f"{family}waiting = {{ embed = 0 }}\nin_flight = {{ embed = 2 }}\n"
    for policy in (load(EXAMPLE), parse(SMALL), parse(limited)):
        assert decode_policy(encode_policy(policy)) == policy
        assert parse(to_toml(policy)) == policy


def test_what_no_policy_is_does_not_decode() -> None:
    with pytest.raises(PolicyError, match="policy: "):
        decode_policy(b'{"tiers": 3}')


def test_check_looks_at_values_that_never_were_a_document() -> None:
    faulty = Policy(tiers=(), pools=(), endpoints=(), tenants=())
    assert len(check(faulty)) == 3
    assert parse(SMALL).pools[0].fairness is Fairness.DRR
