"""The Faust application: lanes in, sums of use and learned costs out. No web server.

What belongs here: when sums are stored and records acknowledged. What does not: what is
counted (accounting.core), and the process around it.

Faust is at-least-once: a record may come again. Sums hold what they have seen, so order is
all that matters here: (1) costs, (2) sums are in the log, (3) their records are
acknowledged, (4) Faust commits. A process killed in between reads some records again, and
each sum passes over what it holds. Whatever goes wrong in 1 to 3 ends the process: a later
acknowledgement would stand for what was lost.

Whenever lanes come or go, all begins anew as after a start: what is not stored is forgotten,
and each lane goes on from what is committed, on sums read from the log (accounting.ledger).
A record that doesn't follow the one before is left, and its lane read again from there
(accounting.lanes): Faust may lose some on their way.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple
from zlib import crc32

import faust
from faust.types import EventT
from msgspec import Struct

from accounting.counting import Counting
from accounting.driver import Consumer, Transport, follows
from accounting.lanes import Lanes
from accounting.ledger import Ledger
from accounting.names import group
from accounting.ports import Clock, Meter, Notes
from accounting.table import SumTable, Tables
from schemas.codec import DecodeError, encode
from schemas.log import Log, Record
from schemas.reasons import Reason
from schemas.topics import Topics, bucket
from schemas.usage import Cost

#: A slice is stored after so many records or so long, whichever comes first. Longer slices
#: write a sum less often; shorter ones show it earlier.
SLICE_RECORDS = 500
SLICE_S = 0.25
#: How often windows that are no longer kept are looked for; their keys tell.
OUTDATED_S = 5.0
#: How often the policy is looked at for other pools.
LOOK_S = 5.0
#: A dead process's lanes wait for this; a restart under the same instance waits for nothing.
SESSION_S = 10.0
#: A clean stop stores and commits what was read; without a broker it would wait for ever.
STOP_S = 5.0
#: A lane that doesn't move for so long, though records of it were read, lost them on their way.
OVERDUE_S = 5.0
_TICK_S = 0.1


class Ending(StrEnum):
    """Why the application ended."""

    STOPPED = "stopped"
    POOLS_CHANGED = "pools changed"
    FAILED = "failed"
    #: A later release wrote what can't be read here: starting again would find the same.
    HALTED = "halted"


class AccountingSettings(Struct, frozen=True, kw_only=True):
    """What the application counts, and where.

    `kafka` is `host:port,...`; `lanes` the number of each pool's lanes; `buckets` the
    partitions of `costs`; `credentials` what Faust takes (None: plain text).
    """

    kafka: str
    topics: Topics
    lanes: dict[str, int]
    buckets: int
    instance: str | None = None
    credentials: Any = None

    @property
    def member(self) -> str | None:
        """Name of this process in its group; another one when the pools are others.

        A member that comes back under its name is given what it had, whatever it asks for.
        """
        pools = ",".join(f"{pool}:{lanes}" for pool, lanes in sorted(self.lanes.items()))
        return self.instance and f"{self.instance}.{crc32(pools.encode()):08x}"


class _App(faust.App):
    """Faust without files of its own."""

    def _create_directories(self) -> None:
        """Make none: the tables live in memory and in the log."""


class _Read(NamedTuple):
    event: EventT[Any]
    pool: str


class Accounting:
    """One process of the accounting. `run` blocks until it ends."""

    def __init__(
        self, settings: AccountingSettings, log: Log, clock: Clock, meter: Meter, notes: Notes
    ) -> None:
        """Make the application; nothing connects before `run`. `log` is read from a thread."""
        self._log = log
        self._settings, self._clock, self._meter, self._notes = settings, clock, meter, notes
        self._failure: BaseException | None = None

    def run(
        self,
        stop: threading.Event,
        lanes_now: Callable[[], Mapping[str, int]],
        leave: Callable[[Ending], None],
    ) -> Ending:
        """Count until `stop` is set, other pools are to be counted, or something fails.

        Then `leave` is told, and should end the process: what still runs then may wait for
        ever, and has nothing to save.
        """
        return asyncio.run(self._run(stop, lanes_now, leave))

    async def _run(
        self,
        stop: threading.Event,
        lanes_now: Callable[[], Mapping[str, int]],
        leave: Callable[[Ending], None],
    ) -> Ending:
        self._build()
        app = self._app
        watch = asyncio.create_task(self._watch(lanes_now))
        running = asyncio.create_task(app.start())
        running.add_done_callback(self._ended)
        while not (stop.is_set() or self._failure or app.crashed or watch.done()):  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(_TICK_S)
        ending = self._ending(stop, watch)
        watch.cancel()
        if ending not in {Ending.FAILED, Ending.HALTED}:
            await self._close()
        leave(ending)
        return ending

    def _ending(self, stop: threading.Event, watch: "asyncio.Task[None]") -> Ending:
        reason = self._failure or (self._app.crash_reason if self._app.crashed else None)
        if reason is None and watch.done():
            reason = watch.exception()
        if isinstance(reason, DecodeError) and reason.reason is Reason.UNKNOWN_VERSION:
            detail = f"{reason.place}: {reason.detail}; upgrade the accounting"
            self._notes.error("halted", detail=detail, exc_info=False)
            return Ending.HALTED
        if reason is not None:
            self._notes.error("crashed", detail=repr(reason), exc_info=False)
            return Ending.FAILED
        return Ending.STOPPED if stop.is_set() else Ending.POOLS_CHANGED

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if not running.cancelled() and running.exception() is not None:
            self._failure = running.exception()

    def _build(self) -> None:
        settings, topics = self._settings, self._settings.topics
        self._app = app = _App(
            group(topics),
            broker=[f"kafka://{address.strip()}" for address in settings.kafka.split(",")],
            broker_credentials=settings.credentials,
            broker_session_timeout=SESSION_S,
            broker_heartbeat_interval=1.0,
            broker_commit_interval=1.0,
            consumer_group_instance_id=settings.member,
            consumer_auto_offset_reset="earliest",
            autodiscover=False,
            processing_guarantee="at_least_once",
            producer_acks=-1,
            store="memory://",
            table_standby_replicas=0,
            stream_wait_empty=False,
            Table=SumTable,
            TableManager=Tables,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
        )
        app.transport = Transport(app.conf.broker_consumer, app)
        self._tables: dict[str, SumTable] = {
            pool: _table(app, pool, topics.usage(pool), lanes)
            for pool, lanes in settings.lanes.items()
        }
        self._costs = _raw(app, topics.costs, settings.buckets)
        self._pools = {topics.workers(pool): pool for pool in settings.lanes}
        self._lanes = Lanes(self._notes, self._meter)
        taking = {pool: table.take_in for pool, table in self._tables.items()}
        self._ledger = Ledger(self._log, topics, taking)
        shelves = {pool: table.shelf for pool, table in self._tables.items()}
        self._counting = Counting(shelves)
        self._read: list[_Read] = []
        self._lock = asyncio.Lock()
        for pool, lanes in settings.lanes.items():
            source = _raw(app, topics.workers(pool), lanes)
            app.agent(source, name=f"count-{pool}")(self._counter(pool))
        app.timer(SLICE_S)(self._store_if_any)
        app.timer(OUTDATED_S)(self._forget)
        app.timer(OVERDUE_S)(self._look)
        app.on_rebalance_complete.connect(self._assigned, weak=False)

    def _counter(self, pool: str) -> Callable[[Any], Any]:
        async def count(stream: Any) -> None:
            async for event in stream.noack().events():
                with self._fatal():
                    await self._take(pool, event)

        return count

    async def _take(self, pool: str, event: EventT[Any]) -> None:
        async with self._lock:
            self._check()
            record, now_s = _record(event), asyncio.get_running_loop().time()
            lane = record.topic, record.partition
            claim = follows(event.message)
            if not await self._lanes.is_next(self._consumer, lane, claim, record.offset, now_s):
                return
            try:
                if self._counting.take(pool, record, self._clock.now_ms()):
                    self._meter.count("accounting_batches_total", pool=pool)
            except DecodeError as error:
                if error.reason is Reason.UNKNOWN_VERSION:
                    raise
                self._meter.count("accounting_unreadable_total", pool=pool)
                self._notes.warning("unreadable record passed over", detail=str(error))
            self._read.append(_Read(event, pool))
            if len(self._read) >= SLICE_RECORDS:
                await self._store()

    async def _look(self) -> None:
        """Read again what was lost on its way when nothing came after it."""
        with self._fatal():
            async with self._lock:
                await self._lanes.look(self._consumer, asyncio.get_running_loop().time())

    async def _store_if_any(self) -> None:
        with self._fatal():
            async with self._lock:
                if self._read:
                    await self._store()

    async def _store(self) -> None:
        """Steps 1 to 3 of the header, for all that was read since the last time."""
        self._check()
        read, self._read = self._read, []
        changed = self._counting.slice()
        await asyncio.gather(*[await self._publish(cost) for cost in changed.costs])
        for pool, sums in changed.sums.items():
            for key, total in sums.items():
                self._tables[pool][key] = encode(total)
        for pool in changed.sums:
            await self._tables[pool].delivered()
        for event, _ in read:
            event.ack()

    async def _publish(self, cost: Cost) -> Awaitable[object]:
        sent: Awaitable[object] = await self._costs.send(
            key=f"{cost.tenant}/{cost.endpoint}/{cost.pool}/{cost.lane}".encode(),
            value=encode(cost),
            partition=bucket(cost.tenant, self._settings.buckets),
        )
        return sent

    async def _forget(self) -> None:
        """Write tombstones for windows that are no longer kept."""
        with self._fatal():
            await self._forget_outdated()

    async def _forget_outdated(self) -> None:
        async with self._lock:
            for pool, key in list(self._counting.outdated(self._clock.now_ms())):
                self._tables[pool].pop(key)
            for table in self._tables.values():
                await table.delivered()

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Whatever passes here ends the process; a task cancelled with a record in hand too."""
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _assigned(self, *_: object, **__: object) -> None:
        """Begin the lanes that are this process's now. Faust lets them go on afterwards.

        It gives up waiting when the lanes change again: the next one waits for this one then.
        """
        await asyncio.shield(self._begin())

    async def _begin(self) -> None:
        with self._fatal():
            async with self._lock:
                self._read.clear()
                self._counting.reassigned()
                held = [tp for tp in self._consumer.assignment() if tp.topic in self._pools]
                lanes = [(self._pools[tp.topic], tp.partition) for tp in held]
                self._lanes.begin(await asyncio.to_thread(self._ledger.open, lanes))
        self._notes.info("counting", lanes=len(lanes))

    @property
    def _consumer(self) -> Consumer:
        consumer = self._app.consumer
        assert isinstance(consumer, Consumer)
        return consumer

    async def _watch(self, lanes_now: Callable[[], Mapping[str, int]]) -> None:
        """Return when other pools are to be counted."""
        while dict(await asyncio.to_thread(lanes_now)) == self._settings.lanes:  # noqa: ASYNC110 - asks
            await asyncio.sleep(LOOK_S)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await self._store_if_any()
                await self._app.stop()
        except Exception as error:  # noqa: BLE001 - nothing is lost: it is read again
            self._notes.warning("stopped without storing all", detail=repr(error))


def _table(app: faust.App, pool: str, topic: str, lanes: int) -> SumTable:
    changelog = _raw(app, topic, lanes, acks=False, internal=True)
    table = app.Table(f"usage-{pool}", partitions=lanes, changelog_topic=changelog)
    assert isinstance(table, SumTable)
    return table


def _raw(app: faust.App, name: str, partitions: int, **options: Any) -> Any:
    """A topic of plain bytes: whatever stands there, decoding it is ours."""
    return app.topic(
        name,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=partitions,
        allow_empty=True,
        **options,
    )


def _record(event: EventT[Any]) -> Record:
    message = event.message
    return Record(
        message.topic,
        message.partition,
        message.offset,
        round(message.timestamp * 1_000),
        None,
        message.value or b"",
        (),
    )
