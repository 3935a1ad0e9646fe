"""From the log back to State: the latest snapshot, then every decision since.

Order of things (docs/spec): the shard's transactional id is taken over BEFORE anything is
read here; decisions are read to an end asked for after that; then the requests they name.
Nothing is decided. What does not fit is an error that names the record, the decision and
the way out, never a guess.
"""

from bisect import bisect_left
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
from pyroaring import BitMap64

from scheduler.bodies import Bodies
from scheduler.core.apply import apply
from scheduler.core.arrivals import Arrival
from scheduler.core.mismatch import StateMismatchError
from scheduler.core.snapshot import fill, finish_filling, load
from scheduler.core.state import State
from scheduler.inputs import read_request
from scheduler.ports import Notes
from schemas.codec import DecodeError, chain, decode_header, decode_value
from schemas.decisions import Arrived, Chain, Decision, DecisionRecord, SnapshotChunk, TopicMet
from schemas.log import Bounds, Log, Partition, Record, UnavailableError
from schemas.records import pack_key
from schemas.topics import Topics

#: Records read from the end of `decisions` to find the latest snapshot, the first try.
TAIL_RECORDS = 64
#: Records a poll while recovering.
POLL_RECORDS = 10_000
#: How long one poll waits, and how many in a row may stay empty before the log counts as away.
POLL_S = 0.1
SILENT_POLLS_MAX = 300


class RecoveryError(Exception):
    """The shard can't start: the log lacks or contradicts something; the message says what."""


@dataclass(slots=True)
class Recovered:
    """A shard's memory, and what continues its log."""

    state: State
    digest: bytes = b""  #: of the last record in `decisions`
    snapshot: int = -1  #: offset of the latest snapshot's first chunk
    snapshot_ms: int = 0  #: when it was written; without one, when the first decision was
    snapshot_bytes: int = 0
    bytes_since: int = 0  #: of decisions since that snapshot
    decisions: int = 0  #: how many were applied again


@dataclass(slots=True)
class _Story:
    """What stands in `decisions` from the latest snapshot on."""

    snapshot: bytes | None = None
    snapshot_offset: int = -1
    snapshot_ms: int = 0
    decisions: list[tuple[Record, Decision]] = field(default_factory=list)
    digest: bytes = b""
    bytes_since: int = 0


def recover(
    log: Log, topics: Topics, shard: int, notes: Notes, bodies: Bodies | None = None
) -> Recovered:
    """Rebuild a shard's state from its log.

    Args:
        log: the log; the shard's transactional id must be taken over already.
        topics: names of the deployment.
        shard: which partition of `decisions`.
        notes: progress, one line per phase.
        bodies: takes the bodies of what has not ended; None: the state alone is wanted.

    Raises:
        RecoveryError: the log lacks or contradicts what is needed.
        UnavailableError: the log does not answer.
    """
    story = _read_decisions(log, (topics.decisions, shard))
    state, live = _start(story, shard)
    _check_topics(log, state, story)
    notes.info("recovery: decisions read", decisions=len(story.decisions), seq=state.seq)
    arrivals = _read_requests(log, state, live, story, bodies)
    notes.info("recovery: requests read", requests=sum(map(len, arrivals.values())))
    _refill(state, live, arrivals)
    for record, decision in story.decisions:
        _apply_again(state, record, decision, arrivals)
    if bodies is not None:
        bodies.retain(live.key for live in state.lives())
    return Recovered(
        state=state,
        digest=story.digest,
        snapshot=story.snapshot_offset,
        snapshot_ms=story.snapshot_ms,
        snapshot_bytes=len(story.snapshot or b""),
        bytes_since=story.bytes_since,
        decisions=len(story.decisions),
    )


# --- decisions


