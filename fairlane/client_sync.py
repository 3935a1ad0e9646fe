"""The Python client, synchronous: the asynchronous one on an event loop in a thread of its own.

Safe to use from several threads: each call is handed to the loop and waited for. Iterables
of submissions are read in the caller's thread. A forked child gets a loop and connections of
its own at its first call; at the interpreter's exit what is open is closed.
"""

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import CancelledError
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

import httpx

from fairlane.client import (
    CONNECTIONS,
    DEFAULT_URL,
    OUTSTANDING,
    PATIENCE_S,
    AsyncClient,
    check_outstanding,
)
from fairlane.client_values import Accepted, ClosedError, Options, Outcome, RefusedError, Submission

#: Submissions read from the caller's iterable before what is done is looked at again.
PULL_STEP = 32
#: A loop that is told to stop has nothing to wait for but the closing of its connections.
STOP_S = 5.0

T = TypeVar("T")
Verdict = TypeVar("Verdict", Accepted | RefusedError, Outcome | RefusedError)
_Pairs = AsyncGenerator[tuple[Submission, Verdict], None]


class Client:
    """A tenant's way to a Fairlane deployment; for any number of threads.

    Takes the arguments of AsyncClient and has its methods, synchronous; a context manager.
    KeyboardInterrupt in a call ends that call, also on the loop.

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
        def new_client() -> AsyncClient:
            return AsyncClient(
                url,
                key,
                transport=transport,
                patience_s=patience_s,
                connections=connections,
            )

        new_client()  # wrong arguments are told here
        self._new_client = new_client
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: _LoopThread | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs, in all threads, and close the connections."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread:
            thread.stop()

    # --- one request

    @overload
    def submit(self, submission: Submission, /) -> Accepted: ...

    @overload
    def submit(self, endpoint: str, input: Any, /, **options: Unpack[Options]) -> Accepted: ...

    def submit(self, what: Submission | str, /, *rest: Any, **options: Any) -> Accepted:
        """Submit one request; see AsyncClient.submit."""
        submission = what if isinstance(what, Submission) else Submission(what, *rest, **options)
        return self._call(lambda client: client.submit(submission))

    def wait(self, id: str, timeout_s: float | None = None) -> Outcome:  # noqa: A002
        """Wait until a request has ended; see AsyncClient.wait."""
        return self._call(lambda client: client.wait(id, timeout_s))

    def cancel(self, id: str) -> str:  # noqa: A002
        """Ask for the end of a request; see AsyncClient.cancel."""
        return self._call(lambda client: client.cancel(id))

    # --- many requests

    def submit_many(
        self, submissions: Iterable[Submission], *, outstanding: int = OUTSTANDING
    ) -> Generator[tuple[Submission, Accepted | RefusedError], None, None]:
        """Submit many by bulk calls; see AsyncClient.submit_many."""
        check_outstanding(outstanding)
        return _Many(
            self._running(),
            lambda client, source: client.submit_many(source, outstanding=outstanding),
            outstanding,
        ).pairs(submissions)

    def run_many(
        self, submissions: Iterable[Submission], *, outstanding: int = OUTSTANDING
    ) -> Generator[tuple[Submission, Outcome | RefusedError], None, None]:
        """Submit many and wait for them; see AsyncClient.run_many."""
        check_outstanding(outstanding)
        return _Many(
            self._running(),
            lambda client, source: client.run_many(source, outstanding=outstanding),
            outstanding,
        ).pairs(submissions)

    def _call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        return self._running().call(work)

    def _running(self) -> "_LoopThread":
        if self._pid != os.getpid():  # a fork copies no threads, but locks as they were
            self._lock, self._pid, self._thread = threading.Lock(), os.getpid(), None
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._thread is None:
                self._thread = _LoopThread(self._new_client)
                weakref.finalize(self, self._thread.stop)
            return self._thread


class _Call(Generic[T]):
    """A call on the loop that can be cancelled at any time, even before it began."""

    def __init__(self, work: Callable[[AsyncClient], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def on_loop(self, client: AsyncClient) -> T:
        """Do it."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._work(client)

    def cancel(self) -> None:
        """End it; for the loop's thread."""
        self._is_cancelled = True
        if self._task:
            self._task.cancel()


class _LoopThread:
    """A thread with an event loop and a client on it."""

    def __init__(self, new_client: Callable[[], AsyncClient]) -> None:
        self._pid = os.getpid()
        self._is_ready = threading.Event()
        self._new_client = new_client
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="fairlane-client", daemon=True
        )
        self._thread.start()
        self._is_ready.wait()

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.client = self._new_client()
        self._is_ready.set()
        await self._stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.client.aclose()

    def call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Do it on the loop and return what it returns."""
        call = _Call(work)
        coroutine = call.on_loop(self.client)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        except CancelledError as error:
            raise _closed() from error
        except RuntimeError as error:
            if not self.loop.is_closed():
                raise
            coroutine.close()
            raise _closed() from error
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(call.cancel)
            raise

    def tell(self, callback: Callable[[], object]) -> None:
        """Do it on the loop soon."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise _closed() from error

    def stop(self) -> None:
        """End everything on the loop; nothing happens in a forked child."""
        if self._pid != os.getpid():
            return
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_S)


class _Many(Generic[Verdict]):
    """One `submit_many` or `run_many`: the caller's thread pulls, the loop does the rest."""

    def __init__(
        self,
        thread: _LoopThread,
        begin: Callable[[AsyncClient, AsyncIterator[Submission]], _Pairs[Verdict]],
        outstanding: int,
    ) -> None:
        self._thread, self._room = thread, outstanding
        self._begin: Callable[[AsyncClient, AsyncIterator[Submission]], _Pairs[Verdict]] = begin
        self._fed: asyncio.Queue[list[Submission]] = asyncio.Queue()
        self._done: queue.SimpleQueue[tuple[Submission, Verdict] | None] = queue.SimpleQueue()

    def pairs(
        self, submissions: Iterable[Submission]
    ) -> Generator[tuple[Submission, Verdict], None, None]:
        """Pull, as far as there is room, and yield what is done."""
        source: Iterator[Submission] | None = iter(submissions)
        task = self._thread.call(self._start)
        try:
            while True:
                if source and self._room:
                    source = self._feed(source)
                try:
                    pair = self._done.get(block=not (source and self._room))
                except queue.Empty:
                    continue
                if pair is None:
                    break
                self._room += 1
                yield pair
            self._thread.call(lambda _: task)  # raises what it raised
        finally:
            with contextlib.suppress(ClosedError):
                self._thread.call(lambda _: _end(task))

    async def _start(self, client: AsyncClient) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._pump(client))
        task.add_done_callback(lambda _: self._done.put(None))
        return task

    async def _pump(self, client: AsyncClient) -> None:
        async with contextlib.aclosing(self._begin(client, self._source())) as pairs:
            async for pair in pairs:
                self._done.put(pair)

    async def _source(self) -> AsyncIterator[Submission]:
        while chunk := await self._fed.get():
            for submission in chunk:
                yield submission

    def _feed(self, source: Iterator[Submission]) -> Iterator[Submission] | None:
        """Hand over a step of submissions; None when there are no more."""
        step = min(self._room, PULL_STEP)
        chunk = list(islice(source, step))
        self._room -= len(chunk)
        is_over = len(chunk) < step

        def hand_over() -> None:
            if chunk:
                self._fed.put_nowait(chunk)
            if is_over:
                self._fed.put_nowait([])

        self._thread.tell(hand_over)
        return None if is_over else source


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _closed() -> ClosedError:
    return ClosedError("the client is closed")
