"""From the bytes of a POST to a request that may be published, or to all that is wrong.

Pure: the policy, the tenant and the time come in, a `Submission` or `Faults` goes out. The
raw bytes of `input` become the record's value untouched; only their outline is parsed.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from producers.core.inputs import Inputs, TokenCount, count
from schemas.log import RECORD_BYTES_MAX
from schemas.policy import Endpoint, Policy, Tenant
from schemas.reasons import Reason
from schemas.records import PRIORITY_DEFAULT, PRIORITY_MAX, VERSION, Request
from schemas.topics import RETENTION_MS

#: No input may take more than half a record, so that a batch always holds at least one.
INPUT_BYTES_MAX = RECORD_BYTES_MAX // 2
#: Room for everything else in the body: names, numbers, white space.
ENVELOPE_BYTES_MAX = 8_192
#: A body above this is refused before a byte of it is parsed.
BODY_BYTES_MAX = INPUT_BYTES_MAX + ENVELOPE_BYTES_MAX
#: Every request ends by half the retention; a later deadline could not be kept.
DEADLINE_MS_MAX = RETENTION_MS // 2
#: Faults told of one request: enough to mend it, and no answer larger than what it answers.
FAULTS_MAX = 20
#: And of a line of many: what is wrong with one is mostly wrong with all of them.
LINE_FAULTS_MAX = 3
#: A field other than `input` above this is nothing that it may be: it is not read.
VALUE_BYTES_MAX = 1_024
#: A field's name or value is quoted in a fault up to this length.
QUOTE_CHARS_MAX = 64

#: A request's fields by name, not parsed any further.
Fields = dict[str, msgspec.Raw]

#: Longest affinity_key: a conversation's or a user's name, or a digest of a prompt.
AFFINITY_CHARS_MAX = 128

FIELDS = (
    "endpoint",
    "input",
    "priority",
    "deadline_ms",
    "tier",
    "max_output_tokens",
    "affinity_key",
)


class Fault(NamedTuple):
    """One thing that is wrong: where, and what would be right there."""

    reason: Reason
    field: str
    message: str


class Faults(NamedTuple):
    """All that is wrong with a request; `endpoint` as far as the policy knows it."""

    faults: tuple[Fault, ...]
    endpoint: str = ""

    @property
    def reason(self) -> Reason:
        """The reason to answer with: a malformed request before what it asks for."""
        reasons = [fault.reason for fault in self.faults]
        return Reason.INVALID_REQUEST if Reason.INVALID_REQUEST in reasons else reasons[0]


class Submission(NamedTuple):
    """A valid request: what to publish, where it is charged and where it goes."""

    request: Request
    body: bytes
    tier: str
    endpoint: Endpoint
    tenant: Tenant
    affinity_key: str = ""


def outline(body: bytes) -> Fields | Faults:
    """The fields of a POST body, or of a line of many, each as it was written."""
    try:
        body.decode()
        return msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _unreadable(f"the body is no JSON object: {error}")
    except RecursionError:
        return _unreadable("the body is nested too deeply")


def read(
    fields: Fields,
    policy: Policy,
    tenant: Tenant,
    request_id: str,
    now_ms: int,
    faults_max: int = FAULTS_MAX,
    counts: Mapping[str, TokenCount] | None = None,
) -> Submission | Faults:
    """Read a request for a tenant; up to `faults_max` faults are found, not only the first.

    `counts` has the tokenizers that are at hand, by endpoint.
    """
    reader = _Reader(fields, policy, tenant, faults_max, counts or {})
    submission = reader.submission(request_id, now_ms)
    if reader.faults:
        return Faults(tuple(reader.faults), reader.endpoint.name if reader.endpoint else "")
    return submission


def _unreadable(message: str) -> Faults:
    return Faults((Fault(Reason.INVALID_REQUEST, "body", message),))


class _Reader:
    """Takes field after field, collecting faults instead of stopping at one."""

    def __init__(
        self,
        fields: Fields,
        policy: Policy,
        tenant: Tenant,
        faults_max: int,
        counts: Mapping[str, TokenCount],
    ) -> None:
        self._fields, self._policy, self._tenant = fields, policy, tenant
        self._faults_max, self._counts = faults_max, counts
        self.faults: list[Fault] = []
        self.endpoint: Endpoint | None = None

    def submission(self, request_id: str, now_ms: int) -> Submission:
        endpoint = self.endpoint = self._endpoint()
        tier = self._tier()
        data = self._input(endpoint)
        priority = self._integer("priority", 0, PRIORITY_MAX, PRIORITY_DEFAULT)
        deadline_ms = self._integer("deadline_ms", 1, DEADLINE_MS_MAX, 0)
        output_tokens = self._integer("max_output_tokens", 1, endpoint.tokens_max, 0)
        affinity_key = self._affinity_key()
        inputs = self._inputs(data, endpoint) if data else Inputs(1, 0)
        self._unknown_fields()  # last: however many there are, faults of known ones are told
        request = Request(
            v=VERSION,
            id=request_id,
            tenant=self._tenant.name,
            endpoint=endpoint.name,
            priority=priority,
            deadline_ms=now_ms + deadline_ms if deadline_ms else 0,
            input_tokens=inputs.tokens,
            output_tokens_max=output_tokens,
            inputs=inputs.number,
        )
        return Submission(request, data, tier, endpoint, self._tenant, affinity_key)

    def _fault(self, field: str, message: str, reason: Reason = Reason.INVALID_REQUEST) -> None:
        if len(self.faults) < self._faults_max:
            self.faults.append(Fault(reason, field, message))

    def _unknown_fields(self) -> None:
        for name in self._fields:
            if len(self.faults) == self._faults_max:
                return
            if name not in FIELDS:
                self._fault(_quote(name), f"no such field; there are {', '.join(FIELDS)}")

    def _endpoint(self) -> Endpoint:
        """The endpoint asked for; on a fault one without limits, so that reading goes on."""
        nowhere = Endpoint(name="", pool="", body_bytes_max=INPUT_BYTES_MAX)
        name = self._text("endpoint")
        if name is None:
            if "endpoint" not in self._fields:
                self._fault("endpoint", "is missing: the name of the model to be called")
            return nowhere
        endpoint = self._policy.endpoint(name)
        if endpoint is None:
            known = ", ".join(e.name for e in self._policy.endpoints[:20])
            message = f"no endpoint {_quote(name)!r}; the policy has {known or 'none'}"
            self._fault("endpoint", message, Reason.UNKNOWN_ENDPOINT)
            return nowhere
        return endpoint

    def _tier(self) -> str:
        allowed = self._tenant.tiers
        name = self._text("tier")
        if name is None:
            return allowed[0] if allowed else ""
        if name not in allowed:
            message = f"{_quote(name)!r} is not among the tenant's tiers: {', '.join(allowed)}"
            self._fault("tier", message, Reason.TIER_NOT_ALLOWED)
        return name

    def _affinity_key(self) -> str:
        key = self._text("affinity_key")
        if key is not None and not 0 < len(key) <= AFFINITY_CHARS_MAX:
            self._fault("affinity_key", f"must have 1..{AFFINITY_CHARS_MAX} characters")
        return key or ""

    def _input(self, endpoint: Endpoint) -> bytes:
        """The raw JSON; empty on a fault: what is refused is not looked into."""
        raw = self._fields.get("input")
        if raw is None:
            self._fault("input", "is missing: any JSON value, passed to the model as it is")
            return b""
        data = bytes(raw)
        limit = min(endpoint.body_bytes_max, INPUT_BYTES_MAX)
        if len(data) > limit:
            message = f"has {len(data)} bytes; the endpoint takes up to {limit}"
            self._fault("input", message, Reason.BODY_TOO_LARGE)
            return b""
        return data

    def _inputs(self, data: bytes, endpoint: Endpoint) -> Inputs:
        """How many inputs there are and their tokens: all have to fit in one batch."""
        try:
            inputs = count(data, endpoint, self._counts.get(endpoint.name))
        except RecursionError:
            self._fault("input", "is nested too deeply")
            return Inputs(1, 0)
        most, name = max(1, endpoint.inputs_max), endpoint.name
        if inputs.number == 0:
            self._fault("input", f"has 0 inputs; {name!r} takes 1 to {most} in a request")
        elif inputs.number > most:
            message = f"has {inputs.number} inputs; {name!r} takes up to {most}"
            self._fault("input", f"{message} in a request: split it")
        elif inputs.tokens > endpoint.batch_tokens:
            message = f"has {inputs.number} inputs of about {inputs.tokens} tokens in sum"
            limit = f"a batch of {name!r} holds up to {endpoint.batch_tokens}"
            self._fault("input", f"{message}; {limit}: split it")
        return inputs

    def _text(self, field: str) -> str | None:
        value = self._value(field, lambda value: isinstance(value, str), "a string")
        return None if value is None else str(value)

    def _integer(self, field: str, low: int, high: int, default: int) -> int:
        def fits(value: Any) -> bool:
            is_whole = type(value) is int or (type(value) is float and value.is_integer())
            return is_whole and low <= value <= high  # 7.0 is the number 7 in JSON, as 7 is

        value = self._value(field, fits, f"a whole number from {low} to {high}")
        return default if value is None else int(value)

    def _value(self, field: str, fits: Callable[[Any], bool], rule: str) -> Any | None:
        """A field's value; None when it is absent or does not fit (then with a fault)."""
        raw = self._fields.get(field)
        if raw is None:
            return None
        try:
            is_short = memoryview(raw).nbytes <= VALUE_BYTES_MAX
            value = msgspec.json.decode(raw) if is_short else None
        except (msgspec.DecodeError, RecursionError):
            value = None
        if fits(value):
            return value
        self._fault(field, f"must be {rule}, not {_quote(bytes(raw).decode())}")
        return None


def _quote(text: str) -> str:
    return text if len(text) <= QUOTE_CHARS_MAX else text[:QUOTE_CHARS_MAX] + "..."
