"""A pool's sums as a Faust table whose changelog is the published topic `usage.<pool>`.

One topic for both: what is published can't differ from what is counted on, and what a
reader sees is what the next process goes on from. Faust's table assumes that a key changes
while a record of its partition is handled; sums are stored in slices, so here the key says
its partition. And of two values of a sum the greater `upto` stands, when they are read back too: a
process that was stopped for long may write an older one last.
"""

import asyncio
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import FutureMessage

from accounting.core.sums import lane_of, slot_of
from accounting.counting import decode_sum
from accounting.shelf import Shelf
from schemas.codec import DecodeError
from schemas.log import Record
from schemas.reasons import Reason


class SumTable(faust.Table[bytes, bytes]):
    """Sums of one pool by key, as bytes. `sent` are the writes not yet waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[FutureMessage] = []
        self.shelf = Shelf()

    def _new_store(self) -> Any:
        store = super()._new_store()
        store.data = self.shelf
        return store

    def partition_for_key(self, key: bytes) -> int:
        """Partition of a sum: its lane."""
        return lane_of(key)

    def send_changelog(self, *args: Any, **kwargs: Any) -> FutureMessage:
        """Send one change and remember it for `delivered`."""
        future = super().send_changelog(*args, **kwargs)
        self.sent.append(future)
        return future

    async def delivered(self) -> None:
        """Wait until every change sent so far is in the log; raises what kept one out."""
        sent, self.sent = self.sent, []
        await asyncio.gather(*sent)

    def take_in(self, record: Record) -> None:
        """Take in a record of the changelog, a newer sum only; what is none is passed over.

        Raises DecodeError for a later release's: a sum begun anew would stand for it.
        """
        key = record.key or b""
        try:
            if not record.value:
                self.shelf.pop(key, None)
            elif _is_newer(key, record.value, self.shelf.get(key)):
                self.shelf[key] = record.value
        except DecodeError as error:
            if error.reason is Reason.UNKNOWN_VERSION:
                raise

    async def on_recovery_completed(self, *_: object, **__: object) -> None:
        """Keep sums of lanes that went to another process.

        Faust would drop them, and read only what came since if a lane comes back.
        """
        await self.call_recover_callbacks()


def _is_newer(key: bytes, value: bytes, known: bytes | None) -> bool:
    total = decode_sum(key, value)
    return slot_of(total).key == key and (
        known is None or decode_sum(key, known).upto <= total.upto
    )


class _Recovery(Recovery):
    """Reads nothing back: `accounting.ledger` does."""

    def need_recovery(self) -> bool:
        return False


class Tables(TableManager):
    """Faust's tables without its recovery.

    That throws away what it has fetched when the group changes again meanwhile, and can't
    tell: a sum that is missing would be begun anew.
    """

    @property
    def recovery(self) -> Recovery:
        """What Faust does about the tables when lanes come and go."""
        if self._recovery is None:
            self._recovery = _Recovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
