"""Who could not be served in time is told so at once: predicted waits and waiting limits.

`follow` reads what schedulers publish (`schemas.backlog`); `judge` looks at one request before
it is charged. What it lets in counts from then on, and is withdrawn if a later step refuses it.
Nothing is refused on what is stale: while Redis or the scheduler is away all are let in.

One in a hundred of those who would be refused is let in all the same, and one whenever a pool
stands idle: its wait is measured, so that an estimate that is wrong is put right by what really
happens.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from producers.core.advice import OVER_MS_MIN, Advice
from producers.core.answers import Problem, unavailable
from producers.core.backlog_view import PoolView, Prediction
from producers.core.compared import Compared, Told
from producers.core.let_in import Let
from producers.core.predicted import CHANCES, retry_after_s
from producers.core.submission import Submission
from producers.ports import BacklogReader, Clock, Meter, RandomBytes
from schemas.backlog import PoolBacklog, QueueSlice, head_of, slice_name
from schemas.codec import decode_bytes
from schemas.front import Ending, LimitState, RequestName
from schemas.log import Partition
from schemas.policy import Endpoint, Inbox, Policy, Predict
from schemas.reasons import Reason

#: One in so many that would be refused is let in.
PROBES = 100
#: Nobody knows when a worker comes, or how fast it is: a start takes a while.
NO_WORKERS_MS = 5_000
_CHANCE_BYTES = 4
#: Refusals that the same advice is for: endpoint, tier, and how late, to a doubling.
_Kind = tuple[str, str, int]


class _Again(NamedTuple):
    """A refused request that is looked at again, and when and how late it was."""

    submission: Submission
    asked_ms: int
    over_ms: int


class Predictor:
    """Looks at requests before they are let in."""

    def __init__(
        self,
        reader: BacklogReader | None,
        clock: Clock,
        random_bytes: RandomBytes,
        meter: Meter,
        *,
        may_hold: bool = False,
    ) -> None:
        """Without a `reader` all are let in.

        `may_hold`: requests stand in inboxes, and may be left there.
        """
        self._may_hold = may_hold and reader is not None
        self._reader, self._clock = reader, clock
        self._random_bytes, self._meter = random_bytes, meter
        self.views: dict[str, PoolView] = {}
        self._policy: Policy | None = None
        self._let: dict[RequestName, tuple[PoolView, int]] = {}
        self._compared = Compared()
        self._advice: dict[_Kind, Advice] = {}
        self._again: dict[_Kind, _Again] = {}

    # --- following

    async def follow(self, policy: Policy | None) -> int:
        """Read what is new on the board; returns how many heads were. Raises StoreDownError."""
        if self._reader is None or policy is None:
            return 0
        self._policy = policy
        names = [pool.name for pool in policy.pools]
        found = await self._reader.fetch(names)
        heads = [
            decode_bytes(data, PoolBacklog, f"backlog of {name}")
            for name, data in zip(names, found, strict=True)
            if data is not None
        ]
        new = [head for head in heads if self._is_new(head)]
        wanted = [(head, index) for head in new for index in self._changed(head)]
        parts = await self._reader.fetch([slice_name(h.pool, index) for h, index in wanted])
        slices: dict[str, dict[int, QueueSlice]] = {head.pool: {} for head in new}
        for (head, index), data in zip(wanted, parts, strict=True):
            if data is not None:
                name = slice_name(head.pool, index)
                slices[head.pool][index] = decode_bytes(data, QueueSlice, f"backlog of {name}")
        now_ms = self._clock.now_ms()
        new = [head for head in new if _is_whole(head, slices[head.pool])]
        for head in new:
            view = self.views.setdefault(head.pool, PoolView())
            view.take(head, slices[head.pool], policy, now_ms)
        self._tell(policy, new)
        self._forget_lost()
        for refused in list(self._again):
            self._look_again(refused, policy, now_ms)
        return len(new)

    def _is_new(self, head: PoolBacklog) -> bool:
        view = self.views.get(head.pool)
        return view is None or view.head is None or view.head.at_ms != head.at_ms

    def _changed(self, head: PoolBacklog) -> list[int]:
        """Slices that are others than those that are known."""
        view = self.views.get(head.pool)
        known = [part.at_ms for part in view.slices] if view else []
        return [
            index
            for index, at_ms in enumerate(head.stamps)
            if index >= len(known) or known[index] != at_ms
        ]

    def _forget_lost(self) -> None:
        """Drop the oldest ones that nobody settled: their callers are gone."""
        while self._let:
            name, (view, number) = next(iter(self._let.items()))
            if view.counts(number):
                break
            del self._let[name]

    def _tell(self, policy: Policy, heads: Iterable[PoolBacklog]) -> None:
        endpoint_of = {endpoint.pool: endpoint.name for endpoint in policy.endpoints}
        for head in heads:
            endpoint = endpoint_of.get(head.pool)
            if endpoint:
                self._meter.gauge("ingress_endpoint_lanes", head.lanes, endpoint=endpoint)
        for endpoint, sums in self._compared.sums.items():
            count = self._meter.count
            count("ingress_predictions", sums.count, endpoint=endpoint)
            count("ingress_predicted_wait_ms", sums.predicted_ms, endpoint=endpoint)
            count("ingress_actual_wait_ms", sums.actual_ms, endpoint=endpoint)
            count("ingress_prediction_error_ms", sums.error_ms, endpoint=endpoint)
        self._compared.sums.clear()

    # --- judging

    def judge(self, name: RequestName, submission: Submission, policy: Policy) -> Problem | None:
        """Why a request can't be let in now; None: it counts as let in from now on."""
        view = self.views.get(submission.endpoint.pool)
        now_ms = self._clock.now_ms()
        if view is None or view.head is None:
            return self._unknown(submission, policy)
        if name in self._let:
            return None  # asked again while the first call is under way
        let = _let_of(view, submission, policy, now_ms)
        if let is None:
            return None
        if not view.is_fresh(now_ms):
            problem = self._unknown(submission, policy)
        else:
            problem = self._over_waiting(view, let, submission, policy)
            if problem is None and submission.endpoint.predict is not Predict.OFF:
                problem = self._would_wait(name, view, let, submission, policy)
        if problem is None:
            self._let[name] = (view, view.let_in(let, policy))
        return problem

    def published(self, name: RequestName, place: Partition, offset: int) -> None:
        """A request is in the log there: it counts as let in until it was read."""
        held = self._let.get(name)
        if held is not None and self._policy is not None:
            held[0].stands(held[1], place, offset, self._policy)

    def settle(self, name: RequestName, *, is_in: bool) -> None:
        """What became of a request after `judge` let it in."""
        held = self._let.pop(name, None)
        if held is None or self._policy is None:
            return
        view, number = held
        if is_in:
            view.doubt(number)
        else:
            view.withdraw(number, self._policy)
            self._compared.drop(name)

    def look(self, submission: Submission, policy: Policy) -> Prediction | None:
        """What is predicted of a request now; None: nothing can be said. Nothing is counted."""
        view, now_ms = self.views.get(submission.endpoint.pool), self._clock.now_ms()
        if view is None or view.head is None or not (view.head.rate and view.is_fresh(now_ms)):
            return None
        let = _let_of(view, submission, policy, now_ms)
        return self._predict(view, let, submission, policy) if let else None

    def _would_wait(
        self, name: RequestName, view: PoolView, let: Let, submission: Submission, policy: Policy
    ) -> Problem | None:
        head = view.head
        assert head is not None
        if not head.lanes:
            detail = f"no worker serves {submission.endpoint.name!r}"
            return self._refuse(Reason.NO_WORKERS, detail, NO_WORKERS_MS, submission)
        if not head.rate:
            return None  # nothing was measured yet
        told = self._predict(view, let, submission, policy)
        target_ms = _target_ms(submission, let.at_ms)
        is_late = target_ms is not None and told.latest_ms > target_ms
        aim_ms = None if is_late else target_ms
        self._compared.keep(name, Told(submission.endpoint.name, submission.tier, told, aim_ms))
        if target_ms is None or not is_late:
            return None
        detail = f"it would end in {told.latest_ms} ms, which is later than in {target_ms} ms"
        over_ms = told.latest_ms - target_ms
        again = (submission.endpoint.name, submission.tier, over_ms.bit_length())
        if view.is_idle and _said_ms(submission.endpoint, let) <= target_ms:
            # what was measured is old, and nobody waits for this one
            self._count(submission.endpoint.name, submission.tier, Reason.WOULD_WAIT, "probe")
            return None
        if over_ms >= OVER_MS_MIN and again not in self._again:
            self._again[again] = _Again(submission, let.at_ms, over_ms)
        advice = self._advice.setdefault(again, Advice())
        return self._refuse(Reason.WOULD_WAIT, detail, advice.after_ms(over_ms), submission)

    def _look_again(self, name: _Kind, policy: Policy, now_ms: int) -> None:
        """Whether a refused request would be let in now; then what is advised is put right."""
        submission, asked_ms, over_ms = self._again[name]
        passed_ms = now_ms - asked_ms
        request = submission.request
        if request.deadline_ms:
            request = replace(request, deadline_ms=request.deadline_ms + passed_ms)
        asked = submission._replace(request=request)
        told, target_ms = self.look(asked, policy), _target_ms(asked, now_ms)
        advice = self._advice[name]
        if told is None or target_ms is None:
            del self._again[name]
        elif told.latest_ms <= target_ms or advice.is_hopeless(over_ms, passed_ms):
            advice.learn(over_ms, passed_ms)
            del self._again[name]

    def _predict(
        self, view: PoolView, let: Let, submission: Submission, policy: Policy
    ) -> Prediction:
        """Wait and end; the end is late if the service takes as long as it sometimes does."""
        head, endpoint = view.head, submission.endpoint
        assert head is not None
        waits_ms = view.predict(let.place, let.work, let.head, policy, let.at_ms)
        said_ms = _said_ms(endpoint, let)
        end_ms = waits_ms + max(said_ms, head.service_ms + head.spread_ms)
        margin = self._compared.margins.get((endpoint.name, submission.tier))
        return Prediction(waits_ms, end_ms, margin.over(end_ms) if margin else end_ms)

    def _refuse(
        self, reason: Reason, detail: str, after_ms: int, submission: Submission
    ) -> Problem | None:
        """A problem, unless it is only counted, or let in as a probe."""
        endpoint, tier = submission.endpoint, submission.tier
        outcome = "refused"
        if endpoint.predict is Predict.SHADOW:
            outcome = "shadow"
        elif self._chance() * PROBES < CHANCES:
            outcome = "probe"
        self._count(endpoint.name, tier, reason, outcome)
        if outcome != "refused":
            return None
        return Problem(reason, detail, retry_after_s=retry_after_s(after_ms, self._chance()))

    def _count(self, endpoint: str, tier: str, reason: Reason, outcome: str) -> None:
        self._meter.count(
            "ingress_would_wait", endpoint=endpoint, tier=tier, reason=reason.value, outcome=outcome
        )

    def _chance(self) -> int:
        return int.from_bytes(self._random_bytes(_CHANCE_BYTES))

    # --- limits of what waits

    def _unknown(self, submission: Submission, policy: Policy) -> Problem | None:
        """What waits is not known. Who has a limit of it, and rather waits, is held."""
        tenant, endpoint = submission.tenant, submission.endpoint
        if not self._may_hold or tenant.inbox is not Inbox.HOLD:
            return None
        parent = policy.tenant(tenant.parent) if tenant.parent else None
        for who in (tenant, parent) if parent else (tenant,):
            limits = policy.waiting(who, endpoint), policy.waiting_tokens(who, endpoint)
            if limits != (None, None):
                return unavailable(f"how much waits at {endpoint.name!r} is not known now")
        return None

    def _over_waiting(
        self, view: PoolView, let: Let, submission: Submission, policy: Policy
    ) -> Problem | None:
        """The first waiting limit that has no room, the tenant's or its parent's."""
        tenant, endpoint = submission.tenant, submission.endpoint
        is_plain = endpoint.waiting is None and endpoint.waiting_tokens is None
        if is_plain and not (tenant.waiting or tenant.waiting_tokens or tenant.parent):
            return None
        parent = policy.tenant(tenant.parent) if tenant.parent else None
        for who in (tenant, parent) if parent else (tenant,):
            limits = (
                ("requests", policy.waiting(who, endpoint), 1),
                ("tokens", policy.waiting_tokens(who, endpoint), let.tokens),
            )
            if limits[0][1] is None and limits[1][1] is None:
                continue
            used = view.waiting(let.place._replace(tenant=who.name))
            for kind, (what, limit, more) in enumerate(limits):
                taken = used[kind]
                if limit is not None and taken + more > limit:
                    over = taken + more - limit
                    share = self._until_ms(view, let, over, max(1, taken), policy)
                    return self._full(submission, what, limit, taken, more, share)
        return None

    def _until_ms(self, view: PoolView, let: Let, over: int, taken: int, policy: Policy) -> int:
        """Until so much of what waits has been picked."""
        standing = view.standing(let.place, let.work, let.head, policy)
        if not standing.rate:
            return NO_WORKERS_MS
        work = max(1, standing.ahead * over // taken)
        return view.passes_ms(standing._replace(ahead=work, cost=0), let.at_ms)

    def _full(
        self, submission: Submission, what: str, limit: int, taken: int, more: int, wait_ms: int
    ) -> Problem:
        name = submission.endpoint.name
        again_s = retry_after_s(wait_ms, self._chance())
        kind = "waiting" if what == "requests" else "waiting_tokens"
        state = LimitState(kind, limit, taken, max(0, limit - taken), 0, again_s)
        numbers: tuple[tuple[str, Any], ...] = (
            ("limit_name", kind),
            ("limit", limit),
            ("used", taken),
            ("remaining", state.remaining),
        )
        if more > limit:
            detail = f"the request has {more} {what}, the limit of what may wait is {limit}"
            return Problem(Reason.NEVER_FITS, detail, extra=numbers, limits=(state,))
        self._count(name, submission.tier, Reason.WAITING_LIMIT, "refused")
        detail = f"{taken} of {limit} {what} that may wait at {name!r} do; this one has {more}"
        return Problem(Reason.WAITING_LIMIT, detail, again_s, extra=numbers, limits=(state,))

    # --- predicted against actual

    def ended(self, endings: Iterable[Ending]) -> None:
        """Compare the waits of requests that ended with what was predicted of them."""
        self._compared.ended(endings)


def _let_of(view: PoolView, submission: Submission, policy: Policy, now_ms: int) -> Let | None:
    """What a request would add; None: the scheduler does not know its tier yet."""
    place = view.place(submission.tenant.name, submission.tier, policy)
    if place is None:
        return None
    request = submission.request
    work, tokens = view.work_of(request, len(submission.body), submission.endpoint)
    return Let(now_ms, place, work, tokens, head_of(request.priority, request.deadline_ms))


def _is_whole(head: PoolBacklog, slices: Mapping[int, QueueSlice]) -> bool:
    """Whether no slice was written again since the head: then the next head is there already."""
    return all(part.at_ms == head.stamps[index] for index, part in slices.items())


def _said_ms(endpoint: Endpoint, let: Let) -> int:
    """Service as the policy says it."""
    return endpoint.service_ms + let.tokens * endpoint.token_us // 1_000


def _target_ms(submission: Submission, now_ms: int) -> int | None:
    """When it has to end, from now: by its deadline, else as its endpoint aims at in its tier."""
    deadline_ms = submission.request.deadline_ms
    if deadline_ms:
        return deadline_ms - now_ms
    return submission.endpoint.latency_ms.get(submission.tier)
