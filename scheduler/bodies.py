"""Bodies of requests that have not ended."""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.inputs import Body


class Bodies:
    """Bodies by key (`schemas.records.pack_key`)."""

    def __init__(self) -> None:
        self._kept: dict[int, Body] = {}

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._kept)

    def keep(self, key: int, body: Body) -> None:
        """Take one in."""
        self._kept[key] = body

    def keep_all(self, bodies: Mapping[int, Body]) -> None:
        """Take what was read in."""
        self._kept.update(bodies)

    def take(self, keys: Sequence[int]) -> list[Body]:
        """Bodies of requests that a cycle's records need, in the order of the keys."""
        kept = self._kept
        return [kept[key] for key in keys]

    def drop(self, key: int) -> None:
        """Forget the body of a request that has ended."""
        self._kept.pop(key, None)

    def drop_all(self, keys: Iterable[int]) -> None:
        """Forget the bodies of requests that have ended."""
        pop = self._kept.pop
        for key in keys:
            pop(key, None)

    def retain(self, keys: Iterable[int]) -> None:
        """Forget all but these."""
        kept = self._kept
        self._kept = {key: kept[key] for key in keys if key in kept}
