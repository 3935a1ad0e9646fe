"""Submissions under way: simultaneous copies of one request are one submission."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from schemas.front import RequestName

T = TypeVar("T")


class Flights(Generic[T]):
    """At most one submission of a name at a time in this process."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._under_way: dict[RequestName, tuple[str, asyncio.Task[T]]] = {}

    async def share(
        self, name: RequestName, digest: str, submit: Callable[[], Awaitable[T]]
    ) -> T | None:
        """Answer of the submission of this name, begun here or by a copy; None if not a copy.

        A caller that goes away does not end what others wait for.
        """
        found = self._under_way.get(name)
        if found is None:
            task = asyncio.create_task(self._run(name, submit))
            self._under_way[name] = (digest, task)
        elif found[0] != digest:
            return None
        else:
            task = found[1]
        return await asyncio.shield(task)

    async def _run(self, name: RequestName, submit: Callable[[], Awaitable[T]]) -> T:
        try:
            return await submit()
        finally:
            del self._under_way[name]
