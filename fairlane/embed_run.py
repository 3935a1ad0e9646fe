"""One run: the source read once, requests kept under way, vectors into shards.

    source -> what is unchanged is passed over -> groups of rows -> requests -> sink

The source is read on only with room for another request (fairlane.embed_lanes), so memory is
bounded. A request that fails because of what is in it is halved and sent again, until the bad
rows stand alone and fail by name.

The model is asked for before the first row: what its vectors don't agree with is embedded
again. When another model answers in the middle, the run stops.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from fairlane.client_values import ClientError, Outcome, RefusedError, Submission
from fairlane.embed_groups import (
    AnswerError,
    Embedding,
    Group,
    Grouper,
    Work,
    read_answer,
    rows_per_request,
)
from fairlane.embed_lanes import Lane, Lanes
from fairlane.embed_ledger import Key, Known, Ledger, Model
from fairlane.embed_model import ask_model
from fairlane.embed_parts import Doors, Show, StopRunError, Tally, Wishes
from fairlane.embed_source import NAMED, Row, Source, chunks
from fairlane.errors import FairlaneError
from fairlane.patience import is_limit, may_pass
from schemas.reasons import Reason

if TYPE_CHECKING:
    from fairlane.embed_sink import Sink

FAILED_FILE = "_failed.jsonl"
#: How often is told how far it is, when nothing ends.
TELL_S = 1.0
#: What a run can't help: the deployment is gone, the disk is full, the ledger is broken.
_OF_THE_SYSTEM = (FairlaneError, OSError, sqlite3.Error)
#: Ends that another request without the bad row may not have.
_OF_THE_CONTENT = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.BODY_TOO_LARGE,
        Reason.NEVER_FITS,
        Reason.UNREADABLE,
        Reason.ATTEMPTS,
        Reason.ENGINE_REFUSED,
        Reason.ENGINE_FAILED,
    }
)
#: Refusals that every row of the tenant would meet.
_OF_THE_TENANT = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.UNKNOWN_ENDPOINT,
        Reason.UNKNOWN_TENANT,
        Reason.TIER_NOT_ALLOWED,
    }
)


class _OtherModelError(Exception):
    """An answer is not of the model that the run began with."""


class _Ticket:
    """A group's room; given back when all parts that it was halved into are settled."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = 1


class _Job(NamedTuple):
    """A group under way; `is_again`: its first answer was of another model."""

    group: Group
    ticket: _Ticket
    is_again: bool = False


