"""The ingress: what happens to a request between the door and the log, without HTTP.

Order of a submission: authenticate, validate, predict, charge, publish, index. Whatever refuses
does so before the charge; the steps after reading are in `intake`. Answers are values:
`Accepted` and `Status`, or a `Problem`.

The process wiring makes an `Ingress`, calls `start()` in the running loop, `drain()` when it
is told to stop, and `stop()` when no call is under way any more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from producers.bodies import Bodies
from producers.core import ids
from producers.core.answers import (
    Problem,
    gone,
    not_found,
    of_faults,
    of_line_faults,
    state,
    unavailable,
)
from producers.core.lines import Line
from producers.core.listing import Page, Query
from producers.core.submission import (
    FAULTS_MAX,
    LINE_FAULTS_MAX,
    Faults,
    Fields,
    outline,
    read,
)
from producers.directory import Directory, View
from producers.flights import Flights, OneProcess
from producers.following import Followers
from producers.indexer import Indexer
from producers.intake import Accepted, Asked, Intake
from producers.limiting import LimitKeeper, Settler
from producers.listing import Listing
from producers.parts import Parts
from producers.predicting import Predictor
from producers.publisher import LINGER_MS, Publisher
from producers.refilling import Refill
from producers.refusing import RefusalLog
from producers.slices import Slices
from producers.waiting import WaitRoom
from schemas import codec
from schemas.front import Entry, RequestName, StoreDownError
from schemas.log import LogError
from schemas.policy import Tenant
from schemas.reasons import Reason
from schemas.records import VERSION, Cancel

ROUTE = ids.ROUTE
#: Longest `?wait=`, in seconds: below the idle time-outs that proxies commonly have (60 s).
WAIT_S_MAX = 30.0
#: Longest single wait for new records: how long a stop or a new assignment goes unnoticed.
POLL_S = 0.1
#: How often refusal counts and late index entries are looked after.
TICK_S = 0.25
#: Random bytes of the name of an ingress that has none: it claims keys by it, and is counted.
OWNER_BYTES = 8
#: How often the published backlog is looked at: it changes a few times a second.
BACKLOG_S = 0.1
#: What is still on its way to the log at a stop gets this long.
FLUSH_S = 5.0
#: And what the index has not taken yet so long.
INDEX_LATE_S = 5.0

log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who asks, proven by a key, and under which policy."""

    tenant: Tenant
    view: View


class Status(NamedTuple):
    """What became of a request; `body` is its output when it has ended."""

    entry: Entry
    body: bytes | None


