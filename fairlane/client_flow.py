"""Many submissions on their way: pulled with room, sent in bulk, each answered once.

A `Flow` pulls from the caller's iterable while fewer than `outstanding` of its submissions
are in it, sends them endpoint by endpoint in chunks, and hands each out with what became of
it. What is refused for now is sent again by itself, after the pause it was told. A limit that
says when it is over is only waited for: the room keeps what waits small.

Everything runs in tasks of the flow; `stop` ends them all. However a task ends, who waits for
the next is told.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from fairlane import client_wire as wire
from fairlane.client_calls import Calls
from fairlane.client_values import Accepted, ClosedError, Outcome, RefusedError, Submission
from fairlane.patience import Lasting, Trouble, may_pass
from schemas.reasons import Retry

#: Lines and bytes of one bulk call: enough to be cheap, small enough to be answered at once.
CHUNK_LINES_MAX = 200
CHUNK_BYTES_MAX = 1 << 20
#: Bulk calls of one endpoint at once: one is prepared while another is under way.
SENDERS = 2
#: Submissions that come one by one are gathered for so long into one call.
LINGER_S = 0.005
#: A call of one line that is refused so was refused for what is in the line.
_OF_THE_CONTENT = frozenset({400, 413})
#: After so many from an iterable that never waits the others get a turn.
PULLED_IN_A_ROW = 100


@dataclass(eq=False, slots=True)
class Ticket:
    """One submission on its way; `verdict` is what became of it."""

    number: int
    submission: Submission
    key: str
    patience: Lasting
    line: bytes = b""
    failures: int = 0
    verdict: Accepted | Outcome | RefusedError | None = None


@dataclass(eq=False, slots=True)
class _Lane:
    """What is to be sent to one endpoint, and how many are sending."""

    endpoint: str
    ready: deque[Ticket] = field(default_factory=deque)
    senders: int = 0


class Flow:
    """The submissions of one `submit_many` or `run_many`."""

    def __init__(
        self,
        calls: Calls,
        source: Iterable[Submission] | AsyncIterable[Submission],
        outstanding: int,
        new_key: Callable[[], str],
        *,
        has_outcomes: bool,
    ) -> None:
        """Nothing is pulled before `start`; `has_outcomes`: wait for the ends as well."""
        self._calls, self._source, self._new_key = calls, source, new_key
        self._has_outcomes = has_outcomes
        self._room = asyncio.Semaphore(outstanding)
        self._linger_s = LINGER_S if outstanding > 1 else 0.0
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: asyncio.Queue[Ticket | BaseException | None] = asyncio.Queue()
        self._pulled = self._given = 0
        self._is_exhausted = self._is_stopped = False

    def start(self) -> None:
        """Begin to pull."""
        self._spawn(self._pull())

    async def next(self) -> Ticket | None:
        """The next that is done, in the order in which they are; None: that was all.

        Raises what the caller's iterable raised, RefusedError when calls as such are
        refused (the key is wrong), UnreachableError, ProtocolError, ClosedError after `stop`.
        """
        while not (self._is_exhausted and self._given == self._pulled):
            item = await self._out.get()
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                self._given += 1
                return item
        return None

    def release(self) -> None:
        """Make room for another: one that was handed out is off the caller's hands."""
        self._room.release()

    async def stop(self) -> None:
        """End all tasks; nothing is raised but to who waits for the next."""
        self._is_stopped = True
        self._out.put_nowait(ClosedError())
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it never began if cancelled before

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BaseException as error:
            if not self._is_stopped:  # a source may raise CancelledError on its own
                self._out.put_nowait(error)
            if not isinstance(error, Exception):
                raise

    async def _pull(self) -> None:
        submissions = _as_async(self._source)
        while True:
            await self._room.acquire()
            submission = await anext(submissions, None)
            if submission is None:
                break
            self._pulled += 1
            key = submission.idempotency_key or self._new_key()
            ticket = Ticket(self._pulled, submission, key, Lasting(self._calls.patience_s))
            try:
                ticket.line = wire.body(submission, key)
            except RefusedError as error:
                self._done(ticket, error)
            else:
                self._offer(ticket)
        self._is_exhausted = True
        self._out.put_nowait(None)

    def _offer(self, ticket: Ticket) -> None:
        """Queue a ticket behind all others of its endpoint."""
        endpoint = ticket.submission.endpoint
        lane = self._lanes.get(endpoint)
        if lane is None:
            lane = self._lanes[endpoint] = _Lane(endpoint)
        lane.ready.append(ticket)
        if lane.senders < SENDERS:
            lane.senders += 1
            self._spawn(self._send_all(lane))

    async def _send_all(self, lane: _Lane) -> None:
        """Send until the lane is empty."""
        try:
            while lane.ready:
                if len(lane.ready) < CHUNK_LINES_MAX and self._linger_s:
                    await asyncio.sleep(self._linger_s)
                await self._calls.limits_of(lane.endpoint).wait()
                if chunk := _take(lane.ready):
                    await self._send(lane, chunk)
        finally:
            lane.senders -= 1
            if not lane.senders and not lane.ready:
                self._lanes.pop(lane.endpoint, None)

    async def _send(self, lane: _Lane, chunk: list[Ticket]) -> None:
        again, pause_s = list[Ticket](), 0.0
        for ticket, verdict in zip(chunk, await self._verdicts(lane, chunk), strict=True):
            trouble = _passing(verdict)
            if trouble is None:
                self._settle(ticket, verdict)
                continue
            ticket_pause_s = trouble.pause_s(ticket.failures)
            ticket.failures += 1
            if not ticket.patience.is_over(trouble, ticket_pause_s):
                again.append(ticket)
                pause_s = max(pause_s, ticket_pause_s)
            elif verdict is None:
                raise self._calls.unreachable(trouble.text, ticket.key)
            else:
                self._settle(ticket, verdict)
        if again:
            self._calls.limits_of(lane.endpoint).pause(pause_s)
            lane.ready.extendleft(reversed(again))

    async def _verdicts(
        self, lane: _Lane, chunk: list[Ticket]
    ) -> list[Accepted | RefusedError | None]:
        try:
            return await self._calls.submit_bulk(
                [ticket.line for ticket in chunk], [ticket.key for ticket in chunk], lane.endpoint
            )
        except RefusedError as error:
            if len(chunk) > 1 or error.status not in _OF_THE_CONTENT:
                raise
            error.idempotency_key = chunk[0].key
            return [error]

    def _settle(self, ticket: Ticket, verdict: Accepted | RefusedError | None) -> None:
        if isinstance(verdict, Accepted) and self._has_outcomes:
            self._spawn(self._wait_for_end(ticket, verdict))
        else:
            self._done(ticket, verdict)

    async def _wait_for_end(self, ticket: Ticket, accepted: Accepted) -> None:
        try:
            outcome = await self._calls.outcome(accepted.id, self._calls.patience_s)
        except RefusedError as error:
            error.id, error.idempotency_key = accepted.id, accepted.idempotency_key
            self._done(ticket, error)
        else:
            self._done(ticket, outcome)

    def _done(self, ticket: Ticket, verdict: Accepted | Outcome | RefusedError | None) -> None:
        ticket.verdict, ticket.line = verdict, b""
        self._out.put_nowait(ticket)


def _passing(verdict: Accepted | RefusedError | None) -> Trouble | None:
    """Why a line has to be sent again; None: its verdict stays."""
    if verdict is None:
        return Trouble("its answers have no verdict of this submission")
    if isinstance(verdict, Accepted) or verdict.retry == Retry.NEVER:
        return None
    if not may_pass(verdict.status):
        return None
    return Trouble(str(verdict), verdict.status, verdict.retry_after_s)


def _take(ready: deque[Ticket]) -> list[Ticket]:
    """The next chunk: at least one line, and no more than a call may have."""
    chunk: list[Ticket] = []
    size = 0
    while ready and len(chunk) < CHUNK_LINES_MAX:
        size += len(ready[0].line) + 1
        if chunk and size > CHUNK_BYTES_MAX:
            break
        chunk.append(ready.popleft())
    return chunk


async def _as_async(
    source: Iterable[Submission] | AsyncIterable[Submission],
) -> AsyncIterator[Submission]:
    if isinstance(source, AsyncIterable):
        async for submission in source:
            yield submission
        return
    for number, submission in enumerate(source, 1):
        yield submission
        if not number % PULLED_IN_A_ROW:
            await asyncio.sleep(0)
