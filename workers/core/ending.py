"""How the requests of a batch end: which of them run at all, and what is written about each.

What belongs here: values from values. What does not: when anything is written.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from schemas.codec import header
from schemas.log import RECORD_BYTES_MAX, Headers
from schemas.reasons import Reason
from schemas.records import VERSION, Batch, Dead, End, Finished, Item, Outcome, Result
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed

#: A detail is for people; longer ones are cut.
DETAIL_CHARS_MAX = 500
#: Kept free in each record for what the log itself adds (framing, key).
FRAMING_BYTES = 1_024


class Written(NamedTuple):
    """A record as the log takes it."""

    key: bytes | None
    value: bytes
    headers: Headers


def ended_unrun(batch: Batch, unwanted: AbstractSet[int], now_ms: int) -> dict[int, EngineOutcome]:
    """Outcomes, by index, of the requests of a batch that no engine needs to see.

    Those that were cancelled (`unwanted` holds their keys) and those whose deadline is past.
    """
    ended: dict[int, EngineOutcome] = {}
    for index, item in enumerate(batch.items):
        if item.key in unwanted:
            ended[index] = cancelled()
        elif 0 < item.deadline_ms <= now_ms:
            ended[index] = EngineOutcome(End.EXPIRED, reason=Reason.DEADLINE.value)
    return ended


def for_engine(
    batch: Batch, bodies: Sequence[bytes], ended: Mapping[int, EngineOutcome]
) -> EngineBatch:
    """What an engine sees of a batch: its requests without those that ended already."""
    return EngineBatch(
        batch.number,
        tuple(
            EngineRequest(
                item.key,
                item.id,
                item.tenant,
                item.endpoint,
                bodies[index],
                item.tokens,
                item.deadline_ms,
                item.attempt,
                item.headers,
            )
            for index, item in enumerate(batch.items)
            if index not in ended
        ),
    )


def together(
    batch: Batch, ended: Mapping[int, EngineOutcome], ran: Sequence[EngineOutcome]
) -> tuple[EngineOutcome, ...]:
    """One outcome per request in the batch's order; `ran` are those the engine gave."""
    rest = iter(ran)
    return tuple(
        ended[index] if index in ended else next(rest) for index in range(len(batch.items))
    )


def finished(batch: Batch, outcomes: Sequence[EngineOutcome], now_ms: int) -> Finished:
    """What the scheduler and the accounting are told about a batch that is done."""
    return Finished(
        VERSION,
        batch.number,
        tuple(
            Outcome(item.key, outcome.end, outcome.usage)
            for item, outcome in zip(batch.items, outcomes, strict=True)
        ),
        tuple(item.tenant for item in batch.items),
        tuple(item.endpoint for item in batch.items),
        now_ms,
    )


def fitting(item: Item, outcome: EngineOutcome) -> EngineOutcome:
    """Return the outcome, or a failed one when its output is above the log's record limit."""
    spare = sum(len(name) + len(content) for name, content in item.headers)
    limit = RECORD_BYTES_MAX - FRAMING_BYTES - 4 * DETAIL_CHARS_MAX - spare
    if len(outcome.output) <= limit:
        return outcome
    detail = (
        f"the output of {len(outcome.output)} bytes is above what a record of the log holds "
        f"({limit} bytes here); ask for less output"
    )
    return failed(Reason.ENGINE_FAILED, detail)._replace(usage=outcome.usage)


def result(batch: Batch, item: Item, outcome: EngineOutcome, now_ms: int) -> Written:
    """The one terminal record of a request."""
    record = Result(
        VERSION,
        item.id,
        item.tenant,
        item.endpoint,
        outcome.end,
        _readable(outcome.reason),
        _readable(outcome.detail),
        item.attempt,
        outcome.usage,
        item.arrived_ms,
        batch.picked_ms,
        now_ms,
    )
    return Written(item.id.encode(), outcome.output, header(record, item.headers))


def dead(place: tuple[str, int, int], value: bytes, reason: Reason, detail: str) -> Written:
    """What is kept of a lane record that nobody can read; its value, if that fits."""
    topic, partition, offset = place
    record = Dead(VERSION, topic, partition, offset, reason.value, _readable(detail))
    fits = len(value) <= RECORD_BYTES_MAX - FRAMING_BYTES - 4 * DETAIL_CHARS_MAX - len(topic)
    return Written(None, value if fits else b"", header(record))


def _readable(text: str) -> str:
    """Cut to what is stored, with nothing in it that UTF-8 can't say."""
    return text[:DETAIL_CHARS_MAX].encode("utf-8", "replace").decode()
