"""One lane and its holder: the protocol by which no batch is lost and none ends twice.

It is the worker of docs/spec/exactly_once.pml (RULE 1, ZSTART 2, KEEP 1), step by step:

    TAKE   init of the lane's transactional id; only then progress and the lane's end
    READ   from the progress to that end: what has not ended there was the predecessor's
           and is handed back, never run; in the first transaction, with `seen`
    SERVE  what lies above the end is new: run on free slots; one transaction for all that
           is ready (results, `finished`, progress); memory changes after the commit only
    GONE   lost, fenced or broken: nothing is written any more

After a commit in doubt the lane goes back to TAKE and keeps what its slots run and what ended
on them, unless the progress then read says that it ended. After an abort it says the same
again. What did not start is not kept: READ finds it and hands it back.

`turn` never waits longer than it is told to, except for the log in TAKE and in a commit.
"""

from schemas.codec import DecodeError, batch_bodies, decode_header, encode
from schemas.log import (
    AbortedError,
    FencedError,
    InDoubtError,
    Log,
    LogError,
    PositionLostError,
    Producer,
    Record,
    TooLargeError,
    TransactionalProducer,
    UnavailableError,
)
from schemas.reasons import Reason
from schemas.records import VERSION, Batch, BatchCancel, LaneRecord, Started
from workers.core.ending import Written, dead
from workers.core.progress import OPEN_MAX, ProgressError, progress_of
from workers.engine import failed
from workers.hands import Hands, Held
from workers.names import LaneNames
from workers.phase import Phase
from workers.ports import Clock, Meter, Notes, Slots
from workers.takeover import LaneError, Start, read_start
from workers.transaction import TRANSACTION_BYTES_MAX, LaneTransaction, Ready, tell
from workers.waiting import BackOff

#: Records a turn: a lane is sent few batches at a time, a take-over may meet many.
READ_MAX = 64
#: Brokers forget the offsets of a group that is silent for a week: an idle lane repeats them.
REFRESH_MS = 6 * 3_600_000