class Ingress:
    """One ingress process, without its HTTP."""

    def __init__(self, parts: Parts) -> None:
        """Clients of the log are made here; nothing is read before `start`."""
        self._parts = parts
        self._topics, self._clock, self._index = parts.topics, parts.clock, parts.index
        self.directory = Directory(parts.log, parts.topics)
        self._publisher = Publisher(parts.log.producer(linger_ms=LINGER_MS))
        name = parts.instance or parts.random_bytes(OWNER_BYTES).hex()
        self._keeper = LimitKeeper(
            parts.limits, parts.clock, parts.when_down, name=name, meter=parts.meter
        )
        self.meter, self.random_bytes = parts.meter, parts.random_bytes
        self.room, self._listing = WaitRoom(parts.index), Listing(parts.index)
        self.predictor = Predictor(parts.backlog, parts.clock, parts.random_bytes, parts.meter)
        reading = (parts.log, parts.topics, parts.index, parts.clock, parts.offload)
        self._indexer = Indexer(
            *reading,
            parts.instance,
            self.room.ended,
            Settler(parts.limits, lambda: self.directory.view).settle,
            self.predictor.ended,
        )
        self._refill = Refill(*reading, self.directory, lambda: self._indexer.generation)
        self._bodies = Bodies(parts.log, parts.offload)
        self._refusals = RefusalLog(
            self._publisher, self.directory, parts.topics, parts.clock, parts.meter
        )
        self._intake = Intake(
            self._publisher,
            self._keeper,
            parts.index,
            parts.claims or OneProcess(parts.index),
            self._refusals,
            parts.topics,
            parts.clock,
            self.predictor,
            name,
        )
        self._flights = Flights[Accepted | Problem]()
        self._followers = Followers(parts.offload)
        self._tellers: list[Callable[[], None]] = []
        self.is_draining = False

    # --- life

    def start(self) -> None:
        """Begin to follow the log, in the running event loop."""
        directory, offload = self.directory, self._parts.offload
        start = self._followers.start
        start("directory", lambda: offload(lambda: directory.turn(POLL_S)))
        start("index", lambda: self._indexer.turn(POLL_S), self._indexer.rejoin)
        start("requests", lambda: self._refill.turn(POLL_S), self._refill.again)
        start("tick", self._tick)
        if self._parts.backlog is not None:
            start("backlog", self._follow_backlog)

    def drain(self) -> None:
        """Tell balancers to go elsewhere and end the long polls; calls are still served."""
        self.is_draining = True
        self.room.close()

    async def stop(self) -> None:
        """Stop following, publish what is left, free every client."""
        self.drain()
        await self._followers.stop()
        self._refusals.drain()
        left = await self._parts.offload(lambda: self._publisher.flush(FLUSH_S))
        if left:
            log.error("stopped with %d records unconfirmed", left)
        with suppress(StoreDownError, TimeoutError):  # after the flush: it reports late ones
            async with asyncio.timeout(INDEX_LATE_S):
                await self._intake.index_late()
        if self._intake.unindexed:
            log.error("stopped with %d requests not indexed", len(self._intake.unindexed))
        readers = (self._indexer, self._refill, self.directory, self._bodies)
        for part in (self._publisher, *readers):
            part.close()

    def why_not_ready(self) -> str:
        """What keeps this ingress from taking requests; empty when nothing does."""
        if self.is_draining:
            return "it is stopping"
        if not self.directory.is_read:
            return "it has not read policy and keys yet; is Kafka up, are the topics there?"
        if self.directory.view is None:
            return "no policy yet: run `fairlane policy apply FILE`"
        if ended := self._followers.ended():
            return f"it follows {ended} no more: another process of this name does"
        return ""

    def on_measure(self, tell: Callable[[], None]) -> None:
        """Call this whenever the meter is brought up to date."""
        self._tellers.append(tell)

    def measure(self) -> None:
        """Bring the meter up to date."""
        for tell in self._tellers:
            tell()
        self.meter.gauge("ingress_waiting_callers", len(self.room))
        self.meter.gauge("ingress_unindexed", len(self._intake.unindexed))
        self.meter.gauge("ingress_ready", int(not self.why_not_ready()))

    # --- calls

    def authenticate(self, authorization: str) -> Caller | Problem:
        """Who calls, by the Authorization header."""
        if not self.directory.is_read:
            return unavailable(self.why_not_ready())
        key = self.directory.authenticate(authorization)
        if key is None:
            return self.refuse(Reason.UNAUTHENTICATED, "no key, or not a valid one")
        view = self.directory.view
        if view is None:
            return unavailable("no policy yet: run `fairlane policy apply FILE`")
        tenant = view.tenants.get(key.tenant)
        if tenant is None:
            detail = f"the key is of tenant {key.tenant!r}, which the policy does not have"
            return self.refuse(Reason.UNKNOWN_TENANT, detail, key.tenant)
        return Caller(tenant, view)

    async def submit(
        self,
        caller: Caller,
        body: bytes,
        key: str | None = None,
        trace: bytes | None = None,
        call: str = "",
    ) -> Accepted | Problem:
        """Take a request in; `key` makes a repetition of the same body the same request."""
        asked = self._read(caller, outline(body), key, trace, call)
        if isinstance(asked, Faults):
            return self._refused(of_faults(asked.faults, asked.reason), caller, asked)
        if not asked.is_named:  # nobody else can have its key yet
            return await self._intake.take(asked)
        answer = await self._flights.share(asked, lambda: self._intake.take(asked))
        return answer or self._intake.another(caller.tenant.name)

    async def submit_all(
        self, caller: Caller, lines: Sequence[Line], trace: bytes | None = None, call: str = ""
    ) -> list[Accepted | Problem | Exception]:
        """Take many in, in their order; each has its own answer, as if it had come alone.

        A caller that goes away meanwhile changes nothing: all of them are taken in. An error
        of ours is the answer of the line that met it.
        """
        read_as: list[Asked | Problem | Exception] = []
        slices = Slices()
        for line in lines:
            read_as.append(self._read_line(caller, line, trace, call))
            await slices.between()
        valid = [asked for asked in read_as if isinstance(asked, Asked)]
        shared = iter(await self._flights.share_all(valid, self._intake.take_all))
        answers: list[Accepted | Problem | Exception] = []
        for asked in read_as:
            if isinstance(asked, Asked):
                answers.append(next(shared) or self._intake.another(caller.tenant.name))
            else:
                answers.append(asked)
        return answers

    async def status(
        self, caller: Caller, request_id: str, wait_s: float = 0.0
    ) -> Status | Problem:
        """What became of a request, after waiting up to `wait_s` for its end."""
        name = RequestName(caller.tenant.name, request_id)
        entry = await self.find(name)
        if isinstance(entry, Problem):
            return entry
        if wait_s > 0 and not entry.terminal:
            entry = await self.room.wait(name, min(wait_s, WAIT_S_MAX)) or entry
        return await self.with_body(entry)

    async def page(self, caller: Caller, query: Query) -> Page | Problem:
        """A page of the tenant's requests."""
        if self._keeper.is_down:
            return unavailable("requests can't be listed now: Redis does not answer")
        try:
            return await self._listing.page(caller.tenant.name, query, self._clock.now_ms())
        except StoreDownError as error:
            return unavailable(f"requests can't be listed now: {error}")

    async def cancel(self, caller: Caller, request_id: str) -> str | Problem:
        """Ask for the end of a request; returns its state as known now."""
        name = RequestName(caller.tenant.name, request_id)
        entry = await self.find(name)
        if isinstance(entry, Problem):
            return entry
        if entry.acceptance and not entry.terminal:
            place = entry.acceptance
            record = Cancel(VERSION, place.topic, place.partition, place.offset)
            # shard + shards * spread: see Topics.request_partition
            shard = place.partition % caller.view.policy.topology.shards
            try:
                await self._publisher.publish(self._topics.control, shard, codec.encode(record))
            except LogError as error:
                return unavailable(f"the cancel may not have been noted: {error}")
        return state(entry)

    def refuse(self, reason: Reason, detail: str, tenant: str = "") -> Problem:
        """Refuse a submission for what is outside of its body, and record it."""
        problem = Problem(reason, detail)
        self._refusals.note(problem, tenant, "")
        return problem

    # --- steps of a submission

    def _read_line(
        self, caller: Caller, line: Line, trace: bytes | None, call: str
    ) -> Asked | Problem | Exception:
        """The same for a line of many, whose error is its own."""
        try:
            read_as = self._read(caller, line.fields, line.key, trace, call, LINE_FAULTS_MAX)
            if isinstance(read_as, Asked):
                return read_as
            return self._refused(of_line_faults(read_as.faults, read_as.reason), caller, read_as)
        except Exception as error:  # noqa: BLE001 - told by who answers
            return error

    def _read(
        self,
        caller: Caller,
        fields: Fields | Faults,
        key: str | None,
        trace: bytes | None,
        call: str = "",
        faults_max: int = FAULTS_MAX,
    ) -> Asked | Faults:
        """A request with its name, or all that is wrong with it."""
        tenant, policy = caller.tenant, caller.view.policy
        used_key = key if key is not None else self._parts.random_bytes(ids.KEY_BYTES).hex()
        name = RequestName(tenant.name, ids.request_id(tenant.name, ROUTE, used_key))
        if isinstance(fields, Faults):
            return fields
        now_ms, counts = self._clock.now_ms(), self._parts.token_counts
        read_as = read(fields, policy, tenant, name.id, now_ms, faults_max, counts)
        if isinstance(read_as, Faults):
            return read_as
        digest = ids.digest(fields)
        is_named = key is not None
        return Asked(read_as, policy, name, used_key, digest, trace, is_named, call)

    def _refused(self, problem: Problem, caller: Caller, faults: Faults) -> Problem:
        self._refusals.note(problem, caller.tenant.name, faults.endpoint)
        return problem

    # --- steps of a look-up

    async def find(self, name: RequestName) -> Entry | Problem:
        """What the index knows of a request, or why that can't be told."""
        if not ids.is_request_id(name.id):
            return not_found()
        late = self._intake.unindexed.get(name)
        entry, trouble = None, "Redis does not answer" if self._keeper.is_down else ""
        if not trouble:
            try:
                entry = await self._index.lookup(name)
                if entry is None and not late and await self._index.was_listed(name):
                    return gone()
            except StoreDownError as error:
                trouble = str(error)
        if entry is None and late:
            return Entry(late, None, None)
        if trouble:
            return unavailable(f"the request can't be looked up now: {trouble}")
        if entry is None and self._clock.now_ms() < self._intake.lacks_until_ms:
            return unavailable("the request may wait and not be in the index: ask for it later")
        return entry or not_found()

    async def with_body(self, entry: Entry) -> Status | Problem:
        """An entry with its output, wherever that stands."""
        terminal = entry.terminal
        if terminal is None or entry.body is not None or not terminal.size:
            return Status(entry, entry.body)
        try:
            return Status(entry, await self._bodies.fetch(terminal))
        except LogError as error:
            return unavailable(f"the output can't be read now: {error}")

    # --- loops

    async def _follow_backlog(self) -> int:
        await self._followers.pause(BACKLOG_S)
        view = self.directory.view
        return await self.predictor.follow(view.policy if view else None)

    async def _tick(self) -> int:
        await self._followers.pause(TICK_S)
        self._refusals.tick()
        self.measure()
        await self._keeper.turn()
        await self._intake.index_late()
        return 1