def _read_decisions(log: Log, partition: Partition) -> _Story:
    bounds = _bounds(log, partition)
    snapshot, tail_start, tail = _find_snapshot(log, partition, bounds)
    if 0 < bounds.low > snapshot:
        raise RecoveryError(
            f"{partition[0]}[{partition[1]}] begins at offset {bounds.low} and holds no snapshot: "
            "its beginning was deleted. Restore the topic, or start a new deployment under "
            "another FAIRLANE_PREFIX."
        )
    story = _Story(snapshot_offset=snapshot)
    chunks: list[bytes] = []
    start = snapshot if snapshot >= 0 else bounds.low
    if start < tail_start:
        tail = _read_range(log, partition, start, bounds.end)
    for record in (found for found in tail if found.offset >= start):
        decided = _verified(story, record, is_first=record.offset == snapshot)
        if isinstance(decided, Decision):
            story.decisions.append((record, decided))
            story.snapshot_ms = story.snapshot_ms or record.timestamp_ms
            story.bytes_since += len(record.value)
        else:
            chunks.append(decided.data)
            story.snapshot_ms = record.timestamp_ms
            if decided.index == decided.count - 1:
                story.snapshot = b"".join(chunks)
    if snapshot >= 0 and story.snapshot is None:
        raise RecoveryError(f"{partition[0]}[{partition[1]}]@{snapshot}: the snapshot is not whole")
    return story


def _verified(story: _Story, record: Record, *, is_first: bool) -> Decision | SnapshotChunk:
    """Decode a record of `decisions` and check that it continues the chain."""
    try:
        seal: Chain = decode_header(record, Chain)
        decided: Decision | SnapshotChunk = decode_value(record, DecisionRecord)
    except DecodeError as error:
        raise RecoveryError(f"{error}. A decision was changed or cut off.") from error
    previous = b"" if is_first else story.digest
    digest = chain(previous, record.value)
    if digest != seal.digest:
        raise RecoveryError(
            f"{record.place} (decision {seal.seq}): the digest does not match: this record was "
            "changed, or the one before it is missing. Restore the topic from a copy."
        )
    story.digest = digest
    return decided


def _find_snapshot(log: Log, partition: Partition, bounds: Bounds) -> tuple[int, int, list[Record]]:
    """Offset of the latest snapshot's first chunk, -1 when there is none; and what was read.

    That is all from an offset on, (snapshot, offset, records): most of the time it is enough.
    """
    back = TAIL_RECORDS
    while True:
        start = max(bounds.low, bounds.end - back)
        found = -1
        seen = False
        records = _read_range(log, partition, start, bounds.end)
        for record in records:
            try:
                seal: Chain = decode_header(record, Chain)
                decided: Decision | SnapshotChunk = decode_value(record, DecisionRecord)
            except DecodeError as error:
                raise RecoveryError(f"{error}. A decision was changed or cut off.") from error
            if isinstance(decided, SnapshotChunk):
                if decided.index == 0:
                    found, seen = record.offset, True
            else:
                found, seen = seal.snapshot, True
        if seen or start == bounds.low:
            return found, start, records
        back *= 16


def _bounds(log: Log, partition: Partition) -> Bounds:
    with closing(log.reader()) as reader:
        return reader.bounds(partition)


def _read_range(log: Log, partition: Partition, start: int, end: int) -> list[Record]:
    """Every record of [start, end); transaction markers leave gaps.

    With a reader of its own: a client that is given a topic when it is connected already asks
    where that is up to a second later.
    """
    records: list[Record] = []
    if start >= end:
        return records
    with closing(log.reader()) as reader:
        reader.assign({partition: start})
        silent = 0
        while not reader.reached(partition, end):
            found = reader.poll(POLL_RECORDS, POLL_S)
            records += found
            silent = 0 if found else silent + 1
            if silent == SILENT_POLLS_MAX:
                raise UnavailableError(f"{partition[0]}[{partition[1]}] does not answer")
    return [record for record in records if record.offset < end]


def _start(story: _Story, shard: int) -> tuple[State, list[BitMap64]]:
    if story.snapshot is None:
        return State(shard), []
    try:
        return load(story.snapshot)
    except msgspec.DecodeError as error:
        raise RecoveryError(
            f"the snapshot at offset {story.snapshot_offset} can't be read: {error}. It was "
            "changed, or another release wrote it: run that one, or start a new deployment "
            "under another FAIRLANE_PREFIX."
        ) from error


