"""The Python client, asynchronous: submit, wait, cancel, and many at once with bounds.

    async with AsyncClient("http://127.0.0.1:8080", key) as client:
        async for submission, outcome in client.run_many(submissions, outstanding=100):
            ...

Calls are repeated with patience (`fairlane.patience`); that is safe, because every
submission has an idempotency key, the caller's or a random one. See docs/client.md.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack, overload

import httpx

from fairlane import client_wire as wire
from fairlane.client_calls import MISSING_S, Calls, Places
from fairlane.client_flow import Flow
from fairlane.client_http import Http, pooled
from fairlane.client_values import (
    Accepted,
    ClosedError,
    Options,
    Outcome,
    RefusedError,
    Submission,
    WaitTimeoutError,
)
from fairlane.errors import FairlaneError

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "FAIRLANE_KEY"
#: How long a call is repeated: a restart of everything behind it takes less.
PATIENCE_S = 300.0
#: Connections at once. A long poll holds one; an idle one costs some kilobytes on both sides.
CONNECTIONS = 256
#: Submissions of `submit_many` without an answer, and unfinished ones of `run_many`.
OUTSTANDING = 1_000
#: Random bytes of a key that we make: 128 bits never meet again.
KEY_BYTES = 16

Submissions = Iterable[Submission] | AsyncIterable[Submission]


class AsyncClient:
    """A tenant's way to a Fairlane deployment; for one event loop, as many tasks as you like.

    Args:
        url: address of an ingress, or of a balancer before several.
        key: the tenant's API key; FAIRLANE_KEY of the environment unless given.
        transport: another way than the network: `httpx.ASGITransport(app)` for an ingress
            in this process.
        patience_s: how long a call is repeated while the service does not answer, is down or
            says that a limit is used up.
        connections: at most so many at once.

    Raises:
        FairlaneError: there is no key, or the address is none.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        patience_s: float = PATIENCE_S,
        connections: int = CONNECTIONS,
    ) -> None:
        key = given_key(key)
        if connections < 1:
            raise FairlaneError(f"connections: must be at least 1, not {connections}")
        if not url.startswith(("http://", "https://")):
            raise FairlaneError(f"url: must begin with http:// or https://, not {url!r}")
        http = Http(url, key, transport or pooled(url, connections))
        self._begin(http, Places(connections), patience_s)

    def _begin(self, http: Http, places: Places, patience_s: float) -> None:
        self._http, self._places = http, places
        self._calls = Calls(http, places, patience_s)
        self._flows: set[Flow] = set()
        self._under_way: set[asyncio.Timeout] = set()
        self._is_closed = False

    def for_key(self, key: str) -> "AsyncClient":
        """A client with another tenant's key over the same connections, in the same loop.

        Together they take no more of the service than this one does. Close it before this one,
        which closes the connections.
        """
        other = AsyncClient.__new__(AsyncClient)
        other._begin(  # noqa: SLF001 - one of us
            self._http.for_key(key), self._places, self._calls.patience_s
        )
        return other

    def limited_s(self, endpoint: str) -> float:
        """Seconds until the tenant's limit lets requests to an endpoint in, as told; 0: now."""
        return self._calls.limited_s(endpoint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what still runs and close the connections; requests accepted go on.

        Calls and loops under way raise ClosedError.
        """
        self._is_closed = True
        for call in self._under_way:
            if not call.expired():
                call.reschedule(asyncio.get_running_loop().time())
        for flow in list(self._flows):
            await flow.stop()
        await self._http.aclose()

    # --- one request

    @overload
    async def submit(self, submission: Submission, /) -> Accepted: ...

    @overload
    async def submit(
        self, endpoint: str, input: Any, /, **options: Unpack[Options]
    ) -> Accepted: ...

    async def submit(self, what: Submission | str, /, *rest: Any, **options: Any) -> Accepted:
        """Submit one request: `submit(Submission(...))`, or `submit(endpoint, input, ...)`.

        Raises:
            RefusedError: the service refuses it, or did until patience was over.
            UnreachableError: no answer until patience was over.
        """
        submission = what if isinstance(what, Submission) else Submission(what, *rest, **options)
        key = submission.idempotency_key or _new_key()
        body = wire.body(submission)
        async with self._open():
            return await self._calls.submit(body, key, submission.endpoint)

    async def wait(self, id: str, timeout_s: float | None = None) -> Outcome:  # noqa: A002
        """Wait until a request has ended; by long polls, so that it is known at once.

        Raises:
            WaitTimeoutError: it has not ended in time (0: looks once); it goes on.
            RefusedError: there is no such request, or it can't be looked up.
            UnreachableError: no answer until patience was over.
        """
        late = WaitTimeoutError(f"{id} has not ended within {timeout_s} s", id=id)
        async with self._open():
            if timeout_s is not None and timeout_s <= 0:
                found = await self._calls.look(id)
                if found is None:
                    raise late
                return found
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    return await self._calls.outcome(id, MISSING_S)
            except TimeoutError:
                if limit.expired():
                    raise late from None
                raise

    async def cancel(self, id: str) -> str:  # noqa: A002
        """Ask for the end of a request; returns its state as known now.

        Raises RefusedError or UnreachableError.
        """
        async with self._open():
            return await self._calls.cancel(id)

    # --- many requests

    async def submit_many(
        self, submissions: Submissions, *, outstanding: int = OUTSTANDING
    ) -> AsyncGenerator[tuple[Submission, Accepted | RefusedError], None]:
        """Submit many by bulk calls; the answers come in the order of the submissions.

        At most `outstanding` are pulled and not yet handed out: memory is bounded. A line that
        is refused for now is sent again by itself, until patience is over; a limit that says
        when it is over is waited for however long it takes.

        Raises:
            RefusedError: calls as such are refused, as with a wrong key.
            UnreachableError: no answer until patience was over.
            ProtocolError: what answers is no ingress.
            ClosedError: the client was closed meanwhile.
        """
        flow = self._flow(submissions, outstanding, has_outcomes=False)
        held: dict[int, tuple[Submission, Accepted | RefusedError]] = {}
        following = 1
        try:
            while ticket := await flow.next():
                verdict = ticket.verdict
                assert isinstance(verdict, Accepted | RefusedError)
                held[ticket.number] = ticket.submission, verdict
                while following in held:
                    flow.release()
                    yield held.pop(following)
                    following += 1
        finally:
            await self._end(flow)

    async def run_many(
        self, submissions: Submissions, *, outstanding: int = OUTSTANDING
    ) -> AsyncGenerator[tuple[Submission, Outcome | RefusedError], None]:
        """Submit many and wait for them; they come in the order in which they end.

        At most `outstanding` are unfinished at a time; the next is pulled only with room, so
        memory is bounded. Breaking off the loop leaves what was accepted to run. Limits are
        waited for as in `submit_many`.

        Raises:
            RefusedError: calls as such are refused, as with a wrong key.
            UnreachableError: no answer until patience was over.
            ProtocolError: what answers is no ingress.
            ClosedError: the client was closed meanwhile.
        """
        flow = self._flow(submissions, outstanding, has_outcomes=True)
        try:
            while ticket := await flow.next():
                verdict = ticket.verdict
                assert isinstance(verdict, Outcome | RefusedError)
                flow.release()
                yield ticket.submission, verdict
        finally:
            await self._end(flow)

    def _flow(self, submissions: Submissions, outstanding: int, *, has_outcomes: bool) -> Flow:
        check_outstanding(outstanding)
        if self._is_closed:
            raise ClosedError
        flow = Flow(self._calls, submissions, outstanding, _new_key, has_outcomes=has_outcomes)
        self._flows.add(flow)
        flow.start()
        return flow

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """A call, which `aclose` ends. Raises ClosedError."""
        if self._is_closed:
            raise ClosedError
        try:
            async with asyncio.timeout(None) as call:
                self._under_way.add(call)
                try:
                    yield
                finally:
                    self._under_way.discard(call)
        except TimeoutError:
            if call.expired():
                raise ClosedError from None
            raise

    async def _end(self, flow: Flow) -> None:
        await flow.stop()
        self._flows.discard(flow)


def given_key(key: str | None) -> str:
    """The key as given, else of the environment. Raises FairlaneError without any."""
    key = key if key is not None else os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise FairlaneError(f"no API key: give `key` or set {KEY_VARIABLE}")
    return key


def check_outstanding(outstanding: int) -> None:
    """Raise FairlaneError unless it is at least 1."""
    if outstanding < 1:
        raise FairlaneError(f"outstanding: must be at least 1, not {outstanding}")


def _new_key() -> str:
    return secrets.token_hex(KEY_BYTES)
