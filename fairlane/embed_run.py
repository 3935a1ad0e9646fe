"""One run: the source read once, requests kept under way, vectors into shards.

    source -> what is unchanged is passed over -> groups of rows -> requests -> sink

At most `outstanding` groups are under way, whatever their tenants: the source is read on only
with room, so memory is bounded. A request that fails because of what is in it is halved and
sent again, until the bad rows stand alone and fail by name.

The model is asked for before the first row: what its vectors don't agree with is embedded
again. When another model answers in the middle, the run stops.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fairlane.client import AsyncClient
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
from fairlane.embed_ledger import Known, Ledger, Model
from fairlane.embed_source import Row, Source
from fairlane.errors import FairlaneError
from fairlane.patience import is_limit, may_pass
from schemas.reasons import Reason

if TYPE_CHECKING:
    from fairlane.embed_sink import Sink

FAILED_FILE = "_failed.jsonl"
#: Rows looked up in the ledger at once.
CHUNK_ROWS = 500
#: What the model is asked for to know it.
PROBE = "fairlane"
#: A row with one of these is known by its id.
_NAMED = frozenset({"no_text", "no_tenant"})
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


class StopRunError(Exception):
    """The run can't go on; what is left is done by running it again."""


class Wishes(NamedTuple):
    """What was asked for. `rows_per_request` 0: as many as fit well."""

    endpoint: str
    outstanding: int
    rows_per_request: int = 0
    tier: str | None = None
    priority: int | None = None
    prune: bool = False


class Doors(Protocol):
    """Ways into a deployment, one a tenant."""

    def probe(self) -> AsyncClient:
        """A client of any tenant."""

    def client(self, tenant: str) -> AsyncClient | None:
        """The tenant's client; None when there is no key of it."""

    async def failed(self) -> None:
        """Return never, unless the deployment behind can't go on: raises FairlaneError."""


class Show(Protocol):
    """Who is told how far it is."""

    def begin(self, total: int) -> None:
        """Reading begins; there are about so many rows."""

    def rows(self, done: int, failed: int) -> None:
        """So many rows are done, of them so many failed."""

    def say(self, text: str) -> None:
        """Something to know."""


class Tally:
    """What became of the rows of this call."""

    def __init__(self) -> None:
        self.embedded = self.unchanged = self.failed = self.pruned = 0

    @property
    def done(self) -> int:
        """Rows that need nothing more."""
        return self.embedded + self.unchanged + self.failed


