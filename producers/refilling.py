"""From `requests` into an index that was lost: where each request that may still wait stands.

How requests ended is read again from `results` by the indexer; one that has not ended stands
nowhere but in its own topic. No endpoint lets a request wait longer than the policy says: so
what is older has ended, and is not read. What a request's caller sent besides (its key's digest)
is not in the log: until it ends, its key takes any body again, as the same request.

That a partition was read is committed with the index's generation, so that it is read once for
each. Several ingresses that begin at the same moment may read the same: the first entry stays.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from producers.directory import Directory
from producers.ports import Clock, Index, Offload
from schemas.codec import DecodeError, decode_header, passed_through
from schemas.front import Acceptance, RequestName
from schemas.log import Commit, Log, Partition, PositionLostError, Reader, Record
from schemas.policy import Policy
from schemas.records import Request
from schemas.topics import Topics

#: Records read and noted together: bodies come along, and nothing else is to wait for long.
RECORDS_MAX = 200
#: Clocks of those who write and read the log differ by less.
MARGIN_MS = 60_000
CALL = "x-request-id"

log = logging.getLogger(__name__)

Found = tuple[RequestName, Acceptance]


class Refill:
    """Fills the index of one deployment, once for each generation of it."""

    def __init__(
        self,
        the_log: Log,
        topics: Topics,
        index: Index,
        clock: Clock,
        offload: Offload,
        directory: Directory,
        generation: Callable[[], str],
    ) -> None:
        """Nothing is read before the first turn.

        The directory knows tiers and longest waits; `generation` is the index's as known now, ""
        for not yet.
        """
        self._log, self._topics, self._index = the_log, topics, index
        self._clock, self._offload, self._directory = clock, offload, directory
        self._present = generation
        self._group = f"{topics.prefix}.index.requests"
        self._done = ""
        self._generation = ""
        self._reader: Reader | None = None
        self._tiers: dict[str, str] = {}
        self._ends: dict[Partition, int] = {}

    async def turn(self, timeout_s: float) -> int:
        """Take in a piece, waiting up to `timeout_s` for it; returns how many requests.

        Raises StoreDownError or LogError; `again` is to be called then.
        """
        view, generation = self._directory.view, self._present()
        if view is None or generation in {"", self._done}:
            return 0
        if generation != self._generation:
            await self._offload(self.again)
            await self._offload(lambda: self._start(generation, view.policy))
        found = await self._offload(lambda: self._read(timeout_s))
        # As many at once as go into a call of the store.
        await asyncio.gather(*(self._index.accept(name, place) for name, place in found))
        if await self._offload(self._is_over):
            self._done = generation
        return len(found)

    def again(self) -> None:
        """Blocking: begin anew with the next turn."""
        self._generation = ""
        if self._reader:
            self._reader.close()
        self._reader = None

    close = again

    # --- blocking

    def _start(self, generation: str, policy: Policy) -> None:
        reader = self._reader = self._log.reader()
        self._tiers = {self._topics.requests(tier.name): tier.name for tier in policy.tiers}
        parts = [
            (topic, number)
            for topic in self._tiers
            for number in range(self._log.partitions(topic))
        ]
        committed = reader.committed(self._group, parts) if parts else {}
        left = [part for part in parts if _generation_of(committed.get(part)) != generation]
        longest_ms = max((endpoint.wait_ms_max for endpoint in policy.endpoints), default=0)
        since_ms = self._clock.now_ms() - longest_ms - MARGIN_MS
        self._ends = {part: reader.bounds(part).end for part in left}
        positions = dict(self._ends)
        for part in left:
            begin = reader.offset_at(part, since_ms)
            positions[part] = positions[part] if begin is None else begin
        reader.assign(positions)
        self._generation = generation
        if left:
            log.info("requests are indexed again: %d partitions", len(left))

    def _read(self, timeout_s: float) -> list[Found]:
        assert self._reader is not None
        if not self._ends:
            return []
        try:
            records = self._reader.poll(RECORDS_MAX, timeout_s)
        except PositionLostError as error:
            log.warning("requests were deleted while they were indexed again: %s", error)
            self.again()
            return []
        return self._found(records)

    def _found(self, records: Sequence[Record]) -> list[Found]:
        found: list[Found] = []
        for record in records:
            try:
                request: Request = decode_header(record, Request)
            except DecodeError as error:
                log.error("left out of the index: %s", error)  # noqa: TRY400 - the place says it all
                continue
            calls = [value for name, value in passed_through(record.headers) if name == CALL]
            acceptance = Acceptance(
                endpoint=request.endpoint,
                tier=self._tiers[record.topic],
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                accepted_ms=record.timestamp_ms,
                call=calls[0].decode(errors="replace") if calls else "",
            )
            found.append((RequestName(request.tenant, request.id), acceptance))
        return found

    def _is_over(self) -> bool:
        """Commit that all was read, if it was."""
        reader = self._reader
        if reader is None or not all(reader.reached(part, end) for part, end in self._ends.items()):
            return False
        ends = {part: Commit(end, self._generation) for part, end in self._ends.items()}
        if ends:
            reader.commit(self._group, ends)
        self.again()
        return True


def _generation_of(commit: Commit | None) -> str:
    return commit.metadata if commit else ""