def _check_topics(log: Log, state: State, story: _Story) -> None:
    """A request topic that was deleted and made again must not pass for the old one."""
    recorded = dict(state.topics)
    for _, decision in story.decisions:
        recorded.update((s.topic, s.id) for s in decision.steps if isinstance(s, TopicMet))
    for topic, identity in recorded.items():
        now = log.topic_id(topic) if log.partitions(topic) else "none"
        if now != identity:
            raise RecoveryError(
                f"topic {topic} was deleted or recreated: decisions were made on {identity}, now "
                f"it is {now}, so accepted requests are gone. Restore the topic, or start a "
                "new deployment under another FAIRLANE_PREFIX."
            )


# --- requests


def _read_requests(
    log: Log, state: State, live: list[BitMap64], story: _Story, bodies: Bodies | None
) -> dict[Partition, list[Arrival]]:
    """Requests that are needed: live ones of the snapshot, and those taken in since."""
    spans: dict[Partition, tuple[int, int]] = {}
    indexes = dict(state.part_of)  # and as they will be given when the decisions are applied
    for index, part in enumerate(state.parts):
        if live[index]:
            spans[part.partition] = (live[index].min(), part.position)
    for _, decision in story.decisions:
        for step in decision.steps:
            if isinstance(step, Arrived):
                partition = (step.topic, step.partition)
                indexes.setdefault(partition, len(indexes))
                start, _ = spans.get(partition, (step.start, 0))
                spans[partition] = (start, step.stop)
    arrivals: dict[Partition, list[Arrival]] = {}
    for partition, (start, stop) in spans.items():
        bounds = _bounds(log, partition)
        if start < bounds.low or stop > bounds.end:
            raise RecoveryError(
                f"{partition[0]}[{partition[1]}]: offsets {start}..{stop} are needed, the log "
                f"holds {bounds.low}..{bounds.end}: requests that were accepted are lost. Restore "
                "the topic, or start a new deployment under another FAIRLANE_PREFIX."
            )
        found = arrivals[partition] = []
        for record in _read_range(log, partition, start, stop):
            arrival, body = read_request(record)
            found.append(arrival)
            if bodies is not None:
                bodies.keep(pack_key(indexes[partition], record.offset), body)
    return arrivals


def _refill(state: State, live: list[BitMap64], arrivals: dict[Partition, list[Arrival]]) -> None:
    for index, offsets in enumerate(live):
        if not offsets:
            continue
        partition = state.parts[index].partition
        found = [a for a in arrivals[partition] if a.offset in offsets]
        if len(found) != len(offsets):
            lost = sorted(set(offsets) - {a.offset for a in found})
            raise RecoveryError(
                f"{partition[0]}[{partition[1]}]: {len(lost)} accepted requests are gone from "
                f"the log, offsets {lost[0]}..{lost[-1]}. Restore the topic."
            )
        fill(state, index, found)
    finish_filling(state)


def _apply_again(
    state: State,
    record: Record,
    decision: Decision,
    arrivals: dict[Partition, list[Arrival]],
) -> None:
    if decision.seq != state.seq + 1:
        raise RecoveryError(
            f"{record.place}: decision {decision.seq} follows {state.seq}: one is missing"
        )
    state.now_ms = decision.now_ms
    try:
        for step in decision.steps:
            taken: list[Arrival] = []
            if isinstance(step, Arrived):
                found = arrivals[step.topic, step.partition]
                taken = _between(found, step.start, step.stop)
            apply(state, step, taken)
    except StateMismatchError as error:
        raise RecoveryError(
            f"{record.place}: {error}. The decision does not follow from those before it: it was "
            "changed, or made by a release that this one can't read."
        ) from error
    state.seq = decision.seq


def _between(arrivals: list[Arrival], start: int, stop: int) -> list[Arrival]:
    """Those of [start, stop); `arrivals` is in offset order and is searched, not scanned."""
    low = bisect_left(arrivals, start, key=_offset)
    return arrivals[low : bisect_left(arrivals, stop, lo=low, key=_offset)]


def _offset(arrival: Arrival) -> int:
    return arrival.offset
