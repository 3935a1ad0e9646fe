"""`decisions` read while its owner goes on writing."""

from collections.abc import Mapping
from typing import Any

from scheduler.story import Story
from schemas.codec import chain, encode, header
from schemas.decisions import Chain, Decision, SnapshotChunk
from schemas.log import Bounds, Partition, Record
from schemas.records import VERSION
from schemas.topics import Topics

TOPICS = Topics("test")
DECISIONS: Partition = (TOPICS.decisions, 0)


def written() -> list[Record]:
    """A snapshot of two chunks, a decision, and another snapshot of two chunks."""
    snapshots = [SnapshotChunk(VERSION, 0, 1, index, 2, b"chunk") for index in (0, 1)]
    records: list[Record] = []
    digest, snapshot = b"", -1
    for said in [*snapshots, Decision(VERSION, 0, 2, 5, ()), *snapshots]:
        value = encode(said)
        if isinstance(said, SnapshotChunk) and said.index == 0:
            digest, snapshot = b"", len(records)
        digest = chain(digest, value)
        seal = header(Chain(VERSION, 2, digest, snapshot))
        records.append(Record(*DECISIONS, len(records), 0, None, value, tuple(seal)))
    return records


class Log:
    """A partition whose end moves on after it was asked for; one poll returns what is asked."""

    def __init__(self, polls: list[list[Record]], end: int) -> None:
        self._polls, self._end, self._position = polls, end, 0

    def reader(self) -> Any:
        return self

    def bounds(self, _: Partition) -> Bounds:
        return Bounds(0, self._end)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self._position = positions[DECISIONS]

    def poll(self, _limit: int, _timeout_s: float) -> list[Record]:
        records = self._polls.pop(0)
        self._position = records[-1].offset + 1
        return records

    def reached(self, _: Partition, end: int) -> bool:
        return self._position >= end


def test_a_snapshot_that_is_written_meanwhile_is_not_taken_for_one_cut_off() -> None:
    """Of what comes behind the end that was asked for, a poll may return a part."""
    records = written()
    log: Any = Log([records[:4], records[4:]], end=3)
    story = Story(log, TOPICS, 0)
    assert story.begin() == b"chunkchunk"
    assert story.snapshot == 0
    found = story.poll(0.0)
    assert found is not None
    assert [decision.seq for _, decision in found] == [2]
    assert story.poll(0.0) == []
    assert story.snapshot == 3
