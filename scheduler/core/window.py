"""Values of one partition by offset: memory for what is there, not for what has been.

Offsets come in ascending order and leave in any. They are kept in blocks of `BLOCK`; a
block that holds nothing any more is gone, so that one old entry below millions that have
left costs one block. An entry costs 8 bytes beside the value, half of what a dict takes
for the entry and its key, and walking is in the order of the offsets.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

#: Offsets of one block, a power of two.
BLOCK: Final = 1_024
_SHIFT: Final = 10
_MASK: Final = 1_023


class _Block(Generic[Value]):
    """Values of `BLOCK` offsets in a row, and how many there are."""

    __slots__ = ("count", "values")

    def __init__(self) -> None:
        self.values: list[Value | None] = [None] * BLOCK
        self.count = 0


class Window(Generic[Value]):
    """A map from offsets to values that is filled in ascending order."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, _Block[Value]] = {}

    def put(self, offset: int, value: Value) -> None:
        """Add a value above all that are there."""
        number = offset >> _SHIFT
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        block.values[offset & _MASK] = value
        block.count += 1

    def get(self, offset: int) -> Value | None:
        """Look an offset up."""
        block = self._blocks.get(offset >> _SHIFT)
        return None if block is None else block.values[offset & _MASK]

    def remove(self, offset: int) -> None:
        """Take a value out that is there."""
        number = offset >> _SHIFT
        block = self._blocks[number]
        block.values[offset & _MASK] = None
        block.count -= 1
        if not block.count:
            del self._blocks[number]

    def first(self) -> int | None:
        """Lowest offset that holds a value."""
        first = next(self.items(), None)
        return None if first is None else first[0]

    def items(self) -> Iterator[tuple[int, Value]]:
        """Offsets and values in ascending order; must not be changed meanwhile."""
        for number, block in self._blocks.items():
            for index, value in enumerate(block.values):
                if value is not None:
                    yield number << _SHIFT | index, value

    def values(self) -> Iterator[Value]:
        """Values in the order of their offsets."""
        for block in self._blocks.values():
            for value in block.values:
                if value is not None:
                    yield value
