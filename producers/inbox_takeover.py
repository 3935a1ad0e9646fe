"""Taking inboxes over: from which record on, and what of it is in the log already.

What is committed says two things: every record below a position has its answer or its
request in the log, and the request of any other stands in a marked partition, at its mark or
behind it. So the marked partitions are read from their marks to their ends, and what is found
there with a position that is not committed is in already.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from producers.core import inbox_marks
from producers.core.inbox import position_of
from schemas.log import Commit, Log, Partition, Reader, Record, UnavailableError
from schemas.topics import Topics

_POLL_RECORDS = 2_000
_POLL_S = 0.5
#: Empty polls in a row before a log that stopped answering is given up.
_EMPTY_POLLS_MAX = 60

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A partition of an inbox: whose it is, and the identity of its topic."""

    tenant: str
    topic_id: str


class Gap(NamedTuple):
    """Records of an inbox that left the log before they were taken in."""

    tenant: str
    partition: int
    first: int
    stop: int


class Stand(NamedTuple):
    """Where a request stands."""

    partition: Partition
    offset: int


@dataclass(slots=True)
class Standing:
    """Where the inboxes of one bucket stand.

    `positions` are the next offsets to be done, of the inboxes and of `results`; `seen` are
    offsets at or above them whose requests are in the log, and where these stand.
    """

    sources: dict[Partition, Source]
    results: Partition
    positions: dict[Partition, int]
    marks: dict[Partition, int]
    seen: dict[Partition, dict[int, Stand]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def is_caught_up(self) -> bool:
        """Whether no request is in the log that is not done: then marks may move."""
        return not any(self.seen.values())

    def forget_below(self, partition: Partition, position: int) -> None:
        """What is done is not looked for any more."""
        seen = self.seen[partition]
        for offset in [offset for offset in seen if offset < position]:
            del seen[offset]

    def is_overtaken(self, partition: Partition, offset: int, place: Partition) -> bool:
        """Whether a later record's request stands in that request partition already."""
        seen = self.seen[partition]
        return any(later > offset and stand.partition == place for later, stand in seen.items())

    def commits(self, topics: Topics) -> dict[Partition, Commit]:
        """All of it, as it is committed."""
        found = {
            part: Commit(self.positions[part], source.topic_id)
            for part, source in self.sources.items()
        }
        marks = inbox_marks.encode(self.marks, topics)
        return found | {self.results: Commit(self.positions[self.results], marks)}


def group(topics: Topics) -> str:
    """Group of the positions; it has no members."""
    return f"{topics.prefix}.inbox"


def find_sources(the_log: Log, topics: Topics, tenants: tuple[str, ...]) -> dict[Partition, Source]:
    """Partitions of the tenants' inboxes; who lacks one of the two topics is left out."""
    found: dict[Partition, Source] = {}
    for tenant in tenants:
        topic = topics.inbox(tenant)
        count = the_log.partitions(topic)
        if not count or not the_log.partitions(topics.results_of(tenant)):
            log.warning(
                "%s is not served: it or %s does not exist; `fairlane policy apply` makes them",
                topic,
                topics.results_of(tenant),
            )
            continue
        topic_id = the_log.topic_id(topic)
        found |= {(topic, number): Source(tenant, topic_id) for number in range(count)}
    return found


def look_back(
    the_log: Log,
    reader: Reader,
    topics: Topics,
    sources: Mapping[Partition, Source],
    results: Partition,
) -> Standing:
    """Where a predecessor stood. Only after its id was taken over: it commits no more.

    Raises LogError.
    """
    committed = reader.committed(group(topics), [*sources, results])
    positions, ends, gaps = {}, {}, []
    for part, source in sources.items():
        commit = committed.get(part)
        low, end = reader.bounds(part)
        positions[part], ends[part] = low, end
        if commit is None or commit.metadata != source.topic_id:
            continue  # a new inbox, or one that was made again
        if commit.offset > end:
            log.error("%s[%d] lost its end: done up to %d, ends at %d", *part, commit.offset, end)
        positions[part] = min(max(low, commit.offset), end)
        if commit.offset < low:
            gaps.append(Gap(source.tenant, part[1], commit.offset, low))
    standing = Standing(dict(sources), results, positions, {}, gaps=gaps)
    _follow_results(standing, reader, committed.get(results), topics)
    standing.seen = _seen(the_log, standing, ends)
    return standing


def _follow_results(
    standing: Standing, reader: Reader, commit: Commit | None, topics: Topics
) -> None:
    """Copies go on where they ended; the first ones are of what ends from now on."""
    part = standing.results
    low, end = reader.bounds(part)
    if commit is None:
        standing.positions[part] = end
        return
    if commit.offset < low:
        log.error("%s[%d]: results %d..%d were never copied", *part, commit.offset, low - 1)
    standing.positions[part] = min(max(low, commit.offset), end)
    standing.marks = inbox_marks.decode(commit.metadata, topics)


def _seen(
    the_log: Log, standing: Standing, stops: Mapping[Partition, int]
) -> dict[Partition, dict[int, Stand]]:
    """Offsets, by inbox, that are published and not committed, and where they stand first.

    Not those at or above an inbox's end: their records are gone, and others will stand there.
    """
    by_id = {(s.topic_id, part[1]): part for part, s in standing.sources.items()}
    seen: dict[Partition, dict[int, Stand]] = {part: {} for part in standing.sources}
    scanner = the_log.reader(committed_only=False)
    try:
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        for part, mark in standing.marks.items():
            if the_log.partitions(part[0]) <= part[1]:
                continue
            low, end = scanner.bounds(part)
            start = mark if low <= mark <= end else low
            if start < end:
                starts[part], ends[part] = start, end
        for record in _read(scanner, starts, ends):
            position = position_of(record.headers)
            inbox = by_id.get((position.topic_id, position.partition)) if position else None
            if not position or not inbox:
                continue
            if standing.positions[inbox] <= position.offset < stops[inbox]:
                stand = Stand((record.topic, record.partition), record.offset)
                seen[inbox].setdefault(position.offset, stand)
    finally:
        scanner.close()
    return seen


def _read(
    scanner: Reader, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[Record]:
    """What stands between."""
    if not starts:
        return
    scanner.assign(starts)
    empty = 0
    while not all(scanner.reached(part, end) for part, end in ends.items()):
        records = scanner.poll(_POLL_RECORDS, _POLL_S)
        yield from records
        empty = 0 if records else empty + 1
        if empty > _EMPTY_POLLS_MAX:
            raise UnavailableError("requests are not read on, and their end is not reached")
