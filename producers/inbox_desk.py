"""The inboxes of one bucket: taken in exactly once, answered exactly once.

A cycle: read, judge, publish what is let in and wait until it stands, commit. The commit is a
transaction of answers, copies of results and positions; requests are published outside of
it, because an open transaction would hold up everybody who reads their partition.

What that leaves to be done by other means:
- A request that stands while its position is not committed: it carries its position, and who
  takes over reads it back (`inbox_takeover`).
- A publish in doubt, a commit in doubt, any error at all: everything here is dropped, what the
  client still has under way ends, and the log is read back. Nothing is guessed.
- A predecessor that is not dead: its commits are fenced by the transactional id. Its late
  publish is not; the request's id is the same, and the scheduler drops the second one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from producers.core.answers import Problem
from producers.core.inbox_answers import Answer, lost
from producers.core.inbox_marks import MARKS_MAX
from producers.directory import View
from producers.inbox_backlog import Backlog
from producers.inbox_copying import Copies
from producers.inbox_judging import Fate, judge, withdraw
from producers.inbox_reading import Mail, overtaken, read_mail
from producers.inbox_takeover import Standing, find_sources, group, look_back
from producers.intake import Asked, Intake
from producers.ports import Clock, Offload
from producers.publisher import Publisher
from producers.refusing import RefusalLog
from schemas.front import Ending
from schemas.log import (
    InDoubtError,
    Log,
    Partition,
    Reader,
    Record,
    TransactionalProducer,
    UnavailableError,
)
from schemas.policy import Inbox
from schemas.reasons import TABLE, Retry
from schemas.topics import Topics, bucket

POLL_RECORDS = 1_000
#: What is only let in is committed so often: until then it would be read back.
COMMIT_MS = 200
#: Marks move up so often: what has come since then is read at a take-over.
MARKS_MS = 5_000
#: Brokers forget positions that nobody committed for a week.
REFRESH_MS = 3_600_000
#: A cycle that took longer may be somebody else's by now (members are missed after 6 s).
STALE_MS = 3_000
#: Topics that were missing are looked for again.
MISSING_MS = 10_000
#: What the client has under way is over by then: delivered, or given up.
FLUSH_S = 15.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeskParts:
    """What the desks of a process share.

    `count` counts records by outcome, `ended` is told the outcomes of requests.
    """

    log: Log
    topics: Topics
    publisher: Publisher
    intake: Intake
    refusals: RefusalLog
    clock: Clock
    offload: Offload
    count: Callable[[str, int], None]
    ended: Callable[[Ending], None]


class Desk:
    """Whoever holds the bucket; one turn at a time."""

    def __init__(self, parts: DeskParts, number: int) -> None:
        """Nothing is taken over before the first turn."""
        self._parts, self._number = parts, number
        topics = parts.topics
        self._results: Partition = (topics.results, number)
        self._producer: TransactionalProducer = parts.log.transactional(
            f"{topics.prefix}.inbox.{number}"
        )
        self._reader: Reader = parts.log.reader(ahead=False)
        self._standing: Standing | None = None
        self._backlog, self._copies = Backlog(()), Copies()
        self._view: View | None = None
        self._tenants: tuple[str, ...] = ()
        self._dirty: set[Partition] = set()
        self._committed_ms = self._marked_ms = self._refreshed_ms = self._looked_ms = 0

    async def turn(self, view: View, timeout_s: float) -> int:
        """One cycle; waits up to `timeout_s` when there is nothing. Returns how much was done.

        Raises LogError or StoreDownError; then the next turn takes over again.
        """
        try:
            return await self._turn(view, timeout_s)
        except BaseException:
            self.drop()
            raise

    async def finish(self) -> None:
        """Commit what is done, before somebody else goes on."""
        if self._standing is not None and self._dirty:
            standing = self._standing
            await self._parts.offload(lambda: self._commit(standing, ()))

    def held(self) -> int:
        """How many inboxes wait for room now."""
        return len(self._backlog.held(self._parts.clock.now_ms()))

    def drop(self) -> None:
        """Forget everything that the log can tell."""
        self._standing, self._backlog, self._copies = None, Backlog(()), Copies()
        self._dirty.clear()

    def close(self) -> None:
        """Free the clients."""
        self.drop()
        self._reader.close()
        self._producer.close()

    # --- a cycle

    async def _turn(self, view: View, timeout_s: float) -> int:
        parts, began_ms = self._parts, self._parts.clock.now_ms()
        standing = self._standing
        is_changed = self._follow(view)
        if not self._tenants:
            self.drop()
            return 0
        if standing is None or is_changed or self._is_incomplete(standing, began_ms):
            await parts.offload(self._take_over)
            return 1  # it may have taken a while: whether it is still ours is asked first
        await parts.offload(lambda: self._read(standing, timeout_s))
        answers = self._copies.take()
        work = _Work([], {}, answers)
        done = copied = len(answers)
        for part, fates in await self._judge(standing, view):
            count = self._sort(standing, fates, work)
            await withdraw(fates[count:], parts.intake)
            done += count
            if behind := self._backlog.done(part, count):
                work.behind[part] = behind
        await self._publish(standing, work, began_ms)
        self._advance(standing, work)
        parts.count("published", len(work.admitted))
        parts.count("answered", len(answers) - copied)
        parts.count("copied", copied)
        if self._is_due(standing, answers, parts.clock.now_ms()):
            await parts.offload(lambda: self._commit(standing, answers))
        return done

    def _follow(self, view: View) -> bool:
        """Note whose inboxes are here; True when they are others than before."""
        if view is self._view:
            return False
        before, buckets = self._tenants, view.policy.topology.buckets
        self._view = view
        self._tenants = tuple(
            tenant.name
            for tenant in view.policy.tenants
            if tenant.inbox is not Inbox.OFF and bucket(tenant.name, buckets) == self._number
        )
        return before != self._tenants

    def _is_incomplete(self, standing: Standing, now_ms: int) -> bool:
        """Whether a topic was missing, and it is time to look again."""
        if now_ms - self._looked_ms < MISSING_MS:
            return False
        return len({source.tenant for source in standing.sources.values()}) < len(self._tenants)

    def _take_over(self) -> Standing:
        """Blocking: become the one who commits, then read back what was done."""
        parts, topics = self._parts, self._parts.topics
        self.drop()
        if left := parts.publisher.flush(FLUSH_S):
            raise UnavailableError(f"{left} records are still on their way to the log")
        self._producer.init()
        self._looked_ms = parts.clock.now_ms()
        sources = find_sources(parts.log, topics, self._tenants)
        standing = look_back(parts.log, self._reader, topics, sources, self._results)
        self._dirty = set(standing.positions)
        self._commit(standing, [lost(*gap) for gap in standing.gaps])
        self._backlog = Backlog(sources)
        served = {source.tenant for source in sources.values()}
        self._copies = Copies(standing.positions[self._results], served, parts.ended)
        self._reader.assign(standing.positions)
        self._standing = standing
        found = sum(map(len, standing.seen.values()))
        log.info("bucket %d: %d inboxes; %d requests were in", self._number, len(served), found)
        return standing

    def _read(self, standing: Standing, timeout_s: float) -> None:
        """Blocking: read on, but not of what is held or far ahead."""
        now_ms, backlog, copies = self._parts.clock.now_ms(), self._backlog, self._copies
        paused = backlog.paused(now_ms)
        self._reader.pause(paused | {self._results} if copies.is_full else paused)
        wait_s = 0.0 if copies.is_ready or backlog.is_ready(now_ms) else timeout_s
        for record in self._reader.poll(POLL_RECORDS, wait_s):
            if record.topic == self._results[0]:
                copies.put(record)
            else:
                backlog.put(record)
        if standing.positions[self._results] != copies.position:
            self._dirty.add(self._results)

    async def _judge(self, standing: Standing, view: View) -> list[tuple[Partition, list[Fate]]]:
        """Fates of what this cycle takes, each inbox by itself."""
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        shares = self._backlog.shares(now_ms)

        def mail(part: Partition, record: Record) -> Mail:
            source, stand = standing.sources[part], standing.seen[part].get(record.offset)
            read = read_mail(record, source, view.tenants[source.tenant], view, now_ms)
            if stand or not isinstance(read.asked, Asked):
                return read._replace(stand=stand)
            if not standing.seen[part]:
                return read
            if standing.is_overtaken(part, record.offset, parts.intake.place(read.asked)):
                return read._replace(asked=overtaken())
            return read

        judged = await asyncio.gather(
            *(
                judge(
                    [mail(part, record) for record in records],
                    view.tenants[standing.sources[part].tenant].inbox,
                    parts.intake,
                    parts.refusals,
                )
                for part, records in shares
            ),
            return_exceptions=True,
        )
        found: list[tuple[Partition, list[Fate]]] = []
        failures: list[BaseException] = []
        for (part, _), outcome in zip(shares, judged, strict=True):
            if isinstance(outcome, BaseException):
                failures.append(outcome)
                continue
            found.append((part, outcome.fates))
            if outcome.hold_s:
                self._backlog.hold(part, now_ms + outcome.hold_s * 1_000)
        if failures:
            for _, fates in found:
                await withdraw(fates, parts.intake)
            raise failures[0]
        return found

    def _sort(self, standing: Standing, fates: Sequence[Fate], work: "_Work") -> int:
        """Add what is to be published and answered; returns how many fates were looked at.

        Fewer than all when their request partitions can't all be marked at a time.
        """
        for count, fate in enumerate(fates):
            if isinstance(fate, Answer):
                work.answers.append(fate)
            elif fate is not None:
                assert isinstance(fate.asked, Asked)
                place = self._parts.intake.place(fate.asked)
                marked = work.places if standing.is_caught_up else {*standing.marks, *work.places}
                if place not in marked and len(marked) >= MARKS_MAX:
                    return count
                work.places.add(place)
                work.admitted.append((fate, fate.asked))
        return len(fates)

    async def _publish(self, standing: Standing, work: "_Work", began_ms: int) -> None:
        """Publish what is let in, and wait until all of it stands."""
        parts = self._parts
        try:
            if missing := work.places - standing.marks.keys():
                await parts.offload(lambda: self._mark(standing, work.places, missing))
            if parts.clock.now_ms() - began_ms > STALE_MS and work.admitted:
                raise UnavailableError("a cycle took too long: somebody else may go on by now")
        except Exception:
            await withdraw([mail for mail, _ in work.admitted], parts.intake)
            raise
        published = await asyncio.gather(*(parts.intake.publish(a) for _, a in work.admitted))
        for (mail, _), answer in zip(work.admitted, published, strict=True):
            if not isinstance(answer, Problem):
                continue
            if TABLE[answer.reason].retry is not Retry.NEVER:
                raise InDoubtError(f"{mail.record.place}: {answer.detail}; the log is read back")
            work.answers.append(mail.refusal(answer))

    def _advance(self, standing: Standing, work: "_Work") -> None:
        """Everything below the new positions is done."""
        for part, behind in work.behind.items():
            standing.positions[part] = behind
            standing.forget_below(part, behind)
        standing.positions[self._results] = self._copies.position
        self._dirty.update(work.behind)

    # --- commits

    def _is_due(self, standing: Standing, answers: Sequence[Answer], now_ms: int) -> bool:
        if now_ms - self._refreshed_ms >= REFRESH_MS:
            self._dirty.update(standing.positions)
        waited_ms = now_ms - self._committed_ms
        if self._dirty <= {self._results}:  # others' results alone are no reason
            return bool(answers) or (bool(self._dirty) and waited_ms >= MARKS_MS)
        return bool(answers) or waited_ms >= COMMIT_MS

    def _mark(self, standing: Standing, places: set[Partition], missing: set[Partition]) -> None:
        """Blocking: commit from where on the partitions may hold what is published next."""
        if len(standing.marks) + len(missing) > MARKS_MAX:
            standing.marks = {part: standing.marks[part] for part in places - missing}
        standing.marks |= {part: self._reader.bounds(part).end for part in missing}
        self._commit(standing, ())

    def _commit(self, standing: Standing, answers: Sequence[Answer]) -> None:
        """Blocking: answers and positions in one transaction; nothing is on its way meanwhile."""
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        if standing.is_caught_up and now_ms - self._marked_ms >= MARKS_MS:
            standing.marks = {part: self._reader.bounds(part).end for part in standing.marks}
            self._marked_ms = now_ms
        commits = standing.commits(parts.topics)
        self._producer.begin()
        for answer in answers:
            topic = parts.topics.results_of(answer.tenant)
            self._producer.send(topic, 0, answer.value, key=answer.key, headers=answer.headers)
        changed = {p: c for p, c in commits.items() if p in self._dirty or p == self._results}
        self._producer.send_offsets(group(parts.topics), changed)
        self._producer.commit()
        if self._dirty >= standing.positions.keys():
            self._refreshed_ms = now_ms
        self._committed_ms = now_ms
        self._dirty.clear()


@dataclass(slots=True)
class _Work:
    """What one cycle does."""

    admitted: list[tuple[Mail, Asked]]
    behind: dict[Partition, int]
    answers: list[Answer]
    places: set[Partition] = field(default_factory=set)
