"""The board of the backlog in Redis, as the scheduler writes it.

Keys, with a TTL: `<prefix>:{backlog}:<name>`, a string each (`schemas.backlog`).

A thread of its own writes: the scheduler hands a value over and goes on. Of a name the newest
value alone waits. While Redis is away what was handed over is dropped: it would be stale when
it could be written. The client is loaded by that thread: a scheduler that comes back has better
things to do first.
"""

import threading
from typing import TYPE_CHECKING

from schemas.backlog import KEPT_MS

if TYPE_CHECKING:
    from redis import Redis

#: Redis that does not answer for so long is away.
TIMEOUT_S = 0.5
#: ... and is asked again after so long.
PAUSE_S = 1.0
#: The thread ends within this, or is left behind: it holds nothing that anybody needs.
STOP_S = 2.0
#: Names that wait to be written: one a pool and slice. More than any deployment has.
NAMES_MAX = 10_000


class RedisBoard:
    """Values by name; `post` may be called by any thread."""

    def __init__(self, url: str, prefix: str) -> None:
        """Nothing is sent before the first value."""
        self._url, self._prefix = url, prefix
        self._waiting: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def post(self, name: str, data: bytes) -> None:
        """Hand a value over; it is written soon, or never."""
        with self._changed:
            if self._is_closed or (name not in self._waiting and len(self._waiting) >= NAMES_MAX):
                return
            self._waiting[name] = data
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="fairlane-backlog", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread; what waits is not written any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _write_all(self) -> None:
        from redis import Redis  # noqa: PLC0415 - see the module
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415

        client = Redis.from_url(
            self._url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        while values := self._next():
            try:
                self._write(client, values)
            except (RedisError, OSError):
                self._rest()
        client.close()

    def _next(self) -> dict[str, bytes]:
        """What waits, as soon as there is something; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            values, self._waiting = self._waiting, {}
            return {} if self._is_closed else values

    def _rest(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, PAUSE_S)
            self._waiting.clear()

    def _write(self, client: "Redis", values: dict[str, bytes]) -> None:
        pipe = client.pipeline(transaction=False)
        for name, data in values.items():
            pipe.set(f"{self._prefix}:{{backlog}}:{name}", data, px=KEPT_MS)
        pipe.execute()
