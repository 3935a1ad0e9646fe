"""A shard's state by the longest way: every decision from the first, without any snapshot.

It shares `apply` with the scheduler and nothing of recovery: no snapshot, no jumps, no
reading ahead. So it can tell whether these change anything.
"""

from contextlib import closing

from scheduler.core.apply import apply
from scheduler.core.arrivals import Arrival
from scheduler.core.state import State
from scheduler.inputs import read_request
from schemas.codec import decode_value
from schemas.decisions import Arrived, Decision, DecisionRecord
from schemas.log import Log, Partition, Record
from schemas.topics import Topics


def fold(log: Log, topics: Topics, shard: int) -> State:
    """Apply all decisions that the log holds; it must hold all there ever were."""
    state = State(shard)
    arrivals: dict[Partition, list[Arrival]] = {}
    for record in _read_all(log, (topics.decisions, shard)):
        decided = decode_value(record, DecisionRecord)
        if not isinstance(decided, Decision):
            continue
        state.now_ms = decided.now_ms
        for step in decided.steps:
            taken: list[Arrival] = []
            if isinstance(step, Arrived):
                partition = (step.topic, step.partition)
                if partition not in arrivals:
                    found = [read_request(one)[0] for one in _read_all(log, partition)]
                    arrivals[partition] = found[::-1]
                waiting = arrivals[partition]
                while waiting and waiting[-1].offset < step.stop:
                    taken.append(waiting.pop())
            apply(state, step, taken)
        state.seq = decided.seq
    return state


def _read_all(log: Log, partition: Partition) -> list[Record]:
    records: list[Record] = []
    with closing(log.reader()) as reader:
        bounds = reader.bounds(partition)
        reader.assign({partition: bounds.low})
        while not reader.reached(partition, bounds.end):
            records += reader.poll(10_000, 0.2)
    return records
