"""From the log to `Inputs`: which partitions a shard reads, and what their records mean.

A record that can't be read is never an exception here: a request becomes an `Arrival` with
a reason, anything else a fault that names its place; reading goes on.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.core.arrivals import Arrival
from scheduler.core.cycle import Inputs, RequestRange
from scheduler.core.state import State
from schemas.codec import (
    HEADER,
    DecodeError,
    decode_header,
    decode_value,
    decoder_of,
    passed_through,
)
from schemas.log import Log, Partition, PositionLostError, Reader, Record
from schemas.policy import PolicyError, decode_policy
from schemas.reasons import Reason
from schemas.records import (
    VERSION,
    ControlRecord,
    Finished,
    HandedBack,
    Request,
    Seen,
    Settled,
    Started,
)
from schemas.topics import Topics

#: Records taken in one cycle; the rest wait in the client's queue.
POLL_MAX = 4_000
#: Bytes of worker and control records in one decision: half of what a record may have.
BY_VALUE_BYTES_MAX = 400_000


_HEADER_CHARS = len(HEADER)


class Body(NamedTuple):
    """A request's body and the headers that pass through, untouched."""

    value: bytes
    headers: tuple[tuple[str, bytes], ...]


_WORKERS = Seen | Started | Settled | HandedBack


@dataclass(slots=True)
class Fault:
    """A record that could not be used, for `dead` and the log lines."""

    record: Record
    reason: str
    detail: str


