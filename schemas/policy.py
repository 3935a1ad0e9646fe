"""The policy: who may do what, at what price. Data, validated whole, then published.

One record on the topic `policy` (key b"policy") holds all of it as JSON, packed by zlib when it
is long: a tenant's fields are the same words again and again. `check` returns
every fault at once, each with the place in the document; a policy with a fault is never
published and never applied. Lists keep the order of the document: the order of `tiers`
IS their rank, first served first.
"""

import zlib
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

#: Names go into topic names and metric labels: short, lower case, no dots.
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,47}$"

NAME_RULE = "1..48 of a-z 0-9 _ -, starting with a letter or digit"

POLICY_KEY = b"policy"

#: A policy that a person may have written stays as text on the topic.
PLAIN_BYTES_MAX = 100_000
#: A policy in memory takes several times as much; 100,000 tenants need 14 MB.
TEXT_BYTES_MAX = 64_000_000
#: How zlib's streams begin, and JSON never does.
_PACKED = b"x"


class CostModel(StrEnum):
    """What a request is charged: 1, its input and output tokens, or milliseconds of service.

    `adaptive` estimates the service by what the tenant's requests took so far.
    """

    REQUEST = "request"
    TOKEN = "token"  # noqa: S105 - a unit, no secret
    ADAPTIVE = "adaptive"


class Fairness(StrEnum):
    """How a pool chooses among the tenants of a tier."""

    DRR = "drr"
    VTC = "vtc"  # the tenant that got least service, by weight
    FIFO = "fifo"  # a control: one queue by priority, deadline, arrival


class Allowance(NamedTuple):
    """What a tenant may take at an endpoint, weighted; None: no limit, 0: nothing.

    `shadow` names those that are counted and reported but refuse nobody.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_month: int | None = None
    tokens_per_month: int | None = None
    shadow: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[int | None, int | None, int | None, int | None]:
        """The four, in the order of `LIMITS`."""
        return self[0], self[1], self[2], self[3]

    @property
    def is_unlimited(self) -> bool:
        """Whether there is nothing to count."""
        return self[:4] == _NO_LIMITS

    @property
    def keeps_ids(self) -> bool:
        """Whether a request's charge is known by its id until it has ended, not for a minute.

        Then its true tokens are put in, and a month counts it once however late it is sent again.
        """
        return self[1:4] != (None, None, None)


_NO_LIMITS = (None, None, None, None)
UNLIMITED = Allowance()
#: Fields of an endpoint, and of a tenant by endpoint, that the door's limiter counts.
LIMITS = Allowance._fields[:4]


class Predict(StrEnum):
    """What is done with a request that would not be served in time.

    `shadow` counts it and lets it in: to see what `on` would do.
    """

    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


class Inbox(StrEnum):
    """Whether a tenant may put requests on the bus itself, and what happens over its limits.

    `refuse`: each request over a limit is answered at once. `hold`: its inbox waits until there
    is room, in order.
    """

    OFF = "off"
    REFUSE = "refuse"
    HOLD = "hold"


class Topology(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Partition counts; fixed by the first policy of a deployment.

    `shards` scheduler tasks; `spread` partitions per shard in every tier's topic;
    `buckets` partitions of the topics hashed by tenant.
    """

    shards: int = 1
    spread: int = 1
    buckets: int = 1


