"""Sums in the making: records of lanes in, changed sums out, in slices.

What belongs here: what was read since the last slice, on top of what is stored. What does
not: who stores it (`accounting.app`), and any client.

A slice is all that changed since the last one. Whoever stores it may fail half way, or
another process may have stored more of the same lane: the greater `upto` is the base.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from accounting.core.sums import (
    KEPT_MS,
    MismatchError,
    Share,
    Slot,
    grown,
    is_kept,
    ns_per_token,
    shares,
    windows_of,
)
from accounting.shelf import Shelf
from schemas.codec import DecodeError, decode_bytes, decode_value
from schemas.log import Record
from schemas.reasons import Reason
from schemas.records import VERSION, Finished, WorkerRecord
from schemas.usage import Cost, UsageSum, Window

#: Sums kept decoded: those of the windows of now, of thousands of tenants, are fewer.
DECODED_MAX = 100_000


class Slice(NamedTuple):
    """What changed: sums by pool and key, and the costs learned with them."""

    sums: dict[str, dict[bytes, UsageSum]]
    costs: list[Cost]


class Counting:
    """Counts what the lanes' records say. One thread only."""

    def __init__(self, stored: Mapping[str, Shelf]) -> None:
        """`stored` holds the sums of each pool, as they are stored at any moment."""
        self._stored = stored
        self._changed: dict[str, dict[bytes, UsageSum]] = {pool: {} for pool in stored}
        self._newest_ms: dict[tuple[str, int], int] = {}
        self._decoded: dict[bytes, tuple[bytes, UsageSum]] = {}

    def take(self, pool: str, record: Record, now_ms: int) -> bool:
        """Count one record of `workers.<pool>`; tells whether any sum grew.

        None does when it finishes no batch, or is read again.
        Raises DecodeError for what can't be read; nothing is counted then.
        """
        said: WorkerRecord = decode_value(record, WorkerRecord)
        if not isinstance(said, Finished):
            return False
        try:
            found = shares(said)
        except MismatchError as error:
            raise DecodeError(record.place, Reason.UNREADABLE, str(error)) from error
        lane = record.partition
        ended_ms = said.ended_ms or record.timestamp_ms
        newest_ms = self._newest(pool, lane)
        windows = list(windows_of(ended_ms, record.timestamp_ms, min(newest_ms, now_ms)))
        cost = ns_per_token(said)
        has_grown = False
        for (tenant, endpoint), used in found.items():
            share = Share(record.offset, ended_ms, used, cost)
            for window, start_ms, is_late in windows:
                slot = Slot(tenant, endpoint, window, start_ms, pool, lane)
                total = grown(self._known(pool, slot.key), slot, share, is_late=is_late)
                if total is not None:
                    self._changed[pool][slot.key] = total
                    has_grown = True
        self._newest_ms[pool, lane] = max(newest_ms, ended_ms)
        return has_grown

    def slice(self) -> Slice:
        """What changed since the last slice and is not stored yet; begins the next one."""
        sums: dict[str, dict[bytes, UsageSum]] = {}
        for pool, changed in self._changed.items():
            news = {key: total for key, total in changed.items() if self._is_news(pool, total, key)}
            if news:
                sums[pool] = news
            changed.clear()
        costs = [_cost(total) for news in sums.values() for total in news.values() if _tells(total)]
        return Slice(sums, costs)

    def outdated(self, now_ms: int) -> Iterator[tuple[str, bytes]]:
        """(pool, key) of stored sums whose windows are no longer kept.

        A lane's own time decides, so that one that is read again late keeps its windows; a
        worker whose clock runs ahead of `now_ms` ends none.
        """
        for pool, stored in self._stored.items():
            for lane in stored.lanes():
                newest_ms = min(self._newest(pool, lane), now_ms)
                for window in KEPT_MS:
                    for start_ms, keys in stored.starts(window, lane).items():
                        if not is_kept(window, start_ms, newest_ms):
                            yield from ((pool, key) for key in keys)

    def reassigned(self) -> None:
        """Lanes came or went, and with them sums: forget all that is not stored.

        It is read again. How far each lane has come is asked anew.
        """
        for changed in self._changed.values():
            changed.clear()
        self._newest_ms.clear()

    def _known(self, pool: str, key: bytes) -> UsageSum | None:
        """The sum so far: stored or changed since, whichever holds more."""
        changed, stored = self._changed[pool].get(key), self._stored_sum(pool, key)
        if changed is None or stored is None:
            return changed or stored
        return changed if changed.upto > stored.upto else stored

    def _is_news(self, pool: str, total: UsageSum, key: bytes) -> bool:
        stored = self._stored_sum(pool, key)
        return stored is None or stored.upto < total.upto

    def _stored_sum(self, pool: str, key: bytes) -> UsageSum | None:
        """Stored sum, decoded once as long as it stays the same value."""
        value = self._stored[pool].get(key)
        if value is None:
            return None
        known = self._decoded.get(key)
        if known is None or known[0] is not value:
            if len(self._decoded) >= DECODED_MAX:
                self._decoded.clear()
            known = self._decoded[key] = value, _decode(value)
        return known[1]

    def _newest(self, pool: str, lane: int) -> int:
        """Latest time that the lane's records have come to; 0 for none."""
        if (pool, lane) not in self._newest_ms:
            stored = self._stored[pool]
            # Each batch is in a sum of this kind: no other has to be looked at.
            (keys, *_) = stored.starts(Window.ALL, lane).values() or [()]
            times = (_decode(stored[key]).last_ms for key in keys)
            self._newest_ms[pool, lane] = max(times, default=0)
        return self._newest_ms[pool, lane]


def decode_sum(key: bytes, value: bytes) -> UsageSum:
    """Decode a stored sum; raises DecodeError."""
    return decode_bytes(value, UsageSum, key.decode(errors="replace"))


def _decode(value: bytes) -> UsageSum:
    return decode_bytes(value, UsageSum, "stored sum")


def _tells(total: UsageSum) -> bool:
    return total.window is Window.ALL and total.ns_per_token > 0


def _cost(total: UsageSum) -> Cost:
    return Cost(
        VERSION,
        total.tenant,
        total.endpoint,
        total.pool,
        total.lane,
        total.upto,
        total.ns_per_token,
        total.used.input_tokens + total.used.output_tokens,
        total.last_ms,
    )
