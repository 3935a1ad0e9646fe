"""One table: reason -> what it means -> HTTP status -> what the caller should do.

Every refusal and every terminal outcome other than success names a member of `Reason`;
metric labels, API errors, `refusals`, `dead` and the documentation use the same word.
"""

from enum import StrEnum
from typing import NamedTuple


class Retry(StrEnum):
    """What a caller should do about a reason."""

    NEVER = "never"  # the same request will be refused again
    LATER = "later"  # after Retry-After
    SAME_ID = "same_id"  # at once or later, with the same Idempotency-Key: the fate is unknown
    NO_NEED = "no_need"  # the caller asked for it


class Reason(StrEnum):
    """Why a request was refused at the door, or ended without success."""

    # at the door
    UNAUTHENTICATED = "unauthenticated"
    BODY_TOO_LARGE = "body_too_large"
    TOO_SLOW = "too_slow"
    INVALID_REQUEST = "invalid_request"
    UNKNOWN_ENDPOINT = "unknown_endpoint"
    TIER_NOT_ALLOWED = "tier_not_allowed"
    NOT_FOUND = "not_found"
    GONE = "gone"
    UNFINISHED = "unfinished"
    KEY_REUSED = "key_reused"
    RATE_LIMIT = "rate_limit"
    NEVER_FITS = "never_fits"
    IN_DOUBT = "in_doubt"
    UNAVAILABLE = "unavailable"
    WOULD_WAIT = "would_wait"
    NO_WORKERS = "no_workers"
    # after the door
    UNREADABLE = "unreadable"
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_TENANT = "unknown_tenant"
    WAITING_LIMIT = "waiting_limit"
    EXPIRED = "expired"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    ATTEMPTS = "attempts"
    ENGINE_REFUSED = "engine_refused"
    ENGINE_FAILED = "engine_failed"
    LOST_BY_LOG = "lost_by_log"
    DUPLICATE = "duplicate"


class Advice(NamedTuple):
    """One row of the table."""

    status: int
    retry: Retry
    text: str


TABLE: dict[Reason, Advice] = {
    Reason.UNAUTHENTICATED: Advice(
        401, Retry.NEVER, "Send a valid key as 'Authorization: Bearer <key>'."
    ),
    Reason.BODY_TOO_LARGE: Advice(
        413, Retry.NEVER, "The body is above the limit of the endpoint; split it."
    ),
    Reason.TOO_SLOW: Advice(
        408, Retry.LATER, "The body did not come in time; send it again on a new connection."
    ),
    Reason.INVALID_REQUEST: Advice(400, Retry.NEVER, "The request is malformed; see 'detail'."),
    Reason.UNKNOWN_ENDPOINT: Advice(404, Retry.NEVER, "No endpoint of this name in the policy."),
    Reason.TIER_NOT_ALLOWED: Advice(
        403, Retry.NEVER, "The tenant's policy does not list this tier; name one that it lists."
    ),
    Reason.NOT_FOUND: Advice(404, Retry.NEVER, "No request of this id for this tenant."),
    Reason.GONE: Advice(410, Retry.NEVER, "It ended more than a day ago and is kept no longer."),
    Reason.UNFINISHED: Advice(
        409, Retry.LATER, "The first call with this Idempotency-Key is not finished; come back."
    ),
    Reason.KEY_REUSED: Advice(
        422, Retry.NEVER, "The Idempotency-Key belongs to another request; send a new key."
    ),
    Reason.RATE_LIMIT: Advice(
        429, Retry.LATER, "A limit of the tenant is used up; come back after Retry-After."
    ),
    Reason.WAITING_LIMIT: Advice(
        429, Retry.LATER, "The tenant has as many requests waiting as it may; come back later."
    ),
    Reason.NEVER_FITS: Advice(
        403, Retry.NEVER, "The limit is smaller than this request; ask for a higher limit."
    ),
    Reason.IN_DOUBT: Advice(
        503, Retry.SAME_ID, "The log did not confirm in time; look the id up, or retry with it."
    ),
    Reason.UNAVAILABLE: Advice(503, Retry.LATER, "A part of the service is down; come back."),
    Reason.WOULD_WAIT: Advice(
        503, Retry.LATER, "It could not be served in time; come back after Retry-After."
    ),
    Reason.NO_WORKERS: Advice(
        503, Retry.LATER, "No worker serves the endpoint now; come back after Retry-After."
    ),
    Reason.UNREADABLE: Advice(422, Retry.NEVER, "The record could not be decoded."),
    Reason.UNKNOWN_VERSION: Advice(
        422, Retry.NEVER, "The record has a version that this release does not know; upgrade."
    ),
    Reason.UNKNOWN_TENANT: Advice(
        403, Retry.NEVER, "The policy does not know the tenant; apply a policy that does."
    ),
    Reason.EXPIRED: Advice(504, Retry.LATER, "It waited longer than the endpoint allows."),
    Reason.DEADLINE: Advice(504, Retry.LATER, "It could not finish by its deadline."),
    Reason.CANCELLED: Advice(409, Retry.NO_NEED, "It was cancelled."),
    Reason.ATTEMPTS: Advice(
        500, Retry.NEVER, "Its worker failed on every attempt; the original is in 'dead'."
    ),
    Reason.ENGINE_REFUSED: Advice(422, Retry.NEVER, "The model refused the input; see 'detail'."),
    Reason.ENGINE_FAILED: Advice(500, Retry.LATER, "The model failed while running; see 'detail'."),
    Reason.LOST_BY_LOG: Advice(500, Retry.LATER, "The log lost the request before it ran."),
    Reason.DUPLICATE: Advice(409, Retry.NO_NEED, "A request of this id is live or just ended."),
}