@dataclass(slots=True)
class Taken:
    """One poll: inputs for the core, and what could not be read.

    `bodies` are those of `inputs.requests`: a list for each range, one for each arrival.
    """

    inputs: Inputs
    bodies: list[list[Body]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def read_request(record: Record) -> tuple[Arrival, Body]:
    """Decode the metadata of a request; the body stays as it is."""
    extra = passed_through(record.headers)
    size = len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
    try:
        meta: Request | None = decode_header(record, Request)
        arrival = Arrival(record.offset, record.timestamp_ms, size, meta)
    except DecodeError as error:
        arrival = Arrival(
            record.offset, record.timestamp_ms, size, None, error.reason, error.detail
        )
    return arrival, Body(record.value, extra)


def read_requests(records: Iterable[Record]) -> tuple[list[Arrival], list[Body]]:
    """Decode many as `read_request` does each; the usual one without a call of its own."""
    arrivals: list[Arrival] = []
    bodies: list[Body] = []
    decode = decoder_of(Request)
    new = tuple.__new__  # a named tuple's own constructor costs a call of Python more
    for record in records:
        _, _, offset, timestamp_ms, _, value, headers = record
        meta = None
        extra: tuple[tuple[str, bytes], ...] = ()
        if headers and headers[0][0] == HEADER:
            data = headers[0][1]
            size = len(value) + _HEADER_CHARS + len(data)
            try:
                meta = decode(data)
            except (ValueError, RecursionError):
                meta = None  # told with its place below
            if len(headers) > 1:
                extra = headers[1:]
                for name, content in extra:
                    size += len(name) + len(content)
                    if name == HEADER:
                        meta = None
        if meta is None or meta.v != VERSION:
            arrival, body = read_request(record)
            arrivals.append(arrival)
            bodies.append(body)
            continue
        arrivals.append(new(Arrival, (offset, timestamp_ms, size, meta, "", "")))
        bodies.append(new(Body, (value, extra)))
    return arrivals, bodies


def runs(records: list[Record]) -> Iterator[tuple[Partition, list[Record]]]:
    """Cut what a poll returned where the partition changes."""
    start, topic, number = 0, "", -1
    for at, record in enumerate(records):
        if record[1] != number or record[0] != topic:
            if at:
                yield (topic, number), records[start:at]
            start, topic, number = at, record[0], record[1]
    if records:
        yield (topic, number), records[start:]


class InputReader:
    """Reads every input of one shard from the positions of its state."""

    def __init__(self, log: Log, reader: Reader, topics: Topics, shard: int) -> None:
        self._log = log
        self._reader = reader
        self._topics = topics
        self._shard = shard
        self.is_paused = False  #: whether request partitions are left alone, from `assign` on
        self._assigned: dict[Partition, str] = {}
        self._starts: dict[Partition, int] = {}
        self._deferred: list[Record] = []

    def assign(self, state: State, start: Callable[[Partition], int]) -> list[tuple[str, str]]:
        """Follow the policy: read what it names, from the state's positions on.

        `start` tells where a partition begins that the state has no position for. Returns
        request topics that the state meets for the first time, with their identities.
        """
        requests = self._requests(state)
        met = [  # also while none are read: what is cancelled meanwhile may stand in them
            (self._topics.requests(tier), self._log.topic_id(self._topics.requests(tier)))
            for tier in dict.fromkeys(requests.values())
            if self._topics.requests(tier) not in state.topics
        ]
        wanted = self._others(state)
        if not self.is_paused:
            wanted |= requests
        if wanted == self._assigned:
            return met
        positions = {}
        for partition in wanted:
            index = state.part_of.get(partition)
            known = state.positions.get(partition)
            if index is not None:
                known = state.parts[index].position
            positions[partition] = start(partition) if known is None else known
        self._assigned, self._starts = wanted, positions
        self._deferred = []
        self._reader.assign(positions)
        return met

    def _others(self, state: State) -> dict[Partition, str]:
        """Partitions to read that hold no requests, each with ""."""
        topics = self._topics
        wanted: dict[Partition, str] = {(topics.policy, 0): ""}
        policy = state.policy
        if policy is None:
            return wanted
        wanted[topics.control, self._shard] = ""
        for name, pool in state.pools.items():
            for lane in range(len(pool.lanes)):
                wanted[topics.workers(name), lane] = ""
        return wanted

    def _requests(self, state: State) -> dict[Partition, str]:
        """Request partitions of the shard, each with its tier."""
        policy = state.policy
        if policy is None:
            return {}
        shards = policy.topology.shards
        prefix = self._topics.requests("")
        tiers = [tier.name for tier in policy.tiers]
        # removed ones too, also those that this shard never met: what is there gets an answer
        tiers += [topic[len(prefix) :] for topic in self._log.topics() if topic.startswith(prefix)]
        return {
            (self._topics.requests(tier), self._shard + shards * number): tier
            for tier in dict.fromkeys(tiers)
            for number in range(policy.topology.spread)
        }

    def pass_over(self, state: State, error: PositionLostError) -> Taken | None:
        """What to decide when records are gone unread, before `assign`; None: they are missed.

        Of a lane that holds no batch only words about its slots can be lost, and markers of
        transactions: whoever holds the lane says it again now and then, and when it is taken.
        """
        topic, number = error.partition
        workers, low = self._topics.workers(""), error.bounds.low
        if not topic.startswith(workers) or error.position > low:
            return None
        if state.pools[topic[len(workers) :]].lanes[number].flights:
            return None
        self._assigned = {}
        return Taken(Inputs(reads=[(topic, number, low)]))

    def reached_ends(self, state: State) -> Inputs:
        """Positions moved to the ends that were reached: past transaction markers.

        The last record of a quiet partition is followed by a marker. Once retention has
        taken both, a position between them would look like a loss.
        """
        inputs = Inputs()
        for partition, tier in self._assigned.items():
            index = state.part_of.get(partition)
            known = state.positions.get(partition, -1)
            if tier:
                known = -1 if index is None else state.parts[index].position
            end = self._reader.bounds(partition).end
            if end <= known or self._deferred or not self._reader.reached(partition, end):
                continue
            if not tier:
                inputs.reads.append((*partition, end))
            elif known >= 0:
                inputs.requests.append(RequestRange(*partition, tier, known, end, []))
        return inputs

    def poll(self, state: State, timeout_s: float) -> Taken:
        """Read what is there, at most POLL_MAX records; waits for the first one only.

        Raises PositionLostError when the log no longer holds what comes next.
        """
        records = self._deferred
        self._deferred = []
        if len(records) < POLL_MAX:
            wait_s = 0.0 if records else timeout_s
            records = records + self._reader.poll(POLL_MAX - len(records), wait_s)
        return self._sort_out(state, records)

    def _sort_out(self, state: State, records: list[Record]) -> Taken:
        """Partition by partition; each has its records in order, whatever lies between them."""
        taken = Taken(Inputs())
        ranges: dict[Partition, tuple[RequestRange, list[Body]]] = {}
        by_value: dict[Partition, list[Record]] = {}
        for partition, run in runs(records):
            tier = self._assigned.get(partition)
            if tier is None:
                continue
            if not tier:
                by_value.setdefault(partition, []).extend(run)
                continue
            if partition not in ranges:
                index = state.part_of.get(partition)
                start = self._starts[partition] if index is None else state.parts[index].position
                ranges[partition] = RequestRange(*partition, tier, start, start, []), []
            read, bodies = ranges[partition]
            more_arrivals, more_bodies = read_requests(run)
            read.arrivals += more_arrivals
            bodies += more_bodies
            read.stop = run[-1].offset + 1
        for partition in sorted(ranges):
            read, bodies = ranges[partition]
            taken.inputs.requests.append(read)
            taken.bodies.append(bodies)
        self._read_values(taken, [record for name in sorted(by_value) for record in by_value[name]])
        return taken

    def _read_values(self, taken: Taken, records: list[Record]) -> None:
        """Take in what is recorded by value, as much as one decision may hold."""
        reads: dict[Partition, int] = {}
        size = 0
        for at, record in enumerate(records):
            size += len(record.value)
            if size > BY_VALUE_BYTES_MAX and reads:
                self._deferred = records[at:]
                break
            reads[record.topic, record.partition] = record.offset + 1
            try:
                self._by_value(taken.inputs, record)
            except DecodeError as error:
                taken.faults.append(Fault(record, error.reason, error.detail))
        taken.inputs.reads = [(*partition, position) for partition, position in reads.items()]

    def _by_value(self, inputs: Inputs, record: Record) -> None:
        topics = self._topics
        if record.topic == topics.policy:
            try:
                decode_policy(record.value)
            except PolicyError as error:
                raise DecodeError(record.place, Reason.UNREADABLE, str(error)) from error
            inputs.policies.append(record.value)
        elif record.topic == topics.control:
            inputs.control.append(decode_value(record, ControlRecord))
        else:
            pool = record.topic[len(topics.workers("")) :]
            said = decode_value(record, _WORKERS)
            if isinstance(said, Settled):
                said = Finished(said.v, said.number, said.outcomes)
            inputs.workers.append((pool, record.partition, said))
