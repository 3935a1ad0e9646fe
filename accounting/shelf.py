"""Stored sums of one pool by key, and which keys a lane has in each window.

Window, start and lane stand in the key: what is outdated is found without decoding a sum,
and without looking at those that are not.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from accounting.core.sums import key_parts
from schemas.usage import Window

_NOTHING: Mapping[int, Sequence[bytes]] = {}


class Shelf(MutableMapping[bytes, bytes]):
    """Values by the keys of sums; another key raises ValueError when it is set."""

    def __init__(self) -> None:
        """Begin empty."""
        self._values: dict[bytes, bytes] = {}
        self._keys: dict[tuple[Window, int], dict[int, list[bytes]]] = {}

    def __getitem__(self, key: bytes) -> bytes:
        return self._values[key]

    def get(self, key: bytes, default: Any = None) -> Any:
        """Value of a key; here since it is asked for with each batch, and is slow inherited."""
        return self._values.get(key, default)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            window, start_ms, lane = key_parts(key)
            self._keys.setdefault((window, lane), {}).setdefault(start_ms, []).append(key)
        self._values[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._values[key]
        window, start_ms, lane = key_parts(key)
        starts = self._keys[window, lane]
        starts[start_ms].remove(key)
        if not starts[start_ms]:
            del starts[start_ms]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def lanes(self) -> list[int]:
        """Lanes that have sums, or had some."""
        return sorted({lane for _, lane in self._keys})

    def starts(self, window: Window, lane: int) -> Mapping[int, Sequence[bytes]]:
        """Keys of a lane's sums in windows of a kind, by the windows' starts."""
        return self._keys.get((window, lane), _NOTHING)
