"""The steps of a submission that was read: known already? in time? charge, publish, index.

One request takes them by itself; the lines of a bulk call take each step together, in their
order, so that a step costs one round trip and the log has them in the order of the lines.
A charge is refunded when its publish failed for certain; after one in doubt it is not, because
the request may be in the log.
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
from producers.predicting import Predictor
from producers.publisher import Publisher
from producers.refusing import RefusalLog
from schemas import codec
from schemas.front import (
    Acceptance,
    Admission,
    Charge,
    Claim,
    Claimed,
    Entry,
    LimitState,
    RequestName,
    StoreDownError,
    Verdict,
)
from schemas.log import Headers, LogError, Partition, TooLargeError, UnavailableError
from schemas.policy import UNLIMITED, Policy
from schemas.reasons import Reason
from schemas.topics import Topics

#: Accepted requests that Redis has not taken yet; beyond it their results alone are found.
UNINDEXED_MAX = 10_000


class Accepted(NamedTuple):
    """The request is in the log; `key` is its idempotency key, ours if the caller named none."""

    id: str
    key: str
    state: str
    limits: tuple[LimitState, ...] = ()


class Asked(NamedTuple):
    """A valid request and what its caller sent besides; `is_named`: with a key of its own.

    `call` is the x-request-id under which it is to be found besides its id, "" for none.
    """

    submission: Submission
    policy: Policy
    name: RequestName
    key: str
    digest: str
    trace: bytes | None
    is_named: bool
    call: str = ""
    #: Of a request that came by inbox: its place there, and what its record said besides.
    headers: Headers = ()

    @property
    def passed_through(self) -> Headers:
        """Headers of the caller that go into the log."""
        headers = [("traceparent", self.trace)] if self.trace else []
        if self.call:
            headers.append(("x-request-id", self.call.encode()))
        if self.submission.affinity_key:
            headers.append(("affinity-key", self.submission.affinity_key.encode()))
        return [*headers, *self.headers]


class _Charged(NamedTuple):
    """What an admitted request was charged, and what its call was told."""

    charge: Charge
    verdict: Verdict

    @property
    def is_new(self) -> bool:
        """Whether by this very call."""
        return self.verdict.admission is Admission.CHARGED


Answer = Accepted | Problem

#: Answers to a request that is certainly not in the log.
_UNPUBLISHED = frozenset({Reason.BODY_TOO_LARGE, Reason.UNAVAILABLE})


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
        predictor: Predictor,
        owner: str,
    ) -> None:
        """Hand in where each step is done; `owner` tells this ingress's claims from others'."""
        self._predictor = predictor
        self._publisher, self._keeper, self._index = publisher, keeper, index
        self._claims, self._owner = claims, owner
        self._refusals, self._topics, self._clock = refusals, topics, clock
        #: Many lines at once hold the event loop up, and Redis's answer with it, which then seems
        #: to come too late: so while one call's are charged, the others' wait.
        self._turn = asyncio.Lock()
        self.unindexed: dict[RequestName, Acceptance] = {}
        #: Until then a request may wait of which nothing but the log knows.
        self.lacks_until_ms = 0
        self._charged: dict[RequestName, _Charged] = {}

    async def take(self, asked: Asked) -> Answer:
        """Take one request in."""
        return await self.admit(asked) or await self.publish(asked)

    async def admit(self, asked: Asked) -> Answer | None:
        """Every step before the publish; None: it is to be published."""
        answer = await self._known(asked) if asked.is_named else None
        if answer:
            return answer
        try:
            answer = await self._predict(asked) or await self._charge(asked)
        except Exception:
            await self._close(asked, None)
            raise
        if answer:
            await self._close(asked, answer)
        return answer

    async def publish(self, asked: Asked, stuck: set[Partition] | None = None) -> Answer:
        """The last steps of what was admitted; called in order, it stands in the log in order.

        Partitions that the log did not take a record of are added to `stuck`; nothing is sent to
        one that is there.
        """
        try:
            answer = await self._publish_charged(asked, stuck)
        except Exception:
            await self._close(asked, None)
            raise
        await self._close(asked, answer)
        return answer

    async def withdraw(self, asked: Asked) -> None:
        """What was admitted is not published now; asked again, it is not charged again."""
        self._charged.pop(asked.name, None)
        self._predicted(asked, None)
        if asked.is_named and not self._keeper.is_down:
            with suppress(StoreDownError):
                await self._claims.release(self._claim(asked))

    async def recall(self, asked: Asked, place: Partition, offset: int) -> None:
        """Index a request that was found in the log: who published it may not have done so."""
        await self._note(asked, self._acceptance(asked, place, offset))

    def place(self, asked: Asked) -> Partition:
        """The request partition that it goes to."""
        submission = asked.submission
        pool, tenant = submission.endpoint.pool, submission.request.tenant
        number = self._topics.request_partition(pool, tenant, asked.policy)
        return self._topics.requests(submission.tier), number

    async def take_all(self, lines: Sequence[Asked]) -> list[Answer | Exception]:
        """Take many in, step by step; each has its own answer, or its own error."""
        answers: dict[RequestName, Answer | Exception] = {}
        async with self._turn:
            await _step(self._known, [line for line in lines if line.is_named], answers)
            begun = [line for line in lines if line.is_named and line.name not in answers]
            await _step(self._predict, lines, answers)
            await _step(self._charge, lines, answers)
        await _step(self._publish_charged, lines, answers)
        for line in lines:
            self._predicted(line, answers[line.name])
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

    async def _close(self, asked: Asked, answer: Answer | None) -> None:
        """The POST ends with this answer; None: with an error of ours."""
        self._predicted(asked, answer)
        if asked.is_named:
            await self._let_go(asked, answer)

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

    async def _predict(self, asked: Asked) -> Problem | None:
        """Refuse what could not be served in time, or may not wait."""
        submission = asked.submission
        problem = self._predictor.judge(asked.name, submission, asked.policy)
        if problem and problem.reason is not Reason.UNAVAILABLE:  # that is no refusal of anybody's
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
        charge = _charge_of(asked)
        if charge is None:
            return None
        verdict = await self._keeper.charge(charge, is_first=not asked.is_named)
        if verdict is None:
            return unavailable("limits can't be checked: Redis does not answer")
        if verdict.is_admitted:
            self._charged[asked.name] = _Charged(charge, verdict)
            return None
        problem = over_limit(charge, verdict)
        self._refusals.note(problem, charge.tenant, charge.endpoint, charge)
        return problem

    async def _publish_charged(self, asked: Asked, stuck: set[Partition] | None = None) -> Answer:
        """Publish; what is certainly not in the log is not paid for."""
        charged = self._charged.pop(asked.name, None)
        answer = await self._publish(asked, charged, set() if stuck is None else stuck)
        if charged is None:
            return answer
        if isinstance(answer, Accepted):
            return answer._replace(limits=charged.verdict.states)
        if charged.is_new and answer.reason in _UNPUBLISHED:
            await self._keeper.refund(charged.charge, charged.verdict)
        return answer

    async def _publish(
        self, asked: Asked, charged: _Charged | None, stuck: set[Partition]
    ) -> Answer:
        submission, name = asked.submission, asked.name
        request, place = submission.request, self.place(asked)
        if place in stuck:
            return unavailable("the log does not take what stands before it")

        def acceptance(offset: int) -> Acceptance:
            return self._acceptance(asked, place, offset)

        try:
            offset = await self._publisher.publish(
                *place,
                submission.body,
                key=request.tenant.encode(),
                headers=codec.header(request, asked.passed_through),
                on_late=lambda offset: self._remember(asked, acceptance(offset)),
                on_lost=lambda error: self._lost(charged, error),
            )
        except TooLargeError as error:
            problem = Problem(Reason.BODY_TOO_LARGE, str(error))
            self._refusals.note(problem, request.tenant, "")
            return problem
        except UnavailableError as error:
            stuck.add(place)
            return unavailable(f"the log does not take it: {error}")
        except LogError as error:
            if not asked.is_named:  # its answer names the key: from now on it is this body's
                await self._let_go(asked, None)
            return in_doubt(name.id, asked.key, str(error))
        self._predictor.published(name, place, offset)
        await self._note(asked, acceptance(offset))
        return Accepted(name.id, asked.key, "waiting")

    def _lost(self, charged: _Charged | None, error: LogError) -> None:
        """What was in doubt is certainly not in the log: not paid for, unless it was sent again."""
        if charged and charged.is_new and isinstance(error, TooLargeError | UnavailableError):
            self._keeper.refund_soon(charged.charge, charged.verdict)

    def _acceptance(self, asked: Asked, place: Partition, offset: int) -> Acceptance:
        endpoint, tier = asked.submission.endpoint.name, asked.submission.tier
        now_ms = self._clock.now_ms()
        return Acceptance(endpoint, tier, *place, offset, now_ms, asked.digest, asked.call)

    async def _note(self, asked: Asked, acceptance: Acceptance) -> None:
        """Index an accepted request, now or when Redis is back: it is accepted anyhow."""
        if not self._keeper.is_down:
            with suppress(StoreDownError):
                await self._index.accept(asked.name, acceptance)
                return
        self._remember(asked, acceptance)

    def _remember(self, asked: Asked, acceptance: Acceptance) -> None:
        if len(self.unindexed) < UNINDEXED_MAX:
            self.unindexed[asked.name] = acceptance
        else:
            longest_ms = acceptance.accepted_ms + asked.submission.endpoint.wait_ms_max
            self.lacks_until_ms = max(self.lacks_until_ms, longest_ms)


def _charge_of(asked: Asked) -> Charge | None:
    """What a request takes from its tenant's limits and its parent's; None: there are none."""
    submission, policy = asked.submission, asked.policy
    request, endpoint, tenant = submission.request, submission.endpoint, submission.tenant
    allowance = policy.allowance(tenant, endpoint)
    parent = policy.tenant(tenant.parent) if tenant.parent else None
    above = policy.allowance(parent, endpoint) if parent else UNLIMITED
    if allowance.is_unlimited and above.is_unlimited:
        return None
    output_tokens = request.output_tokens_max or endpoint.output_tokens_default
    return Charge(
        request.tenant,
        request.endpoint,
        request.id,
        endpoint.weight * request.inputs,
        endpoint.weight * (request.input_tokens + output_tokens),
        allowance,
        parent.name if parent else "",
        above,
        endpoint.weight,
    )


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
