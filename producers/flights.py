"""Submissions under way: simultaneous copies of one request are one submission."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from producers.ports import Index
from schemas.front import Claim, Claimed, RequestName


class Named(Protocol):
    """A request as its caller sent it: the name, and the digest of all the rest."""

    @property
    def name(self) -> RequestName:
        """Whose request, and its id."""

    @property
    def digest(self) -> str:
        """Tells a copy from another request of this name."""


T = TypeVar("T")
N = TypeVar("N", bound=Named)


class Flights(Generic[T]):
    """At most one submission of a name at a time in this process."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._under_way: dict[RequestName, tuple[str, asyncio.Future[T]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def share(self, request: Named, submit: Callable[[], Awaitable[T]]) -> T | None:
        """Answer of the submission of this name, begun here or by a copy; None if not a copy.

        A caller that goes away does not end what others wait for.
        """
        found = self._under_way.get(request.name)
        if found is None:
            task = asyncio.create_task(self._run(request.name, submit))
            self._under_way[request.name] = (request.digest, task)
            return await asyncio.shield(task)
        if found[0] != request.digest:
            return None
        return await asyncio.shield(found[1])

    async def share_all(
        self,
        requests: Sequence[N],
        submit: Callable[[Sequence[N]], Awaitable[Sequence[T | Exception]]],
    ) -> list[T | Exception | None]:
        """The same for many: those that are no copies are submitted together, in their order.

        An error of one stands for its answer, here and among the answers of `submit`.
        """
        loop = asyncio.get_running_loop()
        begun: dict[RequestName, asyncio.Future[T]] = {}
        own: list[N] = []
        answers: list[asyncio.Future[T] | None] = []
        for request in requests:
            found = self._under_way.get(request.name)
            if found is None:
                found = self._under_way[request.name] = (request.digest, loop.create_future())
                begun[request.name] = found[1]
                own.append(request)
            answers.append(found[1] if found[0] == request.digest else None)
        if own:
            task = asyncio.create_task(self._run_all(begun, lambda: submit(own)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait((task,))  # not ended with a caller that goes away
        return [None if answer is None else await self._outcome(answer) for answer in answers]

    async def _run(self, name: RequestName, submit: Callable[[], Awaitable[T]]) -> T:
        try:
            return await submit()
        finally:
            del self._under_way[name]

    async def _run_all(
        self,
        begun: dict[RequestName, asyncio.Future[T]],
        submit: Callable[[], Awaitable[Sequence[T | Exception]]],
    ) -> None:
        try:
            answers: Sequence[T | Exception] = await submit()
        except Exception as error:  # noqa: BLE001 - it belongs to all who wait for these
            answers = [error] * len(begun)
        except asyncio.CancelledError:  # the loop ends, and nobody is to wait for ever
            for future in begun.values():
                future.cancel()
            raise
        finally:
            for name in begun:
                del self._under_way[name]
        for future, answer in zip(begun.values(), answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # looked at: perhaps nobody waits for it any more
            else:
                future.set_result(answer)

    @staticmethod
    async def _outcome(answer: "asyncio.Future[T]") -> T | Exception:
        try:
            return await asyncio.shield(answer)
        except Exception as error:  # noqa: BLE001 - it is this one's answer
            return error


class OneProcess:
    """The claims of a single ingress: it knows its own by its flights, so only the index counts."""

    def __init__(self, index: Index) -> None:
        """Hand in what says which requests are known."""
        self._index = index

    async def claim(self, claim: Claim) -> Claimed:
        """What is known of the request; raises StoreDownError."""
        return Claimed(await self._index.lookup(claim.name), "", is_held=False)

    async def release(self, claim: Claim) -> None:
        """Nothing was noted."""

    async def hold(self, claim: Claim) -> None:
        """Nothing is noted."""
