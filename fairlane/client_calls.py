"""The calls of the client: each repeated with patience, within a bound of connections.

Bodies go out and come in as bytes; what they mean is in `client_wire`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import httpx

from fairlane import client_wire as wire
from fairlane.client_http import Http
from fairlane.client_values import Accepted, Outcome, RefusedError, UnreachableError
from fairlane.patience import (
    Endurance,
    GivenUpError,
    Lasting,
    Pacer,
    Trouble,
    Until,
    backoff_s,
    patiently,
)

ROUTE = "/v1/requests"
BULK_ROUTE = "/v1/requests:bulk"
#: One long poll: the longest that an ingress holds.
POLL_S = 30.0
#: With more requests than connections to poll by, each is looked at about that often,
ROTATION_S = 10.0
#: but none by a shorter poll than this: a poll costs the ingress more than the waiting.
POLL_S_MIN = 1.0
#: One in so many connections is kept for submissions: polls never take all.
POSTS_SHARE = 16
#: Bulk calls at once over the same connections: an ingress takes few, as each is much work.
BULKS_MAX = 2
#: An id that is not found may be so new that the index doesn't have it yet.
MISSING_S = 10.0
#: A poll that came back sooner than this share of its time held nobody: pause before the next.
HELD_SHARE = 0.5

_JSON = {"Content-Type": "application/json"}
_NDJSON = {"Content-Type": wire.NDJSON_TYPE}


class Places:
    """The connections to one server, for the calls of a client or of several that share them."""

    def __init__(self, connections: int) -> None:
        """None is taken; `waiting` counts requests that are waited for."""
        posts = max(1, connections // POSTS_SHARE)
        self.polls_max = max(1, connections - posts)
        self.posts = asyncio.Semaphore(posts)
        self.polls = asyncio.Semaphore(self.polls_max)
        self.bulks = asyncio.Semaphore(BULKS_MAX)
        self.waiting = 0


class Calls:
    """The calls of one client."""

    def __init__(self, http: Http, places: Places, patience_s: float) -> None:
        """Nothing is called yet."""
        self._http, self._places = http, places
        self.patience_s = patience_s
        self._post_pacer, self._get_pacer = Pacer(), Pacer()
        self._limits: dict[str, Pacer] = {}

    def limits_of(self, endpoint: str) -> Pacer:
        """When requests to an endpoint are within the tenant's limit again, as far as told."""
        return self._limits.setdefault(endpoint, Pacer(jitter_s=0.0))

    def limited_s(self, endpoint: str) -> float:
        """Seconds until then; 0: nothing of a limit is known."""
        limits = self._limits.get(endpoint)
        return max(0.0, limits.until_s - asyncio.get_running_loop().time()) if limits else 0.0

    async def submit(self, body: bytes, key: str, endpoint: str) -> Accepted:
        """POST one request. Raises RefusedError or UnreachableError."""
        headers = {**_JSON, "Idempotency-Key": key}

        async def call() -> httpx.Response:
            async with self._places.posts:
                return await self._http.post(ROUTE, body, headers)

        answer = await self._patiently(call, self._post_pacer, self.limits_of(endpoint), key=key)
        return wire.read_accepted(answer, key)

    async def submit_bulk(
        self, lines: Sequence[bytes], keys: Sequence[str], endpoint: str
    ) -> list[Accepted | RefusedError | None]:
        """POST many; the verdicts in the order of the lines, None where there is none.

        A limit of calls as such is waited out as it is told.

        Raises RefusedError when the call as a whole is refused, UnreachableError, or
        ProtocolError.
        """
        body = b"\n".join(lines) + b"\n"

        async def call() -> httpx.Response:
            async with self._places.bulks, self._places.posts:
                return await self._http.post(BULK_ROUTE, body, _NDJSON)

        lasting = Lasting(self.patience_s)
        answer = await self._patiently(call, self._post_pacer, self.limits_of(endpoint), lasting)
        if answer.status_code != httpx.codes.OK:
            raise wire.refusal(answer)
        return wire.read_verdicts(answer, keys)

    async def cancel(self, request_id: str) -> str:
        """POST a cancel; returns the state as known then."""
        path = f"{_path(request_id)}/cancel"

        async def call() -> httpx.Response:
            async with self._places.posts:
                return await self._http.post(path)

        answer = await self._patiently(call, self._post_pacer, request_id=request_id)
        return wire.read_accepted(answer, "").state

    async def look(self, request_id: str, wait_s: float = 0.0) -> Outcome | None:
        """GET once; None: it waits. Raises RefusedError or UnreachableError."""
        path = f"{_path(request_id)}?wait={wait_s:g}" if wait_s else _path(request_id)

        async def call() -> httpx.Response:
            async with self._places.polls:
                return await self._http.get(path)

        answer = await self._patiently(call, self._get_pacer, request_id=request_id)
        if answer.status_code == httpx.codes.OK:
            return wire.read_outcome(answer)
        raise wire.refusal(answer, request_id=request_id)

    async def outcome(self, request_id: str, missing_s: float) -> Outcome:
        """Wait until a request has ended; one that isn't found is looked for so long.

        Raises RefusedError or UnreachableError.
        """
        loop = asyncio.get_running_loop()
        missing_until_s, pauses = loop.time() + missing_s, 0
        with self._counted():
            while True:
                wait_s, asked_s = self._poll_s(), loop.time()
                try:
                    found = await self.look(request_id, wait_s)
                except RefusedError as error:
                    pause_s = backoff_s(pauses)
                    is_missing = error.status == httpx.codes.NOT_FOUND
                    if not is_missing or loop.time() + pause_s > missing_until_s:
                        raise
                else:
                    if found:
                        return found
                    if loop.time() - asked_s >= HELD_SHARE * wait_s:
                        pauses = 0
                        continue
                    pause_s = backoff_s(pauses)
                pauses += 1
                await asyncio.sleep(pause_s)

    def _poll_s(self) -> float:
        """How long to poll: shorter when others queue for a connection to poll by."""
        if self._places.waiting <= self._places.polls_max:
            return POLL_S
        return max(POLL_S_MIN, ROTATION_S * self._places.polls_max / self._places.waiting)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._places.waiting += 1
        try:
            yield
        finally:
            self._places.waiting -= 1

    async def _patiently(
        self,
        call: Callable[[], Awaitable[httpx.Response]],
        pacer: Pacer,
        limits: Pacer | None = None,
        endurance: Endurance | None = None,
        *,
        key: str = "",
        request_id: str = "",
    ) -> httpx.Response:
        until = Until(asyncio.get_running_loop().time() + self.patience_s)
        try:
            return await patiently(call, pacer, endurance or until, limits)
        except GivenUpError as error:
            raise self._given_up(error.trouble, key, request_id) from error

    def _given_up(
        self, trouble: Trouble, key: str, request_id: str
    ) -> RefusedError | UnreachableError:
        if trouble.answer is not None:
            return wire.refusal(trouble.answer, key, request_id)
        return self.unreachable(trouble.text, key, request_id)

    def unreachable(self, what: str, key: str = "", request_id: str = "") -> UnreachableError:
        """The error that patience is over without an answer; `what` was there instead."""
        return UnreachableError(
            f"{self._http.url} does not answer for {self.patience_s:g} s: {what}; "
            "is an ingress running there?",
            id=request_id,
            idempotency_key=key,
        )


def _path(request_id: str) -> str:
    return f"{ROUTE}/{quote(request_id, safe='')}"
