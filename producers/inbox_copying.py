"""Copies of terminal results for the tenants that have an inbox, from `results` to their own.

All of a tenant's results, whichever door its requests came by: so a record whose key was used
before, at any door, finds its outcome here as well.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from producers.core.inbox import own_id, position_of
from producers.core.inbox_answers import Answer, ended, repeated
from producers.indexer import ending_of
from schemas.codec import DecodeError, decode_header, passed_through
from schemas.front import Ending
from schemas.log import Record
from schemas.reasons import Reason
from schemas.records import Result

#: Copies that one commit holds: a fraction of a second to write, far below a transaction's time.
COPIES_MAX = 500
COPIES_BYTES_MAX = 4_000_000
#: Results are read no further when so many wait to be copied.
AHEAD_MAX = 2_000
AHEAD_BYTES_MAX = 8_000_000

log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    offset: int
    answer: Answer


class Copies:
    """What is to be copied of one partition of `results`, in order."""

    def __init__(
        self,
        position: int = 0,
        tenants: Collection[str] = (),
        tell: Callable[[Ending], None] = lambda _: None,
    ) -> None:
        """`position` is where reading starts; others' results are passed over.

        `tell` is told each outcome of theirs, once it was read.
        """
        self._tell = tell
        self._next, self._tenants = position, frozenset(tenants)
        self._copies: deque[_Copy] = deque()
        self._bytes = 0

    def put(self, record: Record) -> None:
        """Take in what was read."""
        self._next = record.offset + 1
        try:
            answer = self._copy_of(record)
        except Exception:  # whatever is wrong with one, the others' come
            log.exception("%s: failed, and is not copied", record.place)
            return
        if answer is not None:
            self._copies.append(_Copy(record.offset, answer))
            self._bytes += answer.size

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read now."""
        return len(self._copies) >= AHEAD_MAX or self._bytes >= AHEAD_BYTES_MAX

    @property
    def is_ready(self) -> bool:
        """Whether there is something to copy."""
        return bool(self._copies)

    def take(self) -> list[Answer]:
        """The oldest ones; they are not here any more."""
        found: list[Answer] = []
        size = 0
        while self._copies and len(found) < COPIES_MAX and size < COPIES_BYTES_MAX:
            answer = self._copies.popleft().answer
            size += answer.size
            found.append(answer)
        self._bytes -= size
        return found

    @property
    def position(self) -> int:
        """Everything below it was taken, or is nobody's here."""
        return self._copies[0].offset if self._copies else self._next

    def _copy_of(self, record: Record) -> Answer | None:
        """The copy for its tenant; None when that has no inbox, or nothing is new."""
        try:
            result: Result = decode_header(record, Result)
        except DecodeError as error:
            log.error("left out of the copies: %s", error)  # noqa: TRY400 - the place says it all
            return None
        if result.tenant not in self._tenants:
            return None
        headers = passed_through(record.headers)
        position = position_of(headers)
        if result.reason == Reason.DUPLICATE:
            if position is None or result.id == own_id(result.tenant, position):
                return None  # the same record twice; the first one's outcome counts
            return repeated(result.tenant, result.id, position, headers, "")
        ending = ending_of(record)
        if ending is None:
            return None
        self._tell(ending)
        return ended(ending, record.value, position, headers)