class Run:
    """One call of `fairlane embed`."""

    def __init__(
        self, source: Source, ledger: Ledger, sink: "Sink", doors: Doors, wishes: Wishes, show: Show
    ) -> None:
        """Nothing is read or sent before `go`."""
        self._source, self._ledger, self._sink = source, ledger, sink
        self._doors, self._wishes, self._show = doors, wishes, show
        self.tally = Tally()
        self._failed_path = ledger.folder / FAILED_FILE
        self._name = ""
        self._lanes: Lanes
        self._open: dict[str, Lane | None] = {}
        self._tasks = asyncio.TaskGroup()
        self._model = Model("", "", 0)
        self._model_number = 0
        self._has_nameless = False
        self._waits_for = ""

    async def go(self, *, has_tenant: bool) -> None:
        """Do all there is to do.

        Raises:
            FairlaneError: it can't begin.
            StopRunError: it can't go on; what was embedded stands.
        """
        self._model = await ask_model(self._doors, self._source, self._wishes, self._show)
        self._ledger.fix_shape(has_tenant=has_tenant, dimensions=self._model.dimensions)
        self._model_number = self._ledger.model_number(self._model)
        self._name = self._run_name()
        for told in self._sink.tidy():
            self._show.say(told)
        self._lanes = Lanes(
            self._wishes.endpoint,
            self._wishes.outstanding,
            self._ledger.folder,
            lambda lane, group: lane.queue.put_nowait(self._submission(_Job(group, _Ticket()))),
            has_tenant=has_tenant,
        )
        try:
            with self._failed_path.open("wb") as self._failed:
                await self._through()
            self._finish()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - told by _break_off
            self._break_off(_first(error), error)  # raises
        finally:
            self._lanes.close()

    def _run_name(self) -> str:
        """What the names of requests begin with: all that their answers depend on."""
        ledger, model, wishes = self._ledger, self._model, self._wishes
        parts = (ledger.identity, str(ledger.run), wishes.endpoint, *model, wishes.tier)
        return "\n".join(map(str, (*parts, wishes.priority)))

    def _break_off(self, first: BaseException, error: BaseException) -> NoReturn:
        """Keep what there is; raises StopRunError for what the run can't help."""
        try:
            self._sink.flush()
        except _OF_THE_SYSTEM as second:
            cause = first if isinstance(first, _OF_THE_SYSTEM) else second
            raise StopRunError(str(cause)) from error
        finally:
            self.tally.embedded = self._sink.recorded
        if isinstance(first, _OF_THE_SYSTEM):
            raise StopRunError(str(first)) from error
        if first is error:
            raise error
        raise first from error

    async def _through(self) -> None:
        async with self._tasks:
            watch = self._tasks.create_task(self._doors.failed())
            pulse = self._tasks.create_task(self._pulse())
            await self._read()
            await self._lanes.drain()
            pulse.cancel()
            watch.cancel()

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._waits_for = self._lanes.waits_for()
            self._tell()

    def _finish(self) -> None:
        self._sink.flush()
        if self._wishes.prune and self._has_nameless:
            self._show.say("nothing is pruned: rows of the source could not be read")
        elif self._wishes.prune:
            self.tally.pruned = self._ledger.prune()
        self._sink.compact()
        self._ledger.end_run()
        if not self.tally.failed:
            self._failed_path.unlink(missing_ok=True)

    # --- reading

    async def _read(self) -> None:
        grouper = Grouper(self._wishes.rows_per_request or rows_per_request(self._model.dimensions))
        self._show.begin(self._source.count())
        for rows in chunks(self._source.rows()):
            for row, known in self._wanted(rows):
                work = Work(row.number, row.id, row.text, sha256(row.text.encode()).digest())
                is_same = known is not None and known[:2] == (work.digest, self._model_number)
                is_written = is_same and known is not None and known.run == self._ledger.run
                self.tally.unchanged += is_same
                if is_same and not is_written:
                    continue
                for group in grouper.add(row.tenant, work, is_written=is_written):
                    await self._send(group)
            self._tell()
            await asyncio.sleep(0)
        for group in grouper.rest():
            await self._send(group)

    def _wanted(self, rows: list[Row]) -> list[tuple[Row, Known | None]]:
        """Rows to be embedded, and what is known of them; all others fail here."""
        first: dict[Key, Row] = {}
        later: list[Row] = []
        for row in rows:
            key = Key(row.tenant, row.id)
            if row.reason and row.reason not in NAMED:
                self._has_nameless = True
                self._fail(row.number, row.id, row.reason, row.detail)
            elif key in first:
                later.append(row)
            else:
                first[key] = row
        keys = list(first)
        before = self._ledger.meet(keys)
        later += [first.pop(key) for key in keys if key in before]
        for row in later:
            self._fail(row.number, row.id, "duplicate_id", "an earlier row has the same id")
        known = self._ledger.known(list(first))
        wanted = []
        for key, row in first.items():
            if row.reason:
                self._fail(row.number, row.id, row.reason, row.detail)
            else:
                wanted.append((row, known.get(key)))
        return wanted

    def _fail(self, number: int, row_id: str, reason: str, detail: str) -> None:
        line = {"id": row_id, "row": number, "reason": reason, "detail": detail}
        self._failed.write(msgspec.json.encode(line) + b"\n")
        self._failed.flush()
        self.tally.failed += 1

    def _tell(self) -> None:
        tally = self.tally
        self._show.rows(tally.done, tally.failed, tally.embedded, self._waits_for)

    # --- requests

    async def _send(self, group: Group) -> None:
        lane = self._lane(group.tenant)
        if lane is None:
            reason, detail = self._doors.why_not(group.tenant)
            for row in group.rows:
                self._fail(row.number, row.id, reason, detail)
            return
        await self._lanes.put(lane, group)

    def _lane(self, tenant: str) -> Lane | None:
        if tenant not in self._open:
            client = self._doors.client(tenant)
            lane = self._lanes.open(tenant, client) if client else None
            self._open[tenant] = lane
            if lane:
                self._tasks.create_task(self._follow(lane))
        return self._open[tenant]

    def _submission(self, job: _Job) -> Submission:
        key = job.group.key(self._name)
        if job.is_again:
            key = f"{key}-{secrets.token_hex(8)}"  # nobody has answered this one before
        return Submission(
            self._wishes.endpoint,
            job.group.input(),
            priority=self._wishes.priority,
            tier=self._wishes.tier,
            idempotency_key=key,
            tag=job,
        )

    async def _follow(self, lane: Lane) -> None:
        """Run one tenant's requests until the queue says that there are no more."""
        outstanding = 2 * self._wishes.outstanding  # room for halves
        submissions = _all(lane.queue)
        try:
            async with aclosing(
                lane.client.run_many(submissions, outstanding=outstanding)
            ) as ended:
                async for submission, outcome in ended:
                    assert isinstance(submission.tag, _Job)
                    self._settle(submission.tag, outcome, lane)
        except ClientError as error:
            of = f"tenant {lane.tenant}: " if lane.tenant else ""
            raise StopRunError(f"{of}{error}") from error

    def _settle(self, job: _Job, ended: Outcome | RefusedError, lane: Lane) -> None:
        group, ticket = job.group, job.ticket
        if isinstance(ended, RefusedError) and is_limit(ended.status):
            self._lanes.hold_up(lane)
            lane.queue.put_nowait(self._submission(job))  # the client's patience is over, not ours
            return
        try:
            reason, detail = self._take(group, ended)
        except _OtherModelError as error:
            if job.is_again:
                raise StopRunError(str(error)) from error
            # It may be an answer of before, when the model was changed and changed back.
            lane.queue.put_nowait(self._submission(job._replace(is_again=True)))
            return
        if reason and len(group.rows) > 1 and reason in _OF_THE_CONTENT:
            ticket.parts += 1
            for half in group.halves():
                lane.queue.put_nowait(self._submission(_Job(half, ticket)))
            return
        if reason:
            for row in group.rows:
                self._fail(row.number, row.id, reason, detail)
        ticket.parts -= 1
        if not ticket.parts:
            self._lanes.done(lane)
        self._tell()

    def _take(self, group: Group, ended: Outcome | RefusedError) -> tuple[str, str]:
        """Take the vectors in; else the reason why there are none, and the detail."""
        if isinstance(ended, RefusedError):
            if may_pass(ended.status) or ended.reason in _OF_THE_TENANT:
                raise StopRunError(str(ended))
            return ended.reason or Reason.INVALID_REQUEST, ended.detail
        if not ended.is_success:
            return ended.reason, ended.detail
        try:
            model, vectors, cut = read_answer(ended, len(group.rows))
        except AnswerError as error:
            return Reason.ENGINE_FAILED, str(error)
        if model != self._model:
            raise _OtherModelError(
                f"another model answers than when this run began: it was {_told(self._model)}, "
                f"now it is {_told(model)}"
            )
        self._sink.add(
            Embedding(row.id, group.tenant, vector, model.name, model.sha256, row.digest)
            for row, vector in zip(group.rows, vectors, strict=True)
        )
        self.tally.embedded += len(vectors)
        self.tally.cut += cut
        return "", ""


async def _all(queue: asyncio.Queue[Submission | None]) -> AsyncIterator[Submission]:
    while (submission := await queue.get()) is not None:
        yield submission


def _told(model: Model) -> str:
    return f"{model.name} {model.sha256[:8]} of {model.dimensions} dimensions"


def _first(error: BaseException) -> BaseException:
    """The error itself, out of the group that tasks put it into."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
