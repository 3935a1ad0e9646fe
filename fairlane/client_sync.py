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
from concurrent.futures import CancelledError, Future
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
    given_key,
)
from fairlane.client_values import Accepted, ClosedError, Options, Outcome, RefusedError, Submission

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
        own_key = given_key(key)  # once: a thread or a fork begins anew with the same

        def new_client() -> AsyncClient:
            return AsyncClient(
                url,
                own_key,
                transport=transport,
                patience_s=patience_s,
                connections=connections,
            )

        new_client()  # wrong arguments are told here
        self._new_client = new_client
        self._locks: dict[int, threading.RLock] = {}
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
            self,
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
            self,
            self._running(),
            lambda client, source: client.run_many(source, outstanding=outstanding),
            outstanding,
        ).pairs(submissions)

    def _call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        return self._running().call(work)

    @property
    def _lock(self) -> "threading.RLock":
        """The lock of this process: a fork copies locks as they were, without who held them."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _running(self) -> "_LoopThread":
        """The loop of this process; it ends with the client. Raises ClosedError."""
        with self._lock:
            if self._is_closed:
                raise ClosedError
            if self._pid != os.getpid():  # a fork copies no threads
                self._pid, self._thread = os.getpid(), None
            if self._thread is None:
                self._thread = _LoopThread(self._new_client())
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
    """A thread with an event loop for a client."""

    def __init__(self, client: AsyncClient) -> None:
        """Raises what keeps the loop from beginning."""
        self._client = client
        self._pid = os.getpid()
        self._lock = threading.RLock()  # again by who is collected meanwhile
        self._pending: set[Future[Any]] = set()
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="fairlane-client", daemon=True)
        self._thread.start()
        self._loop = self._begun.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._begun.set_result(runner.get_loop())
                runner.run(self._live())
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)
        finally:
            with self._lock:
                self._is_stopping = True
                pending = list(self._pending)
            for future in pending:
                future.cancel()

    async def _live(self) -> None:
        await self._stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def call(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Do it on the loop and return what it returns; not for the loop's own thread.

        Raises ClosedError when the loop ends before.
        """
        self._check_process()
        call = _Call(work)
        with self._lock:
            self._check_running()
            future = asyncio.run_coroutine_threadsafe(call.on_loop(self._client), self._loop)
            self._pending.add(future)
        try:
            return future.result()
        except CancelledError as error:
            raise ClosedError from error
        except BaseException:
            with contextlib.suppress(ClosedError):
                self.tell(call.cancel)
            raise
        finally:
            with self._lock:
                self._pending.discard(future)

    def tell(self, callback: Callable[[], object]) -> None:
        """Do it on the loop soon. Raises ClosedError."""
        self._check_process()
        with self._lock:
            self._check_running()
            self._loop.call_soon_threadsafe(callback)

    def end(self, task: "asyncio.Task[None]") -> None:
        """Cancel a task of the loop and wait for its end, where that can be waited for."""
        if self._thread is threading.current_thread():  # somebody was collected here
            task.cancel()
            return
        with contextlib.suppress(ClosedError):
            self.call(lambda _: _end(task))

    def stop(self) -> None:
        """End everything on the loop; nothing happens in a forked child."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def _check_process(self) -> None:
        """Raise ClosedError in a forked child, which has neither the thread nor its locks."""
        if self._pid != os.getpid():
            raise ClosedError

    def _check_running(self) -> None:
        if self._is_stopping:
            raise ClosedError


class _Many(Generic[Verdict]):
    """One `submit_many` or `run_many`: the caller's thread pulls, the loop does the rest."""

    def __init__(
        self,
        client: Client,
        thread: _LoopThread,
        begin: Callable[[AsyncClient, AsyncIterator[Submission]], _Pairs[Verdict]],
        outstanding: int,
    ) -> None:
        self._client = client  # held: when nobody holds it, its loop ends
        self._thread, self._room = thread, outstanding
        self._begin: Callable[[AsyncClient, AsyncIterator[Submission]], _Pairs[Verdict]] = begin
        self._fed: asyncio.Queue[Submission | None] = asyncio.Queue()
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
            self._thread.end(task)

    async def _start(self, client: AsyncClient) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._pump(client))
        task.add_done_callback(lambda _: self._done.put(None))
        return task

    async def _pump(self, client: AsyncClient) -> None:
        async with contextlib.aclosing(self._begin(client, self._source())) as pairs:
            async for pair in pairs:
                self._done.put(pair)

    async def _source(self) -> AsyncIterator[Submission]:
        while (submission := await self._fed.get()) is not None:
            yield submission

    def _feed(self, source: Iterator[Submission]) -> Iterator[Submission] | None:
        """Pull one submission and hand it over at once; None when there are no more."""
        submission = next(source, None)
        self._thread.tell(lambda: self._fed.put_nowait(submission))
        if submission is None:
            return None
        self._room -= 1
        return source


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
