"""One transaction of a lane: all that is ready, and the progress that goes with it.

What belongs here: in which order things are sent. What does not: what a failure means; the
lane decides that (workers.lane).
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from schemas.codec import encode
from schemas.log import TooLargeError, TransactionalProducer
from schemas.reasons import Reason
from schemas.records import VERSION, Batch, HandedBack, Item, Seen
from schemas.topics import bucket
from workers.core.ending import Written, finished, fitting, result
from workers.core.progress import Progress, encode_progress
from workers.engine import EngineOutcome, failed
from workers.hands import Ended
from workers.names import LaneNames
from workers.ports import Meter

#: A transaction has TRANSACTION_TIMEOUT_MS for all of its records: 16 MB pass in a fraction of it.
TRANSACTION_BYTES_MAX = 16_000_000


class Ready(NamedTuple):
    """What a transaction says: capacity (None: said before), ends, hand-backs, unreadable."""

    slots: int | None
    ended: Sequence[Ended]
    handed_back: Sequence[int]
    dead: Sequence[Written]


class LaneTransaction:
    """Writes transactions of one lane."""

    def __init__(self, names: LaneNames, buckets: int) -> None:
        """`buckets` is how many partitions the topic `results` has."""
        self._names = names
        self._buckets = buckets

    def write(
        self, producer: TransactionalProducer, ready: Ready, progress: Progress, now_ms: int
    ) -> None:
        """Begin, send, commit. Raises what the producer raises; nothing is kept here."""
        names = self._names
        producer.begin()
        if ready.slots is not None:
            self._say(producer, encode(Seen(VERSION, ready.slots)))
        for number in ready.handed_back:
            self._say(producer, encode(HandedBack(VERSION, number)))
        for written in ready.dead:
            dead = names.topics.dead
            producer.send(dead, 0, written.value, key=written.key, headers=written.headers)
        for batch, outcomes in ready.ended:
            written_as = [
                self._answer(producer, batch, item, outcome, now_ms)
                for item, outcome in zip(batch.items, outcomes, strict=True)
            ]
            self._say(producer, encode(finished(batch, written_as, now_ms)))
        producer.send_offsets(names.group, {names.batches: encode_progress(progress)})
        producer.commit()

    def _say(self, producer: TransactionalProducer, value: bytes) -> None:
        topic, partition = self._names.workers
        producer.send(topic, partition, value)

    def _answer(
        self,
        producer: TransactionalProducer,
        batch: Batch,
        item: Item,
        outcome: EngineOutcome,
        now_ms: int,
    ) -> EngineOutcome:
        """Send one result; returns the outcome as it was written."""
        topic = self._names.topics.results
        partition = bucket(item.tenant, self._buckets)
        fit = fitting(item, outcome)
        written = result(batch, item, fit, now_ms)
        try:
            producer.send(topic, partition, written.value, key=written.key, headers=written.headers)
        except TooLargeError as error:
            # Headers of the caller that leave no room, or a log with a lower limit than ours.
            fit = failed(Reason.ENGINE_FAILED, str(error))._replace(usage=outcome.usage)
            written = result(batch, replace(item, headers=()), fit, now_ms)
            producer.send(topic, partition, b"", key=written.key, headers=written.headers)
        return fit


def tell(meter: Meter, pool: str, ready: Ready) -> None:
    """Count what a transaction that stands has said."""
    meter.count("worker_transactions_total", pool=pool)
    meter.count("worker_batches_finished_total", len(ready.ended), pool=pool)
    meter.count("worker_batches_handed_back_total", len(ready.handed_back), pool=pool)
    for _, outcomes in ready.ended:
        for outcome in outcomes:
            meter.count("worker_requests_total", pool=pool, end=outcome.end.value)
