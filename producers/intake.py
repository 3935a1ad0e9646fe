"""The steps of a submission that was read: known already? in time? charge, publish, index.

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
)
from producers.core.submission import Submission
from producers.limiting import LimitKeeper
from producers.ports import Clock, Index
from producers.predicting import Predictor
from producers.publisher import Publisher
from producers.refusing import RefusalLog
from schemas import codec
from schemas.front import Acceptance, Charge, Entry, RequestName, StoreDownError
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
        refusals: RefusalLog,
        topics: Topics,
        clock: Clock,
        predictor: Predictor,
    ) -> None:
        """Hand in where each step is done."""
        self._predictor = predictor
        self._publisher, self._keeper, self._index = publisher, keeper, index
        self._refusals, self._topics, self._clock = refusals, topics, clock
        #: Many lines at once hold the event loop up, and Redis's answer with it, which then seems
        #: to come too late: so while one call's are charged, the others' wait.
        self._turn = asyncio.Lock()
        self.unindexed: dict[RequestName, Acceptance] = {}

    async def take(self, asked: Asked) -> Answer:
        """Take one request in."""
        answer = await self._known(asked) if asked.is_named else None
        answer = answer or await self._predict(asked)
        try:
            answer = answer or await self._charge(asked)
            answer = answer or await self._publish(asked)
        finally:
            self._predicted(asked, answer)
        return answer

    async def take_all(self, lines: Sequence[Asked]) -> list[Answer | Exception]:
        """Take many in, step by step; each has its own answer, or its own error."""
        answers: dict[RequestName, Answer | Exception] = {}
        async with self._turn:
            await _step(self._known, [line for line in lines if line.is_named], answers)
            await _step(self._predict, lines, answers)
            await _step(self._charge, lines, answers)
        await _step(self._publish, lines, answers)
        for line in lines:
            self._predicted(line, answers[line.name])
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
        """An earlier request of this name, if Redis answers."""
        known = await self._look_up(asked.name)
        if known is None:
            return None
        digest = known.acceptance.digest if known.acceptance else ""
        if digest not in {"", asked.digest}:
            return self.another(asked.name.tenant)
        return Accepted(asked.name.id, asked.key, state(known))

    async def _look_up(self, name: RequestName) -> Entry | None:
        late = self.unindexed.get(name)
        if late:
            return Entry(late, None, None)
        if self._keeper.is_down:
            return None
        with suppress(StoreDownError):
            return await self._index.lookup(name)
        return None

    async def _predict(self, asked: Asked) -> Problem | None:
        """Refuse what could not be served in time, or may not wait."""
        submission = asked.submission
        problem = self._predictor.judge(asked.name, submission, asked.policy)
        if problem:
            request = submission.request
            self._refusals.note(problem, request.tenant, request.endpoint)
        return problem

    def _predicted(self, asked: Asked, answer: Answer | Exception | None) -> None:
        """Whether it was let in in the end; in doubt it was."""
        is_in = isinstance(answer, Accepted)
        if isinstance(answer, Problem):
            is_in = answer.reason is Reason.IN_DOUBT
        self._predictor.settle(asked.name, is_in=is_in)

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
