"""What a Redis says about itself: version, what it evicts and keeps, how far away it is.

For looking, not for working: nothing here writes, and nothing waits longer than it is told to.
"""

import time
from statistics import median
from typing import Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from schemas.front import StoreDownError

#: Round trips that are measured; the median says what a charge will wait.
PINGS = 5


class RedisFacts(NamedTuple):
    """A Redis as it is; `saves` is its snapshot rule, None where the server doesn't tell."""

    version: str
    eviction: str
    is_appending: bool
    saves: str | None
    rtt_us: int


def look(url: str, timeout_s: float) -> RedisFacts:
    """Ask the Redis at a URL; each question waits `timeout_s` at most.

    Raises StoreDownError, whose message never holds the URL: there may be a password in it.
    """
    try:
        client = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
    except ValueError as error:
        raise StoreDownError("the URL can't be read") from error
    try:
        info: dict[str, Any] = client.info()
        return RedisFacts(
            version=str(info.get("redis_version", "")),
            eviction=str(info.get("maxmemory_policy", "")),
            is_appending=bool(info.get("aof_enabled", 0)),
            saves=_saves(client),
            rtt_us=_rtt_us(client),
        )
    except (RedisError, OSError) as error:
        raise StoreDownError(str(error) or type(error).__name__) from error
    finally:
        client.close()


def _saves(client: "Redis") -> str | None:
    """When snapshots are written; None where the server doesn't let that be asked."""
    try:
        return str(client.config_get("save").get("save", ""))
    except ResponseError:
        return None


def _rtt_us(client: "Redis") -> int:
    times = []
    for _ in range(PINGS):
        started = time.perf_counter_ns()
        client.ping()
        times.append(time.perf_counter_ns() - started)
    return int(median(times)) // 1_000
