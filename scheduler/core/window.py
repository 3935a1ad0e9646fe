"""Values of one partition by offset: memory for what is there, not for what has been.

Offsets come in ascending order and leave in any. They are kept in blocks of `BLOCK`; a
block that holds nothing any more is gone, so that one old entry below millions that have
left costs one block. An entry costs 8 bytes beside the value, half of what a dict takes
for the entry and its key, and walking is in the order of the offsets.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")

#: Offsets of one block, a power of two.
BLOCK = 1_024
_SHIFT = BLOCK.bit_length() - 1
_MASK = BLOCK - 1


class Window(Generic[Value]):
    """A map from offsets to values that is filled in ascending order."""

    __slots__ = ("_blocks", "_counts")

    def __init__(self) -> None:
        self._blocks: dict[int, list[Value | None]] = {}
        self._counts: dict[int, int] = {}

    def put(self, offset: int, value: Value) -> None:
        """Add a value above all that are there."""
        number = offset >> _SHIFT
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = [None] * BLOCK
            self._counts[number] = 0
        block[offset & _MASK] = value
        self._counts[number] += 1

    def get(self, offset: int) -> Value | None:
        """Look an offset up."""
        block = self._blocks.get(offset >> _SHIFT)
        return None if block is None else block[offset & _MASK]

    def remove(self, offset: int) -> None:
        """Take a value out that is there."""
        number = offset >> _SHIFT
        self._blocks[number][offset & _MASK] = None
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._blocks[number], self._counts[number]

    def first(self) -> int | None:
        """Lowest offset that holds a value."""
        for number, block in self._blocks.items():
            for index, value in enumerate(block):
                if value is not None:
                    return number << _SHIFT | index
        return None

    def items(self) -> Iterator[tuple[int, Value]]:
        """Offsets and values in ascending order; must not be changed meanwhile."""
        for number, block in self._blocks.items():
            for index, value in enumerate(block):
                if value is not None:
                    yield number << _SHIFT | index, value

    def values(self) -> Iterator[Value]:
        """Values in the order of their offsets."""
        for block in self._blocks.values():
            for value in block:
                if value is not None:
                    yield value
