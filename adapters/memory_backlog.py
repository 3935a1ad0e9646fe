"""The board of the backlog in this process, for a scheduler and an ingress that share it."""

from collections.abc import Sequence


class MemoryBoard:
    """Values by name, written by the scheduler and read by the ingress."""

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[str, bytes] = {}

    def post(self, name: str, data: bytes) -> None:
        """Put a value in place of what stood there."""
        self.values[name] = data

    async def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """What stands under each name, None where nothing does."""
        return [self.values.get(name) for name in names]
