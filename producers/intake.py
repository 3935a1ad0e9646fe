"""The steps of a submission that was read: known already? charge, publish, index.

One request takes them by itself; the lines of a bulk call take each step together, in their
order, so that a step costs one round trip and the log has them in the order of the lines.
Nothing is refunded after a charge, because a publish that failed in doubt may still be in
the log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from producers.core.answers import (
    Problem,
    another_request,
    in_doubt,
    over_limit,
    state,
    unavailable,
    unfinished,
)
from producers.core.submission import Submission
from producers.limiting import LimitKeeper
from producers.ports import Claims, Clock, Index
from producers.publisher import Publisher
from producers.refusing import RefusalLog
from schemas import codec
from schemas.front import (
    Acceptance,
    Charge,
    Claim,
    Claimed,
    Entry,
    RequestName,
    StoreDownError,
)
from schemas.log import Headers, LogError, TooLargeError, UnavailableError
from schemas.policy import Policy
from schemas.reasons import Reason
from schemas.topics import Topics

#: Accepted requests that Redis has not taken yet; beyond it their results alone are found.
UNINDEXED_MAX = 10_000


class Accepted(NamedTuple):
    """The request is in the log; `key` is its idempotency key, ours if the caller named none."""

    id: str
    key: str
    state: str


class Asked(NamedTuple):
    """A valid request and what its caller sent besides; `is_named`: with a key of its own."""

    submission: Submission
    policy: Policy
    name: RequestName
    key: str
    digest: str
    trace: bytes | None
    is_named: bool

    @property
    def passed_through(self) -> Headers:
        """Headers of the caller that go into the log."""
        return [("traceparent", self.trace)] if self.trace else ()


Answer = Accepted | Problem


class Intake:
    """Takes requests in; what it could not index yet it keeps until Redis is back."""

    def __init__(
        self,
        publisher: Publisher,
        keeper: LimitKeeper,
        index: Index,
        claims: Claims,
        refusals: RefusalLog,
        topics: Topics,
        clock: Clock,
        owner: str,
    ) -> None:
        """Hand in where each step is done; `owner` tells this ingress's claims from others'."""
        self._publisher, self._keeper, self._index = publisher, keeper, index
        self._claims, self._owner = claims, owner
        self._refusals, self._topics, self._clock = refusals, topics, clock
        #: Many lines at once hold the event loop up, and Redis's answer with it, which then seems
        #: to come too late: so while one call's are charged, the others' wait.
        self._turn = asyncio.Lock()
        self.unindexed: dict[RequestName, Acceptance] = {}

    async def take(self, asked: Asked) -> Answer:
        """Take one request in."""
        if not asked.is_named:
            return await self._charge(asked) or await self._publish(asked)
        answer = await self._known(asked)
        if answer:
            return answer
        try:
            answer = await self._charge(asked) or await self._publish(asked)
        except Exception:
            await self._let_go(asked, None)
            raise
        await self._let_go(asked, answer)
        return answer

    async def take_all(self, lines: Sequence[Asked]) -> list[Answer | Exception]:
        """Take many in, step by step; each has its own answer, or its own error."""
        answers: dict[RequestName, Answer | Exception] = {}
        async with self._turn:
            await _step(self._known, [line for line in lines if line.is_named], answers)
            begun = [line for line in lines if line.is_named and line.name not in answers]
            await _step(self._charge, lines, answers)
        await _step(self._publish, lines, answers)
        await asyncio.gather(*(self._let_go(line, answers[line.name]) for line in begun))
        return [answers[line.name] for line in lines]

    def another(self, tenant: str) -> Problem:
        """The key of a request came with another body."""
        problem = another_request()
        self._refusals.note(problem, tenant, "")
        return problem

    async def index_late(self) -> None:
        """Index what Redis did not take when it was accepted. Raises StoreDownError."""
        for name, acceptance in list(self.unindexed.items()):
            await self._index.accept(name, acceptance)
            del self.unindexed[name]

    # --- steps; None: go on with the next one

    async def _known(self, asked: Asked) -> Answer | None:
        """An earlier request of this name, or one under way elsewhere, if Redis answers."""
        found = await self._begin(asked)
        if found is None:
            return None
        known = found.entry
        digest = known.acceptance.digest if known and known.acceptance else found.digest
        if digest not in {"", asked.digest}:
            return self.another(asked.name.tenant)
        if known:
            return Accepted(asked.name.id, asked.key, state(known))
        return unfinished() if found.is_held else None

    async def _begin(self, asked: Asked) -> Claimed | None:
        late = self.unindexed.get(asked.name)
        if late:
            return Claimed(Entry(late, None, None), late.digest, is_held=False)
        if self._keeper.is_down:
            return None
        with suppress(StoreDownError):
            return await self._claims.claim(self._claim(asked))
        return None

    async def _let_go(self, asked: Asked, answer: Answer | Exception | None) -> None:
        """The POST ends: what is not in the log frees its key, what may be there keeps it.

        An acceptance is in the index, which is more than a claim. Without Redis the claim goes
        by itself, after a moment.
        """
        if isinstance(answer, Accepted) or self._keeper.is_down:
            return
        is_refused = isinstance(answer, Problem) and answer.reason is not Reason.IN_DOUBT
        end = self._claims.release if is_refused else self._claims.hold
        with suppress(StoreDownError):
            await end(self._claim(asked))

    def _claim(self, asked: Asked) -> Claim:
        return Claim(asked.name, asked.digest, self._owner)

    async def _charge(self, asked: Asked) -> Problem | None:
        submission = asked.submission
        request, endpoint = submission.request, submission.endpoint
        limit = asked.policy.limit(submission.tenant, endpoint)
        if limit is None:
            return None
        cost = endpoint.weight * request.inputs
        charge = Charge(request.tenant, request.endpoint, request.id, cost, limit)
        verdict = await self._keeper.charge(charge)
        if verdict is None:
            return unavailable("limits can't be checked: Redis does not answer")
        if verdict.is_admitted:
            return None
        problem = over_limit(charge, verdict)
        self._refusals.note(problem, request.tenant, request.endpoint, charge)
        return problem

    async def _publish(self, asked: Asked) -> Answer:
        submission, name = asked.submission, asked.name
        request, endpoint = submission.request, submission.endpoint
        topic = self._topics.requests(submission.tier)
        partition = self._topics.request_partition(endpoint.pool, request.tenant, asked.policy)

        def acceptance(offset: int) -> Acceptance:
            now_ms, tier = self._clock.now_ms(), submission.tier
            return Acceptance(endpoint.name, tier, topic, partition, offset, now_ms, asked.digest)

        try:
            offset = await self._publisher.publish(
                topic,
                partition,
                submission.body,
                key=request.tenant.encode(),
                headers=codec.header(request, asked.passed_through),
                on_late=lambda offset: self._remember(name, acceptance(offset)),
            )
        except TooLargeError as error:
            problem = Problem(Reason.BODY_TOO_LARGE, str(error))
            self._refusals.note(problem, request.tenant, "")
            return problem
        except UnavailableError as error:
            return unavailable(f"the log does not take it: {error}")
        except LogError as error:
            if not asked.is_named:  # its answer names the key: from now on it is this body's
                await self._let_go(asked, None)
            return in_doubt(name.id, asked.key, str(error))
        await self._note(name, acceptance(offset))
        return Accepted(name.id, asked.key, "waiting")

    async def _note(self, name: RequestName, acceptance: Acceptance) -> None:
        """Index an accepted request, now or when Redis is back: it is accepted anyhow."""
        if not self._keeper.is_down:
            with suppress(StoreDownError):
                await self._index.accept(name, acceptance)
                return
        self._remember(name, acceptance)

    def _remember(self, name: RequestName, acceptance: Acceptance) -> None:
        if len(self.unindexed) < UNINDEXED_MAX:
            self.unindexed[name] = acceptance


async def _step(
    step: Callable[[Asked], Awaitable[Answer | None]],
    lines: Sequence[Asked],
    answers: dict[RequestName, Answer | Exception],
) -> None:
    """One step of all that have no answer yet."""
    left = [line for line in lines if line.name not in answers]
    found = await asyncio.gather(*map(step, left), return_exceptions=True)
    for line, answer in zip(left, found, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
        if answer:
            answers[line.name] = answer
