"""A step that does not fit the state: found out here, and told as a story."""

from scheduler.core.state import Lane, State
from scheduler.core.tenants import STATUS_NAMES, Live
from schemas.decisions import Step
from schemas.records import unpack_key


class StateMismatchError(Exception):
    """A step does not fit the state: fenced, corrupt, or a defect. Nothing may be written."""

    def __init__(self, state: State, step: Step, why: str) -> None:
        self.seq = state.seq + 1
        super().__init__(f"shard {state.shard}, decision {self.seq}: {why}; the step is {step!r}")


def live_of(state: State, step: Step, key: int, *statuses: int) -> Live:
    """The request that a step is about, in one of the states that it may be in."""
    live = state.find(key)
    if live is not None and live.status in statuses:
        return live
    if live is None:
        raise StateMismatchError(state, step, f"request {place(state, key)} is not live")
    where = f"{live.id} at {place(state, key)}"
    raise StateMismatchError(state, step, f"request {where} is {STATUS_NAMES[live.status]}")


def place(state: State, key: int) -> str:
    """Where a key's request stands in the log, for messages."""
    index, offset = unpack_key(key)
    if index >= len(state.parts):
        return f"partition #{index} offset {offset}"
    topic, partition = state.parts[index].partition
    return f"{topic}[{partition}]@{offset}"


def lane_of(state: State, step: Step, pool: str, lane: int) -> Lane:
    """The lane that a step is about."""
    found = state.pools.get(pool)
    if found is None or lane >= len(found.lanes):
        raise StateMismatchError(state, step, f"there is no lane {lane} of pool {pool!r}")
    return found.lanes[lane]
