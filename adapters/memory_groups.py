"""Groups of the in-process log: who holds which partition of a topic.

What belongs here: joining, sharing out (each keeps what it holds as far as the shares are
even), handing over, static instances, silence. What does not: records and positions.

A partition changes hands in two steps, as in a cooperative rebalance: its holder learns at its
next poll that it lost it, and only then its heir gains it. A holder that polls no more is
passed over `SESSION_TIMEOUT_MS` after `fall_silent`. Nothing waits, nothing runs by itself.
"""

from collections.abc import Callable
from threading import RLock

from adapters.memory_store import Clock
from schemas.log import Change, FencedError, LogError

#: How long a silent member keeps its partitions; the same as the Kafka adapter's.
SESSION_TIMEOUT_MS = 6_000


class Group:
    """The members of one group, in the order they joined, and the holders of partitions."""

    def __init__(self, name: str, topic: str, clock: Clock, count: Callable[[], int]) -> None:
        self.name = name
        self.topic = topic
        self.members: list[MemoryMembership] = []
        self.holders: dict[int, MemoryMembership] = {}
        self._clock = clock
        self._count = count
        self._heirs: dict[int, MemoryMembership] = {}
        self._changes = 0
        self._shared_out: tuple[int, int] | None = None

    def join(self, member: "MemoryMembership") -> None:
        """Add a member; one with the same instance is replaced at once and fenced."""
        self._changes += 1
        for at, old in enumerate(self.members):
            if member.instance is not None and old.instance == member.instance:
                old.is_fenced = True
                self.members[at] = member
                for number in [n for n, holder in self.holders.items() if holder is old]:
                    self.holders[number] = member
                return
        self.members.append(member)

    def leave(self, member: "MemoryMembership") -> None:
        """Remove a member; what it holds is free at once."""
        if member in self.members:
            self._changes += 1
            self.members.remove(member)
        for number in [n for n, holder in self.holders.items() if holder is member]:
            del self.holders[number]

    def drop_silent(self) -> None:
        """Remove the members that are silent for longer than the session timeout."""
        latest = self._clock.now_ms() - SESSION_TIMEOUT_MS
        for member in list(self.members):
            if member.silent_since_ms is not None and member.silent_since_ms <= latest:
                self.leave(member)

    def share_of(self, member: "MemoryMembership") -> set[int]:
        """The partitions that a member shall hold."""
        self._share_out()
        return {number for number, heir in self._heirs.items() if heir is member}

    def _share_out(self) -> None:
        """Divide the partitions evenly; shares change only with the members or the topic."""
        count = self._count()
        version = (count, self._changes)
        if version == self._shared_out or not self.members:
            return
        self._shared_out = version
        held = dict.fromkeys(self.members, 0)
        for number, holder in self.holders.items():
            if number < count:
                held[holder] += 1
        least, extra = divmod(count, len(self.members))
        ranked = sorted(self.members, key=lambda member: -held[member])
        room = {member: least + (rank < extra) for rank, member in enumerate(ranked)}
        self._heirs = {}
        for number in range(count):
            holder_now = self.holders.get(number)
            if holder_now is not None and room[holder_now] > 0:
                room[holder_now] -= 1
                self._heirs[number] = holder_now
        for number in range(count):
            if number not in self._heirs:
                heir = max(self.members, key=lambda member: room[member])
                room[heir] -= 1
                self._heirs[number] = heir


class MemoryMembership:
    """One member of a group of the in-process log."""

    def __init__(self, group: Group, lock: RLock, clock: Clock, instance: str | None) -> None:
        self.instance = instance
        self.is_fenced = False
        self.silent_since_ms: int | None = None
        self._group = group
        self._lock = lock
        self._clock = clock
        self._held: set[int] = set()
        self._is_closed = False
        with lock:
            group.join(self)

    def poll(self, timeout_s: float) -> Change | None:  # noqa: ARG002 - nothing waits in memory
        """What changed since the last call; None when nothing did. Never waits.

        Raises:
            FencedError: another member joined with the same instance.
            LogError: the membership is closed.
        """
        with self._lock:
            if self._is_closed:
                raise LogError(f"group {self._group.name}: this membership is closed")
            if self.is_fenced:
                raise FencedError(
                    f"group {self._group.name}: another member joined as instance {self.instance}"
                )
            self._group.drop_silent()
            self.silent_since_ms = None
            if self not in self._group.members:
                return self._rejoin()
            return self._settle()

    def fall_silent(self) -> None:
        """Send no heartbeat until the next poll, as a killed or a stopped process does."""
        with self._lock:
            if self.silent_since_ms is None:
                self.silent_since_ms = self._clock.now_ms()

    def close(self) -> None:
        """Leave the group at once; a static instance is kept for until the session times out."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self.instance is None or self.is_fenced:
                self._group.leave(self)
            else:
                self.fall_silent()

    def leave(self) -> None:
        """Leave the group at once, also as a static instance."""
        with self._lock:
            if not self._is_closed:
                self._group.leave(self)

    def _rejoin(self) -> Change | None:
        instances = {member.instance for member in self._group.members} - {None}
        lost, self._held = self._held, set()
        if self.instance in instances:
            self.is_fenced = True
        else:
            self._group.join(self)
        return Change((), tuple(sorted(lost))) if lost else None

    def _settle(self) -> Change | None:
        holders = self._group.holders
        share = self._group.share_of(self)
        lost = self._held - share
        for number in [n for n, holder in holders.items() if holder is self and n not in share]:
            del holders[number]  # also what one of the same instance held, and was not given us
        gained = {n for n in share - self._held if holders.get(n, self) is self}
        for number in gained:
            holders[number] = self
        self._held = (self._held - lost) | gained
        return Change(tuple(sorted(gained)), tuple(sorted(lost))) if gained or lost else None
