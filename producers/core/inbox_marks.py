"""Marks: from which offset on a request partition may hold what is not yet committed.

They travel in the metadata of a commit, as text: `1 gold:0=1234 batch:3=99`. Every partition
that is published to is named there before. When nothing is on its way, a mark may move up to
the partition's end, and those that are not needed may go.
"""

from collections.abc import Mapping

from schemas.log import METADATA_CHARS_MAX, LogError, Partition
from schemas.topics import Topics

_VERSION = "1"
#: A tier's name, a partition below 1,024 and an offset, with what stands between them.
_MARK_CHARS_MAX = 48 + 1 + 4 + 1 + 19 + 1
#: Request partitions that the inboxes of one bucket are published to at a time.
MARKS_MAX = (METADATA_CHARS_MAX - len(_VERSION)) // _MARK_CHARS_MAX


def encode(marks: Mapping[Partition, int], topics: Topics) -> str:
    """Marks as text."""
    start = len(topics.requests(""))
    parts = [f"{topic[start:]}:{number}={at}" for (topic, number), at in sorted(marks.items())]
    return " ".join([_VERSION, *parts])


def decode(text: str, topics: Topics) -> dict[Partition, int]:
    """Marks of a commit's metadata. Raises LogError for text of another release."""
    version, *parts = text.split(" ")
    found: dict[Partition, int] = {}
    try:
        if version != _VERSION:
            raise ValueError(version)
        for part in parts:
            place, at = part.split("=")
            tier, number = place.split(":")
            found[topics.requests(tier), int(number)] = int(at)
    except ValueError as error:
        raise LogError(
            f"the position of the inboxes says {text[:80]!r}, which this release does not read: "
            "run the release that wrote it, or a newer one"
        ) from error
    return found
