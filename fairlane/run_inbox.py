"""Process wiring of the inboxes: `fairlane inbox`.

It ends on a signal, and when another process of its name goes on instead: whatever else
happens, it waits and goes on, because what it holds stands in the log.
"""

import asyncio
import secrets
import threading

from adapters.clock import SystemClock, elapsed_ms
from adapters.redis import RedisIndex, connect
from adapters.redis_backlog import RedisBacklog
from adapters.redis_claims import RedisClaims
from adapters.redis_limits import RedisLimits
from fairlane.run import (
    EXIT_CLEAN,
    EXIT_FENCED,
    Process,
    open_log,
    open_meter,
    stop_on_signals,
)
from producers.inbox import Inboxes, InboxParts
from producers.limiting import WhenDown

#: How long a signal goes unnoticed.
LOOK_S = 0.1


def run_inbox(process: Process, when_down: WhenDown) -> int:
    """Take inboxes in until told to stop; returns the exit code.

    Raises FairlaneError when Redis is not configured.
    """
    process.notes.follow_logging()
    stop = stop_on_signals()
    url = process.settings.need_redis()
    meter = open_meter(process.metrics_port)
    log = open_log(process.settings)
    process.notes.info("starting")

    async def serve() -> str:
        client, prefix = connect(url), process.settings.prefix
        inboxes = Inboxes(
            InboxParts(
                log=log,
                topics=process.topics,
                limits=RedisLimits(client, prefix),
                index=RedisIndex(client, prefix),
                clock=SystemClock(),
                elapsed_ms=elapsed_ms,
                meter=meter,
                random_bytes=secrets.token_bytes,
                claims=RedisClaims(client, prefix),
                backlog=RedisBacklog(client, prefix),
                instance=process.instance,
                when_down=when_down,
            )
        )
        inboxes.start()
        ended = await _until_over(inboxes, stop)
        await inboxes.stop()
        await client.aclose()
        return ended

    ended = asyncio.run(serve())
    log.close()
    process.notes.info("stopped")
    return EXIT_FENCED if ended else EXIT_CLEAN


async def _until_over(inboxes: Inboxes, stop: threading.Event) -> str:
    """Wait for a signal, or for what another process follows instead."""
    while not stop.is_set() and not inboxes.ended():
        await asyncio.to_thread(stop.wait, LOOK_S)
    return inboxes.ended()
