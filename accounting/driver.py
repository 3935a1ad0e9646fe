"""Faust's Kafka client as the accounting needs it: committed records only, gaps no obstacle.

Faust reads committed records only together with its own transactions, which would cost one
for each lane and gain nothing here: sums hold what they have seen (accounting.core.sums).

And it commits an offset when all offsets before it were acknowledged, of which a lane has
only some: each transaction leaves a marker, an aborted one its records. Faust keeps the
rest as intervals, at a cost that grows with their square, and commits one interval at a
time. The accounting acknowledges in the order of the lane, so the greatest is enough.

And where nothing is committed, or 0, its client does not seek at all when counting begins.
What it had fetched until then was thrown away, so a lane would begin in the middle.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from faust.transport.drivers import aiokafka as faust_driver
from faust.types import TP
from faust.types.transports import ConsumerT

_COMMITTED = "read_committed"


class CommittedThread(faust_driver.AIOKafkaConsumerThread):
    """Makes the client that reads."""

    def _create_worker_consumer(self, transport: faust_driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # It has no public door, but is read when the client starts; a test on a real Kafka
        # with an aborted transaction holds this line to its effect.
        assert consumer._isolation_level in {"read_uncommitted", _COMMITTED}  # noqa: SLF001
        consumer._isolation_level = _COMMITTED  # noqa: SLF001
        return consumer

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Go to what is committed, or to the beginning of a lane where nothing is."""
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed)
        return committed

    async def _seek_to_committed(self) -> Mapping[TP, int]:
        consumer = self._ensure_consumer()
        committed: Mapping[TP, int] = await consumer.seek_to_committed()
        is_read = self.consumer.app.topics.acks_enabled_for
        unsought = [tp for tp, offset in committed.items() if not offset and is_read(tp.topic)]
        if unsought:
            await consumer.seek_to_beginning(*unsought)
        return committed


class Consumer(faust_driver.Consumer):
    """Reads committed records; commits up to the greatest offset that was acknowledged."""

    def _new_consumer_thread(self) -> CommittedThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Forget a gap: nothing waits for it."""

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
