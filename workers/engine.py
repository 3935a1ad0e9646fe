"""What an engine is handed, and what it hands back; `workers.ports.Engine` is the door.

What belongs here: plain values. An engine knows nothing of lanes, logs or transactions.
"""

from typing import NamedTuple

from schemas.reasons import Reason
from schemas.records import End, Usage


class EngineRequest(NamedTuple):
    """One request, as an engine sees it.

    `key` names it among all of the shard's requests, `tokens` is what the scheduler was
    told it takes (input and allowed output together; 0: unknown), `deadline_ms` is for the
    finish (epoch milliseconds, 0: none), `headers` are those of the caller that pass
    through (`traceparent` among them).
    """

    key: int
    id: str
    tenant: str
    endpoint: str
    body: bytes
    tokens: int = 0
    deadline_ms: int = 0
    attempt: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


class EngineBatch(NamedTuple):
    """Requests that run together on one slot; `number` is for the engine's own logs."""

    number: int
    requests: tuple[EngineRequest, ...]


class EngineOutcome(NamedTuple):
    """How one request ended. `reason` is a member of `Reason`, empty after success.

    `is_timed` says that `usage.service_ms` is the engine's own figure, also where it is 0;
    otherwise the slot fills 0 in with the batch's time.
    """

    end: End
    output: bytes = b""
    usage: Usage = Usage()
    reason: str = ""
    detail: str = ""
    is_timed: bool = False


def failed(reason: Reason, detail: str) -> EngineOutcome:
    """Say that one request failed, and why; the others of its batch are not touched."""
    return EngineOutcome(End.FAILED, reason=reason.value, detail=detail)


def cancelled(usage: Usage | None = None) -> EngineOutcome:
    """Say that one request was cancelled, and what it used until then."""
    return EngineOutcome(End.CANCELLED, usage=usage or Usage(), reason=Reason.CANCELLED.value)
