"""How far a lane is, as a value and as the metadata of a commit.

Batches end out of order: one long batch must not hide the hundred behind it that ended.
So the progress of a lane is

    upto   everything of the lane below this offset was read ...
    open   ... and ended, except the batches at these offsets (sorted, all below `upto`).

The ended batches above the lowest open one are thus known without listing them. What is
listed are the batches in the holder's hands, and a holder takes in no more than OPEN_MAX: the
size is bounded by construction, however long a batch runs and however many end meanwhile.

The commit's offset is the lowest open offset, or `upto`. Its metadata is
`FL1.<checksum>.<payload>`: payload is base64 of varints (upto - offset, count, then each open
offset as the distance from the one before it, the first from the commit's offset), checksum is
crc32 over offset and payload, so that neither can be changed or swapped alone.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from schemas.log import Commit

#: Most batches that a lane's holder has in its hands. 480 distances within the greatest
#: span of offsets (2^44, as in schemas.records.pack_key) take at most 6 bytes each: 2,880
#: bytes, 3,840 characters, below the 4,095 that a commit's metadata may have.
OPEN_MAX = 480

_MAGIC = "FL1"
_VARINT_BITS = 7
_VARINT_MORE = 1 << _VARINT_BITS


class ProgressError(Exception):
    """A lane's committed progress can't be read; the message says what to do."""


class Progress(NamedTuple):
    """All of a lane below `upto` has ended, except what stands at the offsets `open`."""

    upto: int
    open: tuple[int, ...] = ()

    @property
    def low(self) -> int:
        """The lowest offset that a next holder must read from."""
        return self.open[0] if self.open else self.upto

    def has_ended(self, offset: int) -> bool:
        """Tell whether the record at an offset is finished, handed back or dealt with."""
        return offset < self.upto and offset not in self.open


def progress_of(upto: int, held: Iterable[int]) -> Progress:
    """Progress of a lane read up to `upto` whose holder still has the batches `held`."""
    return Progress(upto, tuple(sorted(offset for offset in held if offset < upto)))


def encode_progress(progress: Progress) -> Commit:
    """Progress as what a group commits. Raises ProgressError above OPEN_MAX open batches."""
    if len(progress.open) > OPEN_MAX:
        raise ProgressError(f"{len(progress.open)} open batches; a lane holds at most {OPEN_MAX}")
    low = progress.low
    data = bytearray()
    _put(data, progress.upto - low)
    _put(data, len(progress.open))
    previous = low
    for offset in progress.open:
        _put(data, offset - previous)
        previous = offset
    payload = b64encode(data).decode()
    return Commit(low, f"{_MAGIC}.{_checksum(low, payload)}.{payload}")


def decode_progress(commit: Commit, place: str) -> Progress:
    """Reverse `encode_progress`; `place` names the group and the partition.

    Raises ProgressError for whatever was not written by `encode_progress`.
    """
    parts = commit.metadata.split(".")
    if len(parts) != 3 or parts[0] != _MAGIC:  # noqa: PLR2004 - magic, checksum, payload
        raise _unreadable(place, f"metadata {commit.metadata[:40]!r} is no progress of a lane")
    if parts[1] != _checksum(commit.offset, parts[2]):
        raise _unreadable(place, "the checksum of offset and metadata is wrong")
    try:
        distance, count, *steps = _numbers(b64decode(parts[2], validate=True))
    except (Base64Error, ValueError) as error:
        raise _unreadable(place, str(error)) from error
    offsets: list[int] = []
    at = commit.offset
    for step in steps:
        at += step
        offsets.append(at)
    progress = Progress(commit.offset + distance, tuple(offsets))
    if len(offsets) != count or progress.low != commit.offset or at > progress.upto:
        raise _unreadable(place, "its numbers contradict each other")
    return progress


def _unreadable(place: str, fault: str) -> ProgressError:
    return ProgressError(
        f"{place}: {fault}. Stop the pool's workers and delete the group's offset for this "
        "partition: the next holder then rebuilds the progress from what its workers said"
    )


def _checksum(low: int, payload: str) -> str:
    return f"{crc32(f'{low}:{payload}'.encode()):08x}"


def _put(data: bytearray, number: int) -> None:
    while number >= _VARINT_MORE:
        data.append(number % _VARINT_MORE | _VARINT_MORE)
        number >>= _VARINT_BITS
    data.append(number)


def _numbers(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte % _VARINT_MORE) << shift
        shift += _VARINT_BITS
        if byte < _VARINT_MORE:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("the payload ends within a number")
    return numbers
