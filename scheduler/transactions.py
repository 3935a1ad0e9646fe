"""A shard's transactions, one after the other: what a cycle sends, and how it ends.

A certain abort is sent again byte for byte. Every other error leaves to the log what the log
knows: the state that the records follow from has to be dropped.

The end of a full cycle's transaction may be waited for aside (`send_aside`), while the next
cycle is read and decided. Nothing is sent before the one in flight is known to be committed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from scheduler.ports import Aside, Meter, Notes
from scheduler.publish import Outgoing
from schemas.log import AbortedError, FencedError, InDoubtError, LogError, TransactionalProducer

#: Certain aborts of one cycle before the shard is rebuilt.
ABORTS_MAX = 5

OnFirst = Callable[[int | None, LogError | None], None]


class AtOnce:
    """Stands for a thread where there is none: calls at once, and tells the outcome later."""

    def __init__(self) -> None:
        self._error: LogError | None = None

    def start(self, call: Callable[[], None]) -> None:
        """Make the call; an error of the log waits until somebody asks."""
        try:
            call()
        except LogError as error:
            self._error = error

    def wait(self) -> None:
        """Raise what the call raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Nothing to free."""


class Transactions:
    """What is sent under one transactional id.

    Args:
        name: of the shard, for messages.
        aside: waits for the end of a transaction.
        meter, notes: aborts are told.
    """

    def __init__(self, name: str, aside: Aside, meter: Meter, notes: Notes) -> None:
        self._name = name
        self._aside = aside
        self._meter = meter
        self._notes = notes
        self._producer: TransactionalProducer | None = None
        self._in_flight: Sequence[Outgoing] | None = None

    def use(self, producer: TransactionalProducer) -> None:
        """Send by this producer from now on, when it is initialised; there must be no other."""
        assert self._producer is None
        self._producer = producer

    def send(self, records: Sequence[Outgoing], on_first: OnFirst | None = None) -> None:
        """Send records in one transaction; on return it is committed, and all before it.

        Raises:
            InDoubtError: ... or too many aborts in a row.
            FencedError, LogError: as of `TransactionalProducer.commit`.
        """
        self.settle()
        producer = self._open()
        for _ in range(ABORTS_MAX):
            try:
                self._begin(producer, records, on_first)
                producer.commit()
            except AbortedError as error:
                self._note_abort(error)
            else:
                return
        raise InDoubtError(f"{self._name}: {ABORTS_MAX} aborts in a row")

    def send_aside(self, records: Sequence[Outgoing]) -> None:
        """Likewise, but on return only all before it is committed; `settle` tells of this one."""
        self.settle()
        producer = self._open()
        self._begin(producer, records)
        self._in_flight = records
        self._aside.start(producer.commit)

    def settle(self) -> None:
        """Wait for the transaction in flight, if there is one. Raises as `send`."""
        records, self._in_flight = self._in_flight, None
        if records is None:
            return
        try:
            self._aside.wait()
        except AbortedError as error:
            self._note_abort(error)
            self.send(records)

    def drop(self) -> None:
        """Free the producer. What is in flight ends first; how, the log knows.

        Raises FencedError when that is how: who is fenced must not take the id again.
        """
        is_open, self._in_flight = self._in_flight is not None, None
        producer, self._producer = self._producer, None
        try:
            if is_open:
                self._aside.wait()
        except FencedError:
            raise
        except LogError:
            pass  # the log is read again
        finally:
            if producer is not None:
                producer.close()

    def close(self) -> None:
        """Free everything."""
        with suppress(FencedError):
            self.drop()
        self._aside.close()

    def _open(self) -> TransactionalProducer:
        assert self._producer is not None
        return self._producer

    @staticmethod
    def _begin(
        producer: TransactionalProducer,
        records: Sequence[Outgoing],
        on_first: OnFirst | None = None,
    ) -> None:
        producer.begin()
        for topic, partition, value, key, headers in records:
            producer.send(topic, partition, value, key=key, headers=headers, on_delivery=on_first)
            on_first = None

    def _note_abort(self, error: AbortedError) -> None:
        self._meter.count("scheduler_aborts")
        self._notes.warning("cycle aborted, publishing it again", error=str(error))