class _Ticket:
    """A group's room; given back when all parts that it was halved into are settled."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = 1


class _Job(NamedTuple):
    group: Group
    ticket: _Ticket


_Queue = asyncio.Queue[Submission | None]


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
        self._name = f"{ledger.identity}/{ledger.run}/{wishes.endpoint}"
        self._room = asyncio.Semaphore(wishes.outstanding)
        self._queues: dict[str, _Queue | None] = {}
        self._tasks = asyncio.TaskGroup()
        self._model = Model("", "", 0)
        self._model_number = 0
        self._has_nameless = False

    async def go(self, *, has_tenant: bool) -> None:
        """Do all there is to do.

        Raises:
            FairlaneError: it can't begin.
            StopRunError: it can't go on; what was embedded stands.
        """
        self._model = await self._ask_model()
        self._ledger.fix_shape(has_tenant=has_tenant, dimensions=self._model.dimensions)
        self._model_number = self._ledger.model_number(self._model)
        for told in self._sink.tidy():
            self._show.say(told)
        with self._failed_path.open("wb") as self._failed:
            try:
                await self._through()
            except (Exception, asyncio.CancelledError) as error:
                self._sink.flush()
                first = _first(error)
                if isinstance(first, FairlaneError):  # it had begun
                    raise StopRunError(str(first)) from error
                if first is error:
                    raise
                raise first from error
        self._finish()

    async def _ask_model(self) -> Model:
        wishes = self._wishes
        submission = Submission(
            wishes.endpoint,
            {"input": [PROBE], "encoding_format": "base64"},
            priority=wishes.priority,
            tier=wishes.tier,
        )
        client = self._doors.probe()
        try:
            accepted = await client.submit(submission)
            outcome = (await client.wait(accepted.id)).raise_for_state()
            return read_answer(outcome, 1)[0]
        except (ClientError, AnswerError) as error:
            raise FairlaneError(
                f"endpoint {wishes.endpoint!r} gives no vectors: {error}"
            ) from error

    async def _through(self) -> None:
        async with self._tasks:
            watch = self._tasks.create_task(self._doors.failed())
            await self._read()
            for _ in range(self._wishes.outstanding):  # all room is back: nothing is under way
                await self._room.acquire()
            for queue in self._queues.values():
                if queue:
                    queue.put_nowait(None)
            watch.cancel()

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
        for rows in _chunks(self._source.rows()):
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
        first: dict[str, Row] = {}
        later: list[Row] = []
        for row in rows:
            if row.reason and row.reason not in _NAMED:
                self._has_nameless = True
                self._fail(row.number, row.id, row.reason, row.detail)
            elif row.id in first:
                later.append(row)
            else:
                first[row.id] = row
        ids = list(first)
        before = self._ledger.meet(ids)
        later += [first.pop(row_id) for row_id in ids if row_id in before]
        for row in later:
            self._fail(row.number, row.id, "duplicate_id", "an earlier row has the same id")
        known = self._ledger.known(list(first))
        wanted = []
        for row in first.values():
            if row.reason:
                self._fail(row.number, row.id, row.reason, row.detail)
            else:
                wanted.append((row, known.get(row.id)))
        return wanted

    def _fail(self, number: int, row_id: str, reason: str, detail: str) -> None:
        line = {"id": row_id, "row": number, "reason": reason, "detail": detail}
        self._failed.write(msgspec.json.encode(line) + b"\n")
        self._failed.flush()
        self.tally.failed += 1

    def _tell(self) -> None:
        self._show.rows(self.tally.done, self.tally.failed)

    # --- requests

    async def _send(self, group: Group) -> None:
        queue = self._queue(group.tenant)
        if queue is None:
            detail = f"no key of tenant {group.tenant!r}: give --tenant-key {group.tenant}=KEY"
            for row in group.rows:
                self._fail(row.number, row.id, "no_key", detail)
            return
        await self._room.acquire()
        queue.put_nowait(self._submission(_Job(group, _Ticket())))

    def _queue(self, tenant: str) -> _Queue | None:
        if tenant not in self._queues:
            client = self._doors.client(tenant)
            queue: _Queue | None = asyncio.Queue() if client else None
            self._queues[tenant] = queue
            if client and queue:
                self._tasks.create_task(self._follow(tenant, client, queue))
        return self._queues[tenant]

    def _submission(self, job: _Job) -> Submission:
        return Submission(
            self._wishes.endpoint,
            job.group.input(),
            priority=self._wishes.priority,
            tier=self._wishes.tier,
            idempotency_key=job.group.key(self._name),
            tag=job,
        )

    async def _follow(self, tenant: str, client: AsyncClient, queue: _Queue) -> None:
        """Run one tenant's requests until the queue says that there are no more."""
        outstanding = 2 * self._wishes.outstanding  # room for halves
        try:
            async with aclosing(client.run_many(_all(queue), outstanding=outstanding)) as ended:
                async for submission, outcome in ended:
                    assert isinstance(submission.tag, _Job)
                    self._settle(submission.tag, outcome, queue)
        except ClientError as error:
            of = f"tenant {tenant}: " if tenant else ""
            raise StopRunError(f"{of}{error}") from error

    def _settle(self, job: _Job, ended: Outcome | RefusedError, queue: _Queue) -> None:
        group, ticket = job
        if isinstance(ended, RefusedError) and is_limit(ended.status):
            queue.put_nowait(self._submission(job))  # the client's patience is over, not ours
            return
        reason, detail = self._take(group, ended)
        if reason and len(group.rows) > 1 and reason in _OF_THE_CONTENT:
            ticket.parts += 1
            for half in group.halves():
                queue.put_nowait(self._submission(_Job(half, ticket)))
            return
        if reason:
            for row in group.rows:
                self._fail(row.number, row.id, reason, detail)
        ticket.parts -= 1
        if not ticket.parts:
            self._room.release()
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
            model, vectors = read_answer(ended, len(group.rows))
        except AnswerError as error:
            return Reason.ENGINE_FAILED, str(error)
        if model != self._model:
            raise StopRunError(
                f"another model answers than before: {_told(self._model)} then, {_told(model)} now"
            )
        self._sink.add(
            Embedding(row.id, group.tenant, vector, model.name, model.sha256, row.digest)
            for row, vector in zip(group.rows, vectors, strict=True)
        )
        self.tally.embedded += len(vectors)
        return "", ""


async def _all(queue: _Queue) -> AsyncIterator[Submission]:
    while (submission := await queue.get()) is not None:
        yield submission


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk


def _told(model: Model) -> str:
    return f"{model.name} {model.sha256[:8]} of {model.dimensions} dimensions"


def _first(error: BaseException) -> BaseException:
    """The error itself, out of the group that tasks put it into."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
