"""Names that the accounting and its readers agree on."""

from collections.abc import Iterable

from schemas.topics import Topics
from schemas.usage import UsageLost


def group(topics: Topics) -> str:
    """Consumer group of a deployment's accounting: below its offsets everything is counted."""
    return f"{topics.prefix}.accounting"


def worked_pools(names: Iterable[str], topics: Topics) -> list[str]:
    """Pools whose workers have said something, by the names of all topics; sorted.

    Those that left the policy too: what was on its way then is counted all the same.
    """
    return _named(names, topics.workers(""))


def summed_pools(names: Iterable[str], topics: Topics) -> list[str]:
    """Pools that have sums, or lanes that may become some; sorted."""
    names = list(names)
    return sorted({*_named(names, topics.usage("")), *worked_pools(names, topics)})


def _named(names: Iterable[str], prefix: str) -> list[str]:
    pools = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    # A pool's name has no dot: other deployments may have this one's prefix before theirs.
    return sorted(pool for pool in pools if "." not in pool)


def lost_key(lost: UsageLost) -> bytes:
    """Key of the record, which ends in its partition like those of the sums beside it."""
    return f"lost/{lost.from_offset}/{lost.pool}/{lost.lane}".encode()