class Tier(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A class of service.

    `floor` is the percentage of what is picked in a pool that the tier gets while it has
    eligible work, whatever the tiers above it want.
    """

    name: str
    floor: int = 0


class Pool(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Interchangeable slots: `lanes` partitions, each held by one worker.

    A lane is sent up to slots + `prefetch` unfinished batches.
    """

    name: str
    lanes: int = 4
    prefetch: int = 1
    fairness: Fairness = Fairness.DRR


class Endpoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model behind the API, served by one pool.

    Fairness: `quantum` is in the cost model's unit. `half_life_ms` is the idle time in which a
    tenant's debt is halved.

    Batches: one is full at `batch_requests`, `batch_tokens` or `batch_bytes`, and is sent when
    the oldest waited `batch_wait_ms`; a request of several inputs counts there as so many
    requests, and goes alone if it has more. When the next in order doesn't fit into what is
    left, up to `overtake_max` smaller ones behind it fill the batch; it is the first of the
    next one.

    Estimates: `tokens_max` clamps that of one request, or of each of its inputs. `service_ms`
    is the expected time of a batch and `token_us` what each token of a request adds to it, in
    microseconds: what can't end by its deadline is not run. `service_ms_max` is the longest
    service of one request: learned costs end there, and it is the largest `adaptive` cost.

    Limits of each tenant, unless it has its own; None: no limit, 0: nothing. `in_flight` is
    how many of its requests may be in workers' hands for certain, `burst` how many more while
    nobody of its tier below its own `in_flight` has eligible work. `waiting` is how many may
    wait; one more is ended at once. All children of a parent count against the parent's.
    `requests_per_minute`, `tokens_per_minute`, `requests_per_month` and `tokens_per_month` (a
    calendar month, UTC) are for the door; `weight` multiplies what a request takes from them
    (heavier models: more). Tokens are the input's and `max_output_tokens`, until the result tells
    the true ones; `output_tokens_default` stands for a `max_output_tokens` that is absent (0:
    nothing is taken for the output until it is known, which may be after its minute). `shadow`
    names those of them that are counted and reported but refuse nobody.

    `inputs_max` above 0: an array as the input, or under `input` of an object, is so many
    inputs of one request, which pays for each; 0: an array is one input, as any JSON is.

    At the door a request that would not end by its deadline is refused, or one without a deadline
    that would not end within `latency_ms` of its tier, by the predicted wait: as `predict` says.
    `waiting_tokens` is how many tokens of a tenant may wait; more are refused there.
    """

    name: str
    pool: str
    cost: CostModel = CostModel.REQUEST
    quantum: int = 1
    batch_requests: int = 1
    batch_tokens: int = 1_000_000
    batch_bytes: int = 500_000
    batch_wait_ms: int = 5
    body_bytes_max: int = 400_000
    tokens_max: int = 128_000
    service_ms: int = 0
    wait_ms_max: int = 600_000
    attempts_max: int = 3
    weight: int = 1
    requests_per_minute: int | None = None
    inputs_max: int = 0
    token_us: int = 0
    service_ms_max: int = 60_000
    overtake_max: int = 8
    half_life_ms: int = 60_000
    in_flight: int | None = None
    burst: int = 0
    waiting: int | None = None
    tokens_per_minute: int | None = None
    requests_per_month: int | None = None
    tokens_per_month: int | None = None
    shadow: tuple[str, ...] = ()
    predict: Predict = Predict.SHADOW
    latency_ms: dict[str, int] = field(default_factory=dict)
    waiting_tokens: int | None = None
    output_tokens_default: int = 0


class Tenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An organisation. `tiers` are those it may use, the first is its default.

    With a `parent`, another tenant, it shares the parent's part with the parent's other
    children, by weight; the parent's own requests count as one more child of weight 1.
    `aging_ms`: each so many milliseconds of waiting are worth one step of priority against
    the tenant's own other requests; 0: none. The limits, `shadow` and `waiting_tokens` override
    an endpoint's, by endpoint name; a parent's limits count its children's requests as well.
    `inbox` gives it topics of its own: it writes requests to one and reads their results from
    the other.
    """

    name: str
    tiers: tuple[str, ...]
    weight: int = 1
    requests_per_minute: dict[str, int] = field(default_factory=dict)
    parent: str = ""
    aging_ms: int = 0
    in_flight: dict[str, int] = field(default_factory=dict)
    burst: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    tokens_per_minute: dict[str, int] = field(default_factory=dict)
    requests_per_month: dict[str, int] = field(default_factory=dict)
    tokens_per_month: dict[str, int] = field(default_factory=dict)
    shadow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waiting_tokens: dict[str, int] = field(default_factory=dict)
    inbox: Inbox = Inbox.OFF


class Policy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """The whole document. `version` grows with each one that is published."""

    tiers: tuple[Tier, ...]
    pools: tuple[Pool, ...]
    endpoints: tuple[Endpoint, ...]
    tenants: tuple[Tenant, ...]
    topology: Topology = Topology()
    version: int = 0

    def tenant(self, name: str) -> Tenant | None:
        """Look a tenant up by name."""
        return self._by_name.get(name)

    def root(self, name: str) -> str:
        """Name of a tenant's parent, or its own: whose share it is served from."""
        known = self.tenant(name)
        return known.parent or name if known else name

    def children(self, name: str) -> tuple[Tenant, ...]:
        """Tenants whose parent this is, in the order of the document."""
        return self._by_parent.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, Tenant]:
        """Tenants by name; of a name that is taken twice, which is a fault, the first."""
        return {tenant.name: tenant for tenant in reversed(self.tenants)}

    @cached_property
    def _endpoints_by_name(self) -> dict[str, Endpoint]:
        return {endpoint.name: endpoint for endpoint in reversed(self.endpoints)}

    @cached_property
    def _by_parent(self) -> dict[str, tuple[Tenant, ...]]:
        found: dict[str, list[Tenant]] = {}
        for tenant in self.tenants:
            if tenant.parent:
                found.setdefault(tenant.parent, []).append(tenant)
        return {parent: tuple(children) for parent, children in found.items()}

    def endpoint(self, name: str) -> Endpoint | None:
        """Look an endpoint up by name."""
        return self._endpoints_by_name.get(name)

    def pool(self, name: str) -> Pool | None:
        """Look a pool up by name."""
        return next((p for p in self.pools if p.name == name), None)

    def allowance(self, tenant: Tenant, endpoint: Endpoint) -> Allowance:
        """What the door lets a tenant take at an endpoint."""
        name = endpoint.name
        return Allowance(
            tenant.requests_per_minute.get(name, endpoint.requests_per_minute),
            tenant.tokens_per_minute.get(name, endpoint.tokens_per_minute),
            tenant.requests_per_month.get(name, endpoint.requests_per_month),
            tenant.tokens_per_month.get(name, endpoint.tokens_per_month),
            tenant.shadow.get(name, endpoint.shadow),
        )

    def in_flight(self, tenant: Tenant, endpoint: Endpoint) -> int | None:
        """Requests a tenant may have in workers' hands for certain; None: no limit."""
        return tenant.in_flight.get(endpoint.name, endpoint.in_flight)

    def burst(self, tenant: Tenant, endpoint: Endpoint) -> int:
        """Requests above `in_flight`, while nobody below its own wants the slot."""
        return tenant.burst.get(endpoint.name, endpoint.burst)

    def waiting(self, tenant: Tenant, endpoint: Endpoint) -> int | None:
        """Requests of a tenant that may wait at an endpoint; None: no limit."""
        return tenant.waiting.get(endpoint.name, endpoint.waiting)

    def waiting_tokens(self, tenant: Tenant, endpoint: Endpoint) -> int | None:
        """Tokens of a tenant's requests that may wait at an endpoint; None: no limit."""
        return tenant.waiting_tokens.get(endpoint.name, endpoint.waiting_tokens)


