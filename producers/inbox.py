"""Inboxes: the bus itself as a door, for tenants that have credentials of their own there.

A tenant's requests stand in `inbox.<tenant>`, and what becomes of them in `results.<tenant>`.
Processes share the inboxes out by bucket of the tenant: whoever holds a partition of
`results` holds the inboxes of its tenants, and copies its results (`inbox_desk`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from producers.directory import Directory
from producers.flights import OneProcess
from producers.following import Followers, Offloaded
from producers.inbox_desk import Desk, DeskParts
from producers.ingress import BACKLOG_S, OWNER_BYTES
from producers.intake import Intake
from producers.limiting import LimitKeeper, WhenDown
from producers.ports import (
    BacklogReader,
    Claims,
    Clock,
    Index,
    Limits,
    Meter,
    Offload,
    RandomBytes,
)
from producers.predicting import Predictor
from producers.publisher import Publisher
from producers.refusing import RefusalLog
from schemas.log import FencedError, Log, LogError, Membership
from schemas.topics import Topics

#: Longest single wait for new records: how long a stop or a new assignment goes unnoticed.
POLL_S = 0.1
#: How often refusal counts and late index entries are looked after.
TICK_S = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InboxParts:
    """Everything it is made of; see `fairlane` for the wiring.

    `instance` names a static member of the group that shares the buckets out. `elapsed_ms` only
    goes forward, also while the process is stopped.
    """

    log: Log
    topics: Topics
    limits: Limits
    index: Index
    clock: Clock
    elapsed_ms: Callable[[], int]
    meter: Meter
    random_bytes: RandomBytes
    offload: Offload = asyncio.to_thread
    instance: str | None = None
    when_down: WhenDown = WhenDown.DEGRADED
    #: None: there is no other ingress.
    claims: Claims | None = None
    #: None: nothing is refused by predicted waits.
    backlog: BacklogReader | None = None


class Inboxes:
    """One process that takes inboxes in."""

    def __init__(self, parts: InboxParts) -> None:
        """Clients of the log are made here; nothing is read before `start`."""
        self._parts, self._topics = parts, parts.topics
        self._offload = Offloaded(parts.offload)
        self.directory = Directory(parts.log, parts.topics)
        self._publisher = Publisher(parts.log.producer())
        # Not the name of the ingress of this instance, whose claims and share are its own.
        name = f"inbox.{parts.instance or parts.random_bytes(OWNER_BYTES).hex()}"
        self._keeper = LimitKeeper(
            parts.limits, parts.clock, parts.when_down, name=name, meter=parts.meter
        )
        self._predictor = Predictor(
            parts.backlog, parts.clock, parts.random_bytes, parts.meter, may_hold=True
        )
        self._refusals = RefusalLog(self._publisher, self.directory, parts.topics, parts.clock)
        self._intake = Intake(
            self._publisher,
            self._keeper,
            parts.index,
            parts.claims or OneProcess(parts.index),
            self._refusals,
            parts.topics,
            parts.clock,
            self._predictor,
            name,
        )
        self._desk_parts = DeskParts(
            parts.log,
            parts.topics,
            self._publisher,
            self._intake,
            self._refusals,
            parts.clock,
            parts.elapsed_ms,
            self._offload,
            lambda outcome, count: parts.meter.count("inbox_records", count, outcome=outcome),
            lambda ending: self._predictor.ended([ending]),
        )
        self._membership: Membership | None = None
        self._desks: dict[int, Desk] = {}
        self._was_busy = False
        self._followers = Followers(self._offload)

    # --- life

    def start(self) -> None:
        """Begin to follow the log, in the running event loop."""
        directory, offload = self.directory, self._offload
        self._followers.start("directory", lambda: offload(lambda: directory.turn(POLL_S)))
        self._followers.start("inboxes", lambda: self.turn(POLL_S))
        self._followers.start("tick", self._tick)
        if self._parts.backlog is not None:
            self._followers.start("backlog", self._follow_backlog)

    def ended(self) -> str:
        """What it follows no more, because another process of its name does."""
        return self._followers.ended()

    async def stop(self) -> None:
        """Commit what is done, leave, free every client."""
        await self._followers.stop()
        await self._offload.ended()
        self._refusals.drain()
        for number, desk in self._desks.items():
            try:
                await desk.finish()
            except LogError as error:  # whoever goes on reads it back
                log.warning("bucket %d: left without its last position: %s", number, error)
        await self._offload(self._close)

    def _close(self) -> None:
        self._leave()
        self._publisher.close()
        self.directory.close()

    # --- turns

    async def turn(self, timeout_s: float) -> int:
        """Let every bucket that is held have its turn; returns how much was done.

        Waits up to `timeout_s` when there is nothing to do. Raises what one bucket failed with,
        LogError or StoreDownError mostly, after the others had their turns.
        """
        view = self.directory.view
        if view is None or not await self._offload(self._is_member):
            return 0
        wait_s = 0.0 if self._was_busy or not self._desks else timeout_s / len(self._desks)
        crowd = sum(desk.crowd() for desk in self._desks.values())
        done, failures = 0, list[Exception]()
        for desk in list(self._desks.values()):
            try:
                done += await desk.turn(view, wait_s, crowd)
            except FencedError as error:
                log.warning("left to another process: %s", error)
                await self._offload(self._leave)
                break
            except Exception as error:  # noqa: BLE001 - told by who called, after the others' turns
                failures.append(error)
        self._was_busy = bool(done)
        held = sum(desk.held() for desk in self._desks.values())
        self._parts.meter.gauge("inbox_held", held)
        if failures:
            raise failures[0]
        return done

    def _is_member(self) -> bool:
        """Blocking: take part in the group, and follow what it assigns."""
        topic = self._topics.results
        if self._membership is None:
            if not self._parts.log.partitions(topic):
                return False  # `fairlane policy apply` makes it
            self._membership = self._parts.log.membership(
                f"{self._topics.prefix}.inbox.members", topic, self._parts.instance
            )
        change = self._membership.poll(0)
        if change:
            for number in change.lost:
                if desk := self._desks.pop(number, None):
                    desk.close()
            for number in set(change.gained) - self._desks.keys():
                self._desks[number] = Desk(self._desk_parts, number)
        return True

    def _leave(self) -> None:
        """Blocking: hold nothing any more; the next turn joins again."""
        for desk in self._desks.values():
            desk.close()
        self._desks.clear()
        membership, self._membership = self._membership, None
        if membership:
            membership.close()

    async def _follow_backlog(self) -> int:
        await self._followers.pause(BACKLOG_S)
        view = self.directory.view
        return await self._predictor.follow(view.policy if view else None)

    async def _tick(self) -> int:
        await self._followers.pause(TICK_S)
        self._refusals.tick()
        await self._keeper.turn()
        await self._intake.index_late()
        return 1