class Lane:
    """The holder of one lane. All methods are called from one thread."""

    def __init__(
        self,
        log: Log,
        names: LaneNames,
        slots: Slots,
        advice: Producer,
        clock: Clock,
        meter: Meter,
        notes: Notes,
    ) -> None:
        """Touch nothing yet; `advice` carries `started` records, outside of transactions."""
        if not 1 <= slots.total <= OPEN_MAX:
            raise ValueError(f"{names.place}: {slots.total} slots; a lane has 1..{OPEN_MAX}")
        self.is_fenced = False
        self._log = log
        self._names = names
        self._hands = Hands(slots)
        self._advice = advice
        self._clock = clock
        self._meter = meter
        self._notes = notes
        self._reader = log.reader()
        self._producer: TransactionalProducer | None = None
        self._transaction: LaneTransaction | None = None
        self._phase = Phase.TAKE
        self._is_stopping = False
        self._start: Start | None = None
        self._upto = 0
        self._handed_back: dict[int, int] = {}
        self._dead: dict[int, Written] = {}
        self._unsaid: int | None = slots.total
        self._written_ms = 0
        self._back_off = BackOff()

    # --- the door

    @property
    def phase(self) -> Phase:
        """Where the holder is."""
        return self._phase

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits to be committed."""
        return not self._pending() and not self._hands.running

    @property
    def has_work(self) -> bool:
        """Something runs or waits to be committed that a clean stop should see to its end."""
        if self._phase is Phase.SERVE:
            return not self.is_idle
        return bool(self._hands.running or self._hands.done())  # kept from before a doubt

    def turn(self, wait_s: float = 0.0) -> bool:
        """Do what can be done now; wait for records up to `wait_s` if that is nothing.

        Returns whether something was done. Failures of the log end here: as another try
        later, as a new take (doubt), or as the lane's end (fenced, broken).
        """
        if self._phase is Phase.GONE or self._back_off.holds(self._clock.now_ms()):
            return False
        try:
            did = self._step(wait_s)
        except FencedError as error:
            self.is_fenced = True
            self._note("lane_fenced", error)
            self.drop()
        except InDoubtError as error:
            self._note("lane_in_doubt", error)
            self._take_again()
        except (LaneError, ProgressError) as error:
            self._note("lane_broken", error)
            self.drop()
        except LogError as error:
            self._note("lane_log_failed", error)
            self._look_again()
            self._back_off.fail(self._clock.now_ms())
        else:
            return did
        return True

    def stop(self) -> None:
        """Start nothing any more; what runs is still finished and committed by `turn`."""
        self._is_stopping = True

    def leave(self) -> None:
        """Leave the lane, and say that it has no slots until somebody takes it.

        Said if it can be at once: the scheduler then keeps what comes, so that it can still be
        cancelled and expire. Unsaid, it waits in the lane for the next holder.
        """
        if self._phase is Phase.SERVE:
            self._unsaid = 0
            self.turn()
        self.drop()

    def drop(self) -> None:
        """Leave the lane at once, without a commit; its next holder sees to the rest."""
        if self._phase is Phase.GONE:
            return
        self._phase = Phase.GONE
        self._hands.close()
        self._reader.close()
        self._close_producer()

    # --- steps

    def _step(self, wait_s: float) -> bool:
        match self._phase:
            case Phase.TAKE:
                self._take()
                return True
            case Phase.READ:
                return self._read(wait_s)
            case Phase.SERVE:
                return self._serve(wait_s)
            case Phase.GONE:
                return False

    def _take(self) -> None:
        """Take the lane over: init first, everything else is read after it."""
        buckets = self._log.partitions(self._names.topics.results)
        if not buckets:
            raise UnavailableError(f"topic {self._names.topics.results} does not exist yet")
        if self._producer is None:
            producer = self._log.transactional(self._names.transactional_id)
            try:
                producer.init()
            except LogError:
                producer.close()
                raise
            self._producer = producer
        self._transaction = LaneTransaction(self._names, buckets)
        start = read_start(self._log, self._reader, self._names, self._clock, self._notes)
        self._hands.forget_ended(
            lambda held: start.progress.has_ended(held.offset) or held.batch.number in start.numbers
        )
        self._start = start
        self._reader.assign({self._names.batches: start.position})
        self._phase = Phase.READ
        self._meter.count("worker_lane_takes_total", pool=self._names.pool)

    def _read(self, wait_s: float) -> bool:
        """Read what was the predecessor's, up to the end that was read after the init."""
        assert self._start is not None, "READ follows TAKE"
        self._collect()
        part, end = self._names.batches, self._start.end
        if self._start.position < end and not self._reader.reached(part, end):
            records = self._poll(READ_MAX, wait_s)
            for record in records:
                if record.offset < end:
                    self._take_over(record, self._start)
            if not self._reader.reached(part, end):
                return bool(records)
            self._reader.assign({part: end})
        self._upto = end
        self._phase = Phase.SERVE
        self._back_off.reset()
        return True

    def _serve(self, wait_s: float) -> bool:
        did = self._collect()
        did = self._start_some() or did  # before the commit: a freed slot waits for no log
        if self._pending() or self._is_stale():
            self._write()  # before the poll: a reader that fails holds no result back
            did = True
        room = self._hands.room
        if room > 0 and not self._is_stopping:
            records = self._poll(min(READ_MAX, room), 0.0 if did else wait_s)
            for record in records:
                self._take_in(record)
            did = self._start_some() or did or bool(records)
        return did

    def _start_some(self) -> bool:
        if self._is_stopping or self._unsaid is not None:
            return False
        return self._hands.start(self._clock.now_ms(), self._advise)

    # --- what the lane says

    def _poll(self, limit: int, wait_s: float) -> list[Record]:
        try:
            return self._reader.poll(limit, wait_s)
        except PositionLostError as error:
            if error.position > error.bounds.end:
                raise LaneError(
                    f"{error}; the topic was truncated or recreated: stop the pool's workers and "
                    f"delete the offset of group {self._names.group} for this partition"
                ) from error
            self._note("lane_lost_by_retention", error)
            self._reader.assign({self._names.batches: max(error.position, error.bounds.low)})
            return []

    def _look_again(self) -> None:
        """After a failure of the log: a reader keeps what failed until it is assigned anew."""
        match self._phase:
            case Phase.READ:  # the id stays ours: progress and end are read again
                self._handed_back.clear()
                self._dead.clear()
                self._phase = Phase.TAKE
            case Phase.SERVE:
                self._reader.assign({self._names.batches: self._upto})
            case _:
                pass

    def _take_over(self, record: Record, start: Start) -> None:
        """Sort one record below the end: what has not ended there is handed back."""
        if start.progress.has_ended(record.offset) or record.offset in self._hands.offsets:
            return
        said = self._decode(record)
        match said:
            case BatchCancel():
                self._hands.cancel(said)
            case Batch() if said.number not in start.numbers:
                self._handed_back[record.offset] = said.number
            case _:
                pass

    def _take_in(self, record: Record) -> None:
        """Sort one record above the end: a new batch, a cancel, or unreadable."""
        if record.offset < self._upto:  # read again: it is dealt with
            return
        said = self._decode(record)
        self._upto = record.offset + 1
        match said:
            case BatchCancel():
                self._hands.cancel(said)
            case Batch():
                held = Held(record.offset, said, ())
                try:
                    held.bodies = batch_bodies(said, record.value, record.place)
                except DecodeError as error:
                    self._bury(record, error)
                    held.outcomes = (failed(error.reason, str(error)),) * len(said.items)
                self._hands.take(held)
            case None:
                pass

    def _decode(self, record: Record) -> LaneRecord | None:
        try:
            said: LaneRecord = decode_header(record, LaneRecord)
        except DecodeError as error:
            if error.reason is Reason.UNKNOWN_VERSION:  # no fault of the record
                raise LaneError(f"{error}; the lane waits there: upgrade this worker") from error
            self._bury(record, error)
            return None
        return said

    def _bury(self, record: Record, error: DecodeError) -> None:
        """Set a record aside for `dead`; the lane goes on behind it."""
        place = (record.topic, record.partition, record.offset)
        self._dead[record.offset] = dead(place, record.value, error.reason, error.detail)
        self._note("lane_record_unreadable", error)

    # --- what the holder says

    def _advise(self, number: int) -> None:
        """Say `started`, as advice: nothing waits for it, nothing depends on it."""
        topic, partition = self._names.workers
        try:
            self._advice.send(topic, partition, encode(Started(VERSION, number)))
        except LogError:
            self._meter.count("worker_started_unsaid_total", pool=self._names.pool)

    def _collect(self) -> bool:
        ours, unwanted = self._hands.collect()
        if unwanted:
            self._meter.count("worker_results_unwanted_total", unwanted, pool=self._names.pool)
        return ours > 0

    def _pending(self) -> bool:
        """Tell whether a transaction has something to say."""
        return bool(
            self._unsaid is not None or self._handed_back or self._dead or self._hands.done()
        )

    def _is_stale(self) -> bool:
        return self._clock.now_ms() - self._written_ms >= REFRESH_MS

    def _write(self) -> None:
        """One transaction for all that is ready; memory changes when it is known to stand."""
        assert self._producer is not None, "SERVE follows TAKE"
        assert self._transaction is not None, "SERVE follows TAKE"
        now_ms = self._clock.now_ms()
        done = self._hands.first_done(TRANSACTION_BYTES_MAX)
        if self._unsaid is None and self._is_stale() and not self._is_stopping:
            self._unsaid = self._hands.slots.total  # a scheduler may come after retention
        returned, dead = list(self._handed_back.values()), list(self._dead.values())
        ready = Ready(self._unsaid, list(done.values()), returned, dead)
        progress = progress_of(self._upto, self._hands.offsets - done.keys())
        try:
            self._transaction.write(self._producer, ready, progress, now_ms)
        except (FencedError, InDoubtError):
            raise
        except AbortedError as error:
            self._note("lane_aborted", error)
            self._back_off.fail(self._clock.now_ms())
            return
        except LogError as error:
            self._note("lane_transaction_failed", error)
            if isinstance(error, TooLargeError):  # a topic's own limit is below the log's
                self._hands.fail_largest(str(error))
            self._abort()
            return
        self._hands.forget(list(done))
        self._handed_back.clear()
        self._dead.clear()
        self._unsaid = None
        self._written_ms = now_ms
        self._back_off.reset()
        tell(self._meter, self._names.pool, ready)

    def _abort(self) -> None:
        """End a transaction that could not be filled; nothing of it stands."""
        assert self._producer is not None, "a transaction was tried"
        try:
            self._producer.abort()
        except AbortedError:
            pass
        except FencedError:
            raise
        except LogError as error:
            raise InDoubtError(f"{self._names.place}: {error}") from error
        self._back_off.fail(self._clock.now_ms())

    def _take_again(self) -> None:
        """After doubt: a new producer, a new init, and the log's word on what stands."""
        self._close_producer()
        self._hands.forget_unstarted()
        self._handed_back.clear()
        self._dead.clear()
        self._unsaid = self._hands.slots.total
        self._phase = Phase.TAKE
        self._back_off.fail(self._clock.now_ms())

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _note(self, event: str, error: Exception) -> None:
        self._meter.count("worker_alarms_total", kind=event, pool=self._names.pool)
        self._notes.warning(event, place=self._names.place, error=str(error))
