"""A pool's sums as a Faust table whose changelog is the published topic `usage.<pool>`.

One topic for both: what is published can't differ from what is counted on, and what a
reader sees is what the next process goes on from. Faust's table assumes that a key changes
while a record of its partition is handled; sums are stored in slices, so here the key says
its partition. And of two values of a sum the greater `upto` stands, in recovery too: a
process that was stopped for long may write an older one last.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import faust
from faust.types import EventT, FutureMessage

from accounting.core.sums import lane_of, slot_of
from accounting.counting import decode_sum
from accounting.shelf import Shelf
from schemas.codec import DecodeError
from schemas.reasons import Reason


class SumTable(faust.Table[bytes, bytes]):
    """Sums of one pool by key, as bytes. `sent` are the writes not yet waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[FutureMessage] = []
        self.shelf = Shelf()
        #: Called with the error of a sum that a later release stored.
        self.on_unknown: Callable[[DecodeError], None] = _raise

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

    def apply_changelog_batch(self, batch: Iterable[EventT[Any]]) -> None:
        """Take stored sums in, newer ones only; what is none is passed over.

        A later release's is none of ours to pass over: a sum begun anew would stand for it.
        Faust only warns of what is raised here, so it is handed to `on_unknown`.
        """
        for event in batch:
            key, value = event.message.key or b"", event.message.value
            try:
                if value is None:
                    self.data.pop(key, None)
                elif _is_newer(key, value, self.data.get(key)):
                    self.data[key] = value
            except DecodeError as error:
                if error.reason is Reason.UNKNOWN_VERSION:
                    self.on_unknown(error)

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


def _raise(error: DecodeError) -> None:
    raise error
