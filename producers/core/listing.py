"""What a list of requests is asked for: filters and a place to go on from, out of a query.

A cursor is the place of the last request that was seen, in a form that callers need not read:
it stays good whatever is added meanwhile, and for as long as the list reaches back.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

from producers.core import ids
from producers.core.answers import WAITING, state
from producers.core.submission import FAULTS_MAX, Fault, Faults
from schemas.front import MS_MAX, Entry, Listed
from schemas.reasons import Reason
from schemas.records import End

#: Requests of a page: what a screen shows, and the most that one answer has.
LIMIT_DEFAULT, LIMIT_MAX = 20, 100
#: Longest text of a filter; names of a policy are shorter.
FILTER_CHARS_MAX = 200
STATES = (WAITING, *(end.value for end in End))
#: What a query may have.
PARAMETERS = (
    "limit",
    "cursor",
    "state",
    "endpoint",
    "tier",
    "since_ms",
    "until_ms",
    "x_request_id",
    "idempotency_key",
)


class Query(NamedTuple):
    """A list as it is asked for; "" does not filter."""

    limit: int = LIMIT_DEFAULT
    after: Listed | None = None
    state: str = ""
    endpoint: str = ""
    tier: str = ""
    since_ms: int = 0
    until_ms: int = MS_MAX
    call: str = ""
    key: str = ""

    def has(self, entry: Entry) -> bool:
        """Whether a request passes the filters that its place in the list does not tell."""
        acceptance, terminal = entry.acceptance, entry.terminal
        endpoint = acceptance.endpoint if acceptance else terminal.endpoint if terminal else ""
        tier = acceptance.tier if acceptance else ""
        return (
            self.state in {"", state(entry)}
            and self.endpoint in {"", endpoint}
            and self.tier in {"", tier}
        )

    def has_placed(self, entry: Entry) -> bool:
        """Whether its time and its call are asked for, which its place in the list tells."""
        acceptance, terminal = entry.acceptance, entry.terminal
        at_ms = acceptance.accepted_ms if acceptance else terminal.arrived_ms if terminal else 0
        call = acceptance.call if acceptance else ""
        return self.since_ms <= at_ms <= self.until_ms and self.call in {"", call}


class Page(NamedTuple):
    """Requests with their ids, newest first; `after` None: there are no more."""

    entries: list[tuple[str, Entry]]
    after: Listed | None


def cursor(place: Listed) -> str:
    """A place as callers get it."""
    return urlsafe_b64encode(f"{place.accepted_ms}.{place.id}".encode()).decode().rstrip("=")


def read_query(given: Iterable[tuple[str, str]]) -> Query | Faults:
    """A query's parameters, or all that is wrong with them."""
    faults: list[Fault] = []

    def fault(field: str, message: str) -> None:
        if len(faults) < FAULTS_MAX:
            faults.append(Fault(Reason.INVALID_REQUEST, field, message))

    read: dict[str, Any] = {}
    for name, text in given:
        if name not in PARAMETERS:
            fault(name[:FILTER_CHARS_MAX], f"no such parameter; there are {', '.join(PARAMETERS)}")
            continue
        field, value, message = _read(name, text)
        if message or field in read:
            fault(name, message or "is there twice")
        read[field] = value
    return Faults(tuple(faults)) if faults else Query(**read)


def _read(name: str, text: str) -> tuple[str, Any, str]:
    """A parameter: the field of the query that it is, its value, what is wrong with it."""
    if name == "limit":
        return name, _integer(text, LIMIT_MAX), _least_1(text, LIMIT_MAX)
    if name in {"since_ms", "until_ms"}:
        value = _integer(text, MS_MAX)
        wrong = "" if value is not None else "must be milliseconds since 1970, as an integer"
        return name, value, wrong
    if name == "cursor":
        after = _place(text)
        return "after", after, "" if after else "must be a next_cursor of this list"
    if name == "state":
        return name, text, "" if text in STATES else f"must be one of {', '.join(STATES)}"
    if name == "idempotency_key":
        key = ids.idempotency_key(text)
        wrong = f"must be 1..{ids.KEY_CHARS_MAX} visible ASCII characters"
        return "key", key, "" if key else wrong
    if name == "x_request_id":
        wrong = f"must be 1..{ids.CALL_CHARS_MAX} letters, digits, '-', '_', '.', ':' or '/'"
        return "call", text, "" if ids.is_call_id(text) or ids.is_request_id(text) else wrong
    wrong = f"must have 1..{FILTER_CHARS_MAX} characters"
    return name, text, "" if 0 < len(text) <= FILTER_CHARS_MAX else wrong


def _integer(text: str, most: int) -> int | None:
    """An integer of ASCII digits alone, 0..most."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    return int(text) if int(text) <= most else None


def _least_1(text: str, most: int) -> str:
    return "" if _integer(text, most) else f"must be an integer in 1..{most}"


def _place(text: str) -> Listed | None:
    if not text.isascii() or len(text) > FILTER_CHARS_MAX:
        return None
    try:
        plain = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return None
    at_ms, _, request_id = plain.partition(".")
    accepted_ms = _integer(at_ms, MS_MAX)
    if accepted_ms is None or not ids.is_request_id(request_id):
        return None
    return Listed(accepted_ms, request_id)
