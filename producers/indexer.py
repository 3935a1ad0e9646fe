"""From `results` into the index: how each request ended, for whoever asks.

The ingresses of a deployment share the partitions of `results`. A batch of records is
written first, its positions are committed after: killed in between, the next holder writes
the same again, and the index keeps the first of two. So nothing is lost and nothing changes.
With them the limiter is told what the requests truly used, which it takes once as well.

A position is worth what the index holds: it is committed with the index's generation, and in
front of another one (the index was lost) a day of results is read again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from producers.ports import Clock, Index, Offload
from schemas.codec import DecodeError, decode_header, passed_through
from schemas.front import INDEX_TTL_MS, INLINE_BYTES_MAX, Ending, RequestName, Terminal
from schemas.log import (
    Commit,
    Log,
    Membership,
    Partition,
    PositionLostError,
    Reader,
    Record,
)
from schemas.reasons import Reason
from schemas.records import Result
from schemas.topics import Topics

#: Records written and committed together: a few megabytes at most when outputs are large.
RECORDS_MAX = 500
CONTENT_TYPE = "content-type"

log = logging.getLogger(__name__)


class Indexer:
    """One member of the group that keeps the index."""

    def __init__(
        self,
        the_log: Log,
        topics: Topics,
        index: Index,
        clock: Clock,
        offload: Offload,
        instance: str | None,
        ended: Callable[[Iterable[RequestName]], None],
        settle: Callable[[Sequence[Ending]], Awaitable[None]],
        measured: Callable[[Iterable[Ending]], None] = lambda _endings: None,
    ) -> None:
        """Join nothing before the first turn.

        `instance` names a static member; `ended` is told the requests that were indexed,
        `measured` how they ended; `settle` takes what they used, and the same again is nothing
        to it.
        """
        self._settle, self._ended, self._measured = settle, ended, measured
        self._log, self._topics, self._index = the_log, topics, index
        self._clock, self._offload = clock, offload
        # Who shares the work, and where it stands, are two groups: Kafka takes a commit from
        # outside of a group only while the group has no members.
        self._group, self._members = f"{topics.prefix}.index", f"{topics.prefix}.index.members"
        self._instance = instance
        self._membership: Membership | None = None
        self._reader: Reader | None = None
        self._owned: set[int] = set()
        self._generation = ""
        self._is_stale = False
        self._endings: list[Ending] = []
        self._read: dict[Partition, int] = {}

    async def turn(self, timeout_s: float) -> int:
        """Index what is there, waiting up to `timeout_s` for it; returns how many records.

        Raises StoreDownError (the same records are written in the next turn) or LogError.
        """
        generation = await self._index.generation()
        if generation != self._generation:
            self._generation, self._is_stale = generation, True
            self._forget()
        if not self._read:
            await self._offload(lambda: self._take(timeout_s))
        if not self._read:
            return 0
        count = len(self._endings)
        await self._index.finish(self._endings)
        self._ended(ending.name for ending in self._endings)
        await self._settle(self._endings)
        self._measured(self._endings)
        await self._offload(self._commit)
        return count

    @property
    def generation(self) -> str:
        """Name of what the index holds, as seen last; "" before it was seen."""
        return self._generation

    def close(self) -> None:
        """Leave the group, so that others go on at once."""
        if self._membership:
            self._membership.close()
        if self._reader:
            self._reader.close()

    def rejoin(self) -> None:
        """Start over after an error of the log: what is not committed is read again."""
        self.close()
        self._membership = self._reader = None
        self._owned.clear()
        self._forget()

    def _take(self, timeout_s: float) -> None:
        """Blocking: follow the assignment, then read."""
        if self._membership is None:
            if not self._log.partitions(self._topics.results):
                return  # `fairlane policy apply` makes it
            self._membership = self._log.membership(
                self._members, self._topics.results, self._instance
            )
        reader = self._reader = self._reader or self._log.reader()
        change = self._membership.poll(0)
        if change:
            self._owned.difference_update(change.lost)
            self._owned.update(change.gained)
        if change or self._is_stale:
            self._start(reader)
        if not self._owned:
            return
        try:
            records = reader.poll(RECORDS_MAX, timeout_s)
        except PositionLostError as error:
            log.error("results were lost before they were indexed: %s", error)  # noqa: TRY400
            self._start(reader, error.partition)
            return
        for record in records:
            self._read[record.topic, record.partition] = record.offset + 1
            ending = ending_of(record)
            if ending:
                self._endings.append(ending)

    def _start(self, reader: Reader, lost: Partition | None = None) -> None:
        """Read all owned partitions from where each stands; a lost one from its low end."""
        self._forget()
        parts = [(self._topics.results, number) for number in sorted(self._owned)]
        committed = reader.committed(self._group, parts) if parts else {}
        reader.assign(
            {part: self._position(reader, part, committed.get(part), lost) for part in parts}
        )
        self._is_stale = False

    def _position(
        self, reader: Reader, part: Partition, commit: Commit | None, lost: Partition | None
    ) -> int:
        if commit is None or part == lost:
            return reader.bounds(part).low
        if commit.metadata == self._generation:
            return commit.offset
        log.warning("%s[%d]: the index was lost: results of a day are read again", *part)
        again = reader.offset_at(part, self._clock.now_ms() - INDEX_TTL_MS)
        return commit.offset if again is None else min(again, commit.offset)

    def _commit(self) -> None:
        assert self._reader is not None
        owned = {
            part: Commit(offset, self._generation)
            for part, offset in self._read.items()
            if part[1] in self._owned
        }
        self._reader.commit(self._group, owned)
        self._forget()

    def _forget(self) -> None:
        self._endings, self._read = [], {}


def ending_of(record: Record) -> Ending | None:
    """What a results record means for the index; None when it says nothing new."""
    try:
        result: Result = decode_header(record, Result)
    except DecodeError as error:
        log.error("left out of the index: %s", error)  # noqa: TRY400 - the place says it all
        return None
    if result.reason == Reason.DUPLICATE:
        return None  # a second copy was dropped; the first one's outcome counts
    content_type = next(
        (
            value.decode(errors="replace")
            for name, value in passed_through(record.headers)
            if name.lower() == CONTENT_TYPE
        ),
        "",
    )
    terminal = Terminal(
        endpoint=result.endpoint,
        end=result.end,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=result.reason,
        detail=result.detail,
        attempt=result.attempt,
        usage=result.usage,
        arrived_ms=result.arrived_ms,
        picked_ms=result.picked_ms,
        ended_ms=result.ended_ms,
        content_type=content_type,
        size=len(record.value),
    )
    body = record.value if len(record.value) <= INLINE_BYTES_MAX else None
    return Ending(RequestName(result.tenant, result.id), terminal, body)
