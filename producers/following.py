"""Tasks that follow the log for as long as the process serves, whatever fails meanwhile.

Errors of the log and of Redis are waited out, and any other error as well: a follower that
ended would leave a process that serves with a policy or an index of yesterday. Only a fenced
one ends, because another process of its name goes on instead; readiness tells.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from producers.ports import Offload
from schemas.front import StoreDownError
from schemas.log import FencedError, LogError

#: Pause of a follower that found nothing: an in-process log never waits by itself.
IDLE_S = 0.01
#: Pause after an error of the log, of Redis or of ours.
ERROR_PAUSE_S = 0.5
#: A turn of a follower is over by then even if the log does not answer.
TURN_S_MAX = 10.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class Offloaded:
    """Calls that may block, of somebody who frees what they use only after the last one."""

    def __init__(self, offload: Offload) -> None:
        """Nothing runs."""
        self._offload = offload
        self._running: set[asyncio.Future[Any]] = set()

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Run `call` and return its answer. It goes on to its end if who waits is cancelled."""
        running = asyncio.ensure_future(self._offload(call))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    async def ended(self) -> None:
        """Wait until none runs any more."""
        while self._running:
            await asyncio.wait(self._running)

    def _ended(self, running: "asyncio.Future[Any]") -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # whoever waited has it, and who was cancelled does not want it


class Followers:
    """The following tasks of one process, by name."""

    def __init__(self, offload: Offload) -> None:
        """Nothing runs before `start`."""
        self._offload = offload
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()

    def start(
        self,
        what: str,
        turn: Callable[[], Awaitable[int]],
        recover: Callable[[], None] | None = None,
    ) -> None:
        """Call `turn` again and again in the running loop; `recover` after its errors."""
        self._tasks[what] = asyncio.create_task(self._forever(what, turn, recover))

    async def stop(self) -> None:
        """End all after their turns.

        Never cancelled while they run well: a reader may not be closed under a thread's poll.
        """
        self._stopping.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=TURN_S_MAX)
            for task in late:
                task.cancel()

    def ended(self) -> str:
        """Names of those that follow no more; empty while all do."""
        return ", ".join(what for what, task in self._tasks.items() if task.done())

    async def pause(self, pause_s: float) -> None:
        """Wait so long, or until the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    async def _forever(
        self,
        what: str,
        turn: Callable[[], Awaitable[int]],
        recover: Callable[[], None] | None,
    ) -> None:
        while not self._stopping.is_set():
            try:
                if not await turn():
                    await self.pause(IDLE_S)
            except FencedError as error:
                # Never taken back: the other one would be fenced in turn, and so on for ever.
                log.error("%s: left to another process of this name: %s", what, error)  # noqa: TRY400
                return
            except Exception as error:  # noqa: BLE001 - told, and waited out
                _tell(what, error)
                if recover and not isinstance(error, StoreDownError):
                    await self._recover(what, recover)
                await self.pause(ERROR_PAUSE_S)

    async def _recover(self, what: str, recover: Callable[[], None]) -> None:
        try:
            await self._offload(recover)
        except Exception as error:  # noqa: BLE001 - the next turn fails, and recovers again
            _tell(what, error)


def _tell(what: str, error: Exception) -> None:
    if isinstance(error, StoreDownError):
        log.warning("%s: waits for Redis: %s", what, error)
    elif isinstance(error, LogError):
        log.warning("%s: waits for the log: %s", what, error)
    else:
        log.error("%s: failed, and goes on", what, exc_info=error)