class PolicyError(Exception):
    """The policy has faults; each line names a place and what would be right there."""

    def __init__(self, faults: list[str]) -> None:
        """Keep all faults."""
        self.faults = faults
        super().__init__("\n".join(faults))


def policy_json(policy: Policy) -> bytes:
    """The policy as JSON, fields in declared order."""
    return msgspec.json.encode(policy)


def encode_policy(policy: Policy) -> bytes:
    """Encode for the topic: JSON that can be read there, packed above `PLAIN_BYTES_MAX`."""
    text = policy_json(policy)
    return text if len(text) <= PLAIN_BYTES_MAX else zlib.compress(text)


def decode_policy(document: bytes) -> Policy:
    """Decode a published policy; raises PolicyError when it can't be one."""
    if document[:1] == _PACKED:
        document = _unpacked(document)
    try:
        return msgspec.json.decode(document, type=Policy)
    except msgspec.DecodeError as error:
        raise PolicyError([f"policy: {error}"]) from error


def _unpacked(document: bytes) -> bytes:
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(document, TEXT_BYTES_MAX + 1)
    except zlib.error as error:
        raise PolicyError([f"policy: it can't be unpacked: {error}"]) from error
    if len(text) > TEXT_BYTES_MAX or not unpack.eof or unpack.unused_data:
        raise PolicyError(
            [f"policy: unpacked it has more than {TEXT_BYTES_MAX} bytes, or its end is missing"]
        )
    return text
