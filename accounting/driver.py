"""Faust's Kafka client as the accounting needs it: committed records only, gaps no obstacle.

Faust reads committed records only together with its own transactions, which would cost one
for each lane and gain nothing here: sums hold what they have seen (accounting.core.sums).

And it commits an offset when all offsets before it were acknowledged, of which a lane has
only some: each transaction leaves a marker, an aborted one its records. Faust keeps the
rest as intervals, at a cost that grows with their square, and commits one interval at a
time. The accounting acknowledges in the order of the lane, so the greatest is enough.

And when the group's members change, Faust throws away what it has fetched at several
places, among them what came after it went to the committed offset and before it lets
streams go on: later records would go on to a stream without the earlier ones. So each record
is told with what it follows (accounting.core.positions): from there up to it, the log had
nothing for this reader. It is noted where records leave the client, in the client's thread.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from faust.transport.drivers import aiokafka as faust_driver
from faust.types import TP, Message
from faust.types.transports import ConsumerT

from schemas.log import Partition

_COMMITTED = "read_committed"


class Chain:
    """Up to where each partition's records have left the client, since it was sought."""

    def __init__(self) -> None:
        """Begin without an assignment."""
        self._assignment: object = None
        self._next: dict[TP, int] = {}

    def sought(self, assignment: object, tp: TP, offset: int) -> None:
        """Note that a partition is read from an offset on."""
        self._under(assignment)[tp] = offset

    def linked(self, assignment: object, found: Mapping[TP, list[Any]]) -> dict[TP, list["Link"]]:
        """Records with what they follow. None as long as a partition is not sought.

        An assignment's partitions begin at some offset that the client chooses.
        """
        following = self._under(assignment)
        linked: dict[TP, list[Link]] = {}
        for tp, records in found.items():
            linked[tp] = []
            for record in records:
                linked[tp].append(Link(record, following.get(tp)))
                following[tp] = record.offset + 1
        return linked

    def upto(self, tp: TP) -> int | None:
        """Offset after the last record that left, or the one sought; None when unknown."""
        return self._next.get(tp)

    def _under(self, assignment: object) -> dict[TP, int]:
        if assignment is not self._assignment:
            self._assignment, self._next = assignment, {}
        return self._next


class Link(NamedTuple):
    """A record of the client, and the offset from which on there was none before it."""

    record: Any
    follows: int | None


def follows(message: Message) -> int | None:
    """What a message of `Consumer` follows."""
    found: int | None = getattr(message, "follows", None)
    return found


class CommittedThread(faust_driver.AIOKafkaConsumerThread):
    """Makes the client that reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chain = Chain()

    def _create_worker_consumer(self, transport: faust_driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # It has no public door, but is read when the client starts; a test on a real Kafka
        # with an aborted transaction holds this line to its effect.
        assert consumer._isolation_level in {"read_uncommitted", _COMMITTED}  # noqa: SLF001
        consumer._isolation_level = _COMMITTED  # noqa: SLF001
        return consumer

    async def _fetch_records(self, consumer: Any, *args: Any, **kwargs: Any) -> Any:
        found = await super()._fetch_records(consumer, *args, **kwargs)
        # Nothing else ran in this thread since the client took these records out.
        return self.chain.linked(_assignment(consumer), found) if found else found

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Go to what is committed, or to the beginning of a lane where nothing is.

        There the client would not seek at all, and go on where it had come to.
        """
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed)
        return committed

    async def _seek_to_committed(self) -> Mapping[TP, int]:
        consumer = self._ensure_consumer()
        is_read = self.consumer.app.topics.acks_enabled_for
        lanes = [tp for tp in consumer.assignment() if is_read(tp.topic)]
        committed = {tp: await consumer.committed(tp) or 0 for tp in lanes}
        for tp, offset in committed.items():
            await self._read_from(tp, offset)
        return committed

    async def read_from(self, tp: TP, offset: int) -> None:
        """Go to an offset; nothing happens when the partition is another process's by now."""
        await self.call_thread(self._read_from, tp, offset)

    async def _read_from(self, tp: TP, offset: int) -> None:
        consumer = self._ensure_consumer()
        if tp not in consumer.assignment():
            return
        consumer.seek(tp, offset)
        self.chain.sought(_assignment(consumer), tp, offset)


def _assignment(consumer: Any) -> object:
    """What the client has assigned: another object after each change of its group."""
    return consumer._subscription.subscription.assignment  # noqa: SLF001 - no public door


class _Unkept(dict[TP, int | None]):
    """Offsets that Faust would pass over records by; whoever counts them knows better."""

    def __missing__(self, tp: TP) -> None:
        """Nothing is known to be read."""

    def __setitem__(self, tp: TP, offset: int | None) -> None:
        """Forget it."""

    def update(self, *_: Any, **__: Any) -> None:
        """Forget them."""


class Consumer(faust_driver.Consumer):
    """Reads committed records; commits up to the greatest offset that was acknowledged."""

    _thread: CommittedThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _Unkept()
        self._held: set[TP] = set()

    def _new_consumer_thread(self) -> CommittedThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Hold lanes back until the flow is resumed: Faust empties its queues just before."""
        is_read = self.app.topics.acks_enabled_for
        lanes = {tp for tp in tps if is_read(tp.topic)}
        self._held |= lanes
        super().resume_partitions(set(tps) - lanes)

    def resume_flow(self) -> None:
        """Let records pass, those of lanes held back too."""
        held, self._held = self._held, set()
        super().resume_partitions(held)
        super().resume_flow()

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """Let no records of some partitions pass."""
        self._held.clear()
        super().pause_partitions(tps)

    def handed_out(self, lane: Partition) -> int | None:
        """Up to where records of a lane have left the client; None when nobody knows."""
        return self._thread.chain.upto(TP(*lane))

    async def read_from(self, lane: Partition, offset: int) -> None:
        """Read a lane from an offset on; nothing happens when it is another process's by now."""
        await self._thread.read_from(TP(*lane), offset)

    def _to_message(self, tp: TP, record: Any) -> Any:
        message = super()._to_message(tp, record.record)
        message.follows = record.follows  # type: ignore[attr-defined]
        return message

    def _new_offset(self, tp: TP) -> int | None:
        acknowledged = self._acked[tp]
        if not acknowledged:
            return None
        following = max(acknowledged) + 1
        acknowledged.clear()
        self._acked_index[tp].clear()
        return following


class Transport(faust_driver.Transport):
    """Faust's transport with the consumer above."""

    Consumer: ClassVar[type[ConsumerT]] = Consumer
