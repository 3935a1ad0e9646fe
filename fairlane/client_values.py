"""What goes into the Python client and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypedDict

import msgspec

from fairlane.errors import FairlaneError
from schemas.records import End

JSON_TYPE = "application/json"


class ClientError(FairlaneError):
    """Root of all that the client raises about a request.

    `id` and `idempotency_key` are what is known of the request; empty when nothing is. With
    the key the same submission may be repeated and stays one request.
    """

    def __init__(self, message: str, *, id: str = "", idempotency_key: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.id = id
        self.idempotency_key = idempotency_key


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a submission: where, and what would be right there."""

    field: str = ""
    message: str = ""
    reason: str = ""


class RefusedError(ClientError):
    """The service answered, and the answer is no.

    `reason` is a word of docs' table of reasons, empty when something in between answered;
    `retry` says what helps: never, later, same_id (repeat it with `idempotency_key`).
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        reason: str = "",
        retry: str = "",
        retry_after_s: float = 0.0,
        faults: Sequence[Fault] = (),
        id: str = "",  # noqa: A002
        idempotency_key: str = "",
    ) -> None:
        super().__init__(
            f"{reason or f'HTTP {status}'}: {detail}", id=id, idempotency_key=idempotency_key
        )
        self.detail = detail
        self.status = status
        self.reason = reason
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.faults = tuple(faults)


class UnreachableError(ClientError):
    """The service gave no answer for as long as the client's patience lasts.

    Whether a submission was taken is unknown: repeat it with `idempotency_key`.
    """


class ProtocolError(ClientError):
    """What answered is no ingress: a proxy's own page, or another service at this address."""


class WaitTimeoutError(ClientError, TimeoutError):
    """The request has not ended within the time given to `wait`; it goes on."""


class ClosedError(ClientError):
    """The client was closed before the call, or during it."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class EndedError(ClientError):
    """The request ended without success; `outcome` says how."""

    def __init__(self, outcome: "Outcome") -> None:
        super().__init__(
            f"{outcome.id} {outcome.state.value}: {outcome.reason}: {outcome.detail}", id=outcome.id
        )
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to be made.

    Attributes:
        endpoint: name of the model to be called.
        input: what it is called with: anything that is JSON; `msgspec.Raw` when it is
            encoded already.
        priority: 0, the most urgent, to 999.
        deadline_ms: it must have ended so many ms after it was accepted.
        tier: one of those that the tenant may use.
        max_output_tokens: what the model may write.
        idempotency_key: two submissions of one key are one request; a random one unless given.
        tag: anything of the caller's own, to know the submission again; never sent.
    """

    endpoint: str
    input: Any
    priority: int | None = field(default=None, kw_only=True)
    deadline_ms: int | None = field(default=None, kw_only=True)
    tier: str | None = field(default=None, kw_only=True)
    max_output_tokens: int | None = field(default=None, kw_only=True)
    idempotency_key: str | None = field(default=None, kw_only=True)
    tag: object = field(default=None, kw_only=True)


class Options(TypedDict, total=False):
    """The optional attributes of a Submission."""

    priority: int | None
    deadline_ms: int | None
    tier: str | None
    max_output_tokens: int | None
    idempotency_key: str | None
    tag: object


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the log: it will end, and once."""

    id: str
    state: str
    idempotency_key: str


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a request ended.

    Attributes:
        id: of the request.
        state: how it ended.
        output_bytes: the output as the engine gave it; empty when there is none.
        content_type: of the output.
        output_lost: why there is no output although the request succeeded; else empty.
        reason: why it did not succeed, a word of the table of reasons; else empty.
        detail: the same for people.
        retry: whether another try helps: never, later, no_need; empty after a success.
        usage: tokens.
        wait_ms: from its arrival until the worker that finished it took it.
        service_ms: what the engine took for it.
        attempts: earlier ones, that were lost with their worker.
        endpoint: the model that was called.
        ended_ms: when, in epoch ms.
    """

    id: str
    state: End
    output_bytes: bytes = b""
    content_type: str = JSON_TYPE
    output_lost: str = ""
    reason: str = ""
    detail: str = ""
    retry: str = ""
    usage: Usage = field(default_factory=Usage)
    wait_ms: int = 0
    service_ms: int = 0
    attempts: int = 0
    endpoint: str = ""
    ended_ms: int = 0

    @cached_property
    def output(self) -> Any:
        """The output decoded: JSON as a value, another content type as bytes, None if empty."""
        if not self.output_bytes:
            return None
        if self.content_type == JSON_TYPE:
            return msgspec.json.decode(self.output_bytes)
        return self.output_bytes

    @property
    def is_success(self) -> bool:
        """Whether it succeeded."""
        return self.state is End.SUCCEEDED

    def raise_for_state(self) -> Self:
        """Return itself after a success; raises EndedError otherwise."""
        if not self.is_success:
            raise EndedError(self)
        return self
