"""Tenants whose inbox is left out for a while, because their topic alone can't be used.

So others of their bucket go on. Each failure in a row takes twice as long.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from producers.core.inbox_answers import Answer
from producers.inbox_takeover import concerning
from schemas.log import (
    AbortedError,
    FencedError,
    InDoubtError,
    LogError,
    Partition,
    TransactionalProducer,
    UnavailableError,
)
from schemas.topics import Topics

#: The first pause, and the longest: a try costs the bucket up to two take-overs.
PAUSE_MS = 10_000
PAUSE_MS_MAX = 600_000
#: Errors that are not a topic's own: the transaction's, or the brokers'.
_PASSING = (FencedError, AbortedError, InDoubtError, UnavailableError)

log = logging.getLogger(__name__)


class _Pause(NamedTuple):
    until_ms: int
    pause_ms: int


class Aside:
    """Who is left out, and until when."""

    def __init__(self, topics: Topics) -> None:
        """Nobody is."""
        self._topics = topics
        self._pauses: dict[str, _Pause] = {}

    def put(self, error: LogError, tenants: Iterable[str], now_ms: int) -> bool:
        """Leave that tenant out whose topic alone is refused; False: it is not one's.

        Brokers that don't answer come back: a copy that is left out does not.
        """
        if error.concerns is None or isinstance(error, _PASSING):
            return False
        topic = error.concerns[0]
        for tenant in tenants:
            if topic in {self._topics.inbox(tenant), self._topics.results_of(tenant)}:
                pause_s = self._pause_ms(tenant, now_ms) // 1_000
                log.error("inbox of %s: left out for %d s: %s", tenant, pause_s, error)
                return True
        return False

    def without(self, tenants: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """Those who are not left out now."""
        return tuple(
            tenant
            for tenant in tenants
            if tenant not in self._pauses or self._pauses[tenant].until_ms <= now_ms
        )

    def _pause_ms(self, tenant: str, now_ms: int) -> int:
        last = self._pauses.get(tenant)
        pause_ms = PAUSE_MS
        if last and now_ms - last.until_ms < PAUSE_MS_MAX:
            pause_ms = min(2 * last.pause_ms, PAUSE_MS_MAX)
        self._pauses[tenant] = _Pause(now_ms + pause_ms, pause_ms)
        return pause_ms


def send(
    producer: TransactionalProducer, answer: Answer, part: Partition, refused: list[Partition]
) -> None:
    """Send with the open transaction; a partition that turns out to take it not is noted.

    Raises LogError, with the partition.
    """

    def report(_: int | None, error: LogError | None) -> None:
        if error is not None and not isinstance(error, _PASSING):
            refused.append(part)

    with concerning(part):
        producer.send(
            *part, answer.value, key=answer.key, headers=answer.headers, on_delivery=report
        )
