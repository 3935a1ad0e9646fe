"""Predicted waits at load 1.5: who is let in is served in time, and nothing stands idle.

Ten minutes of virtual time: the scheduler's core, its published backlog, and the ingress's
predictor, all of them the real ones, before simulated GPUs. Three tiers with a target each ask
for half as much again as the pool can do; the targets are the requests' deadlines. A batch takes
up to 0.5 s, a quarter of the tightest target; what is said of tokens in advance is wrong by up
to 30 percent. The figures, after a minute in which rates are learned:

    deadline_met              of those that were let in, how many ended in time
    goodput                   tokens that ended in time, of what the same servers do when all
                              are let in and nothing has a deadline
    retry_after_median_error  |told - true| / true, where `true` is the first moment at which the
                              same request would be let in (looked for every 50 ms, never charged),
                              or a second: Retry-After can't say less. `..._beyond_1s`: of those
                              whose first moment is more than a second away
    top_tier_refused_extra    refused of the top tier, with the lower tiers minus without

    python -m benchmarks.ingress_predicted --json
"""

import argparse
import sys
from collections.abc import Coroutine, Iterator
from itertools import count
from random import Random
from statistics import median
from typing import Any, NamedTuple, TypeVar

from adapters.memory_backlog import MemoryBoard
from benchmarks.figures import tell
from producers.core.submission import Submission
from producers.ports import NoMeter
from producers.predicting import Predictor
from scheduler.backlog import Backlog
from scheduler.core.cycle import Inputs
from scheduler.core.decided import Cycle
from schemas.front import Ending, RequestName, Terminal
from schemas.policy import CostModel, Endpoint, Policy, Pool, Predict, Tenant, Tier
from schemas.reasons import Reason
from schemas.records import VERSION, End, Request
from simulation.direct import START_MS, Ask, Chosen, CoreChooser, Direct, Job, Load, Server

T = TypeVar("T")

SECOND_US = 1_000_000
LANES = 4
BATCH_US, TOKEN_US = 60_000, 50
BATCH_TOKENS = 8_800  # 0.5 s
TOKENS = (100, 900)
#: Estimates are wrong by up to so much, in percent.
WRONG = 30
#: Tokens that the pool does in a second, nearly: loads are parts of it.
CAPACITY = LANES * 8_300 * SECOND_US // (BATCH_US + 8_300 * TOKEN_US)
#: How often an ingress reads the board, and refused requests are looked at again.
POLL_US = 100_000
AGAIN_US = 50_000
#: Refused requests that are looked at again: one in so many, and not for ever.
SAMPLED = 20
AGAIN_MAX_US = 120 * SECOND_US
WARM_US = 60 * SECOND_US


class Class(NamedTuple):
    """What tenants of a tier ask for; `load` of all of them is a part of the capacity."""

    tier: str
    tenants: int
    load: float
    target_ms: int


USUAL = (
    Class("gold", 3, 0.4, 2_000),
    Class("silver", 6, 0.5, 4_000),
    Class("bulk", 2, 0.6, 20_000),
)
#: The top tier alone asks for more than there is.
CROWDED = (Class("gold", 3, 1.1, 2_000), Class("silver", 6, 0.4, 4_000))


def policy(classes: tuple[Class, ...]) -> Policy:
    """Tenants of a tier have weights from 1 on."""
    return Policy(
        tiers=tuple(Tier(name=each.tier) for each in classes),
        pools=(Pool(name="run", lanes=LANES),),
        endpoints=(
            Endpoint(
                name="run",
                pool="run",
                cost=CostModel.TOKEN,
                quantum=1_000,
                batch_requests=64,
                batch_tokens=BATCH_TOKENS,
                tokens_max=2_000,
                predict=Predict.ON,
            ),
        ),
        tenants=tuple(
            Tenant(name=f"{each.tier}-{number}", tiers=(each.tier,), weight=1 + number % 3)
            for each in classes
            for number in range(each.tenants)
        ),
    )


def asks(classes: tuple[Class, ...], seconds: int, *, deadlines: bool = True) -> Iterator[Ask]:
    """Arrivals by chance, the same with every call, and those of a tier whatever the others."""
    for each in classes:
        random = Random(each.tier)
        every_us = SECOND_US * sum(TOKENS) / 2 / (each.load * CAPACITY)
        at_us = 0.0
        while (at_us := at_us + random.expovariate(1 / every_us)) < seconds * SECOND_US:
            tokens = random.randint(*TOKENS)
            told = max(1, tokens * random.randint(100 - WRONG, 100 + WRONG) // 100)
            tenant = f"{each.tier}-{random.randrange(each.tenants)}"
            deadline_us = each.target_ms * 1_000 if deadlines else 0
            yield Ask(int(at_us), tenant, tokens, 0, told, 500, deadline_us, 0, each.tier)


class Refused(NamedTuple):
    """One that is looked at again."""

    job: Job
    told_s: int


class Gate(CoreChooser):
    """The core behind an ingress: what would be late is refused before the core hears of it."""

    def __init__(self, the_policy: Policy, seed: int = 1, *, is_open: bool = False) -> None:
        self.board = MemoryBoard()
        self._backlog = Backlog(self.board)
        super().__init__(the_policy, slots=1)
        self._policy, self._is_open = the_policy, is_open
        self._tenants = {tenant.name: tenant for tenant in the_policy.tenants}
        self._now_us = 0
        self._polled_us = self._again_us = -POLL_US
        self._numbers = count()
        self.predictor = Predictor(
            self.board,
            self,
            Random(seed).randbytes,
            NoMeter(),
        )
        self._again: list[Refused] = []
        self.errors: list[float] = []
        self.errors_beyond: list[float] = []

    def now_ms(self) -> int:
        """The ingress's clock."""
        return START_MS + self._now_us // 1_000

    def decide(self, inputs: Inputs, now_ms: int) -> Cycle:
        """The core's cycle, with the scheduler's reader of the backlog beside it."""
        cycle = super().decide(inputs, now_ms)
        self._backlog.turn(self.state, inputs.workers, cycle.batches, now_ms)
        return cycle

    def cycle(
        self, now_us: int, arrived: list[Job], landed: list[Load], cancelled: list[Job]
    ) -> Chosen:
        """Let in whom the predictor lets in, then the core's cycle."""
        self._now_us = now_us
        if now_us - self._polled_us >= POLL_US:
            self._polled_us = now_us
            _at_once(self.predictor.follow(self._policy))
        if now_us - self._again_us >= AGAIN_US:
            self._again_us = now_us
            self._again = [each for each in self._again if not self._look_again(each)]
        late = [] if self._is_open else [(job, said) for job in arrived if (said := self._ask(job))]
        refused = {job.number for job, _ in late}
        let_in = [job for job in arrived if job.number not in refused]
        chosen = super().cycle(now_us, let_in, landed, cancelled)
        chosen.ended.extend(late)
        return chosen

    def _ask(self, job: Job) -> str:
        """Why a request is refused; empty: it is let in."""
        submission = self._submission(job)
        name = RequestName(job.tenant, str(job.number))
        problem = self.predictor.judge(name, submission, self._policy)
        self.predictor.settle(name, is_in=problem is None)
        if problem is None:
            return ""
        is_counted = problem.reason is Reason.WOULD_WAIT and job.arrived_us >= WARM_US
        if is_counted and next(self._numbers) % SAMPLED == 0:
            self._again.append(Refused(job, problem.retry_after_s))
        return problem.reason

    def ended(self, job: Job) -> None:
        """A request ended: the ingress sees its result."""
        end = End.SUCCEEDED if job.end == End.SUCCEEDED else End.EXPIRED
        terminal = Terminal(
            job.ask.endpoint,
            end,
            "results",
            0,
            job.number,
            reason="" if end is End.SUCCEEDED else job.end,
            arrived_ms=START_MS + job.arrived_us // 1_000,
            picked_ms=START_MS + job.picked_us // 1_000 if job.picked_us >= 0 else 0,
            ended_ms=START_MS + job.end_us // 1_000,
        )
        self.predictor.ended([Ending(RequestName(job.tenant, str(job.number)), terminal, None)])

    def _look_again(self, refused: Refused) -> bool:
        """Whether a refused request would be let in now; then how far off its advice was."""
        submission = self._submission(refused.job)
        told = self.predictor.look(submission, self._policy)
        passed_us = self._now_us - refused.job.arrived_us
        if told is None or told.latest_ms * 1_000 > refused.job.ask.deadline_us:
            return passed_us > AGAIN_MAX_US
        true_s = max(1.0, passed_us / SECOND_US)
        error = abs(refused.told_s - true_s) / true_s
        self.errors.append(error)
        if passed_us > SECOND_US:
            self.errors_beyond.append(error)
        return True

    def _submission(self, job: Job) -> Submission:
        """The request as it would be if it came now."""
        ask = job.ask
        tenant, endpoint = self._tenants[ask.tenant], self._policy.endpoints[0]
        request = Request(
            VERSION,
            str(job.number),
            ask.tenant,
            ask.endpoint,
            ask.priority,
            self.now_ms() + ask.deadline_us // 1_000,
            ask.estimate_tokens,
        )
        return Submission(request, b"", ask.tier, endpoint, tenant)


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nobody."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("it waits")


def service_us(jobs: Any) -> int:
    """A batch: what it takes in any case, and each token."""
    tokens: int = sum(job.tokens for job in jobs)
    return BATCH_US + TOKEN_US * tokens


def run(
    classes: tuple[Class, ...], seconds: int, *, is_open: bool = False, all_of: Any = None
) -> tuple[Direct, Gate]:
    """One history; the policy has all tiers of `all_of`, traffic those of `classes`."""
    gate = Gate(policy(all_of or classes), is_open=is_open)
    history = Direct(gate, Server(service_us, lambda _job: 0))
    history.on_ended = gate.ended
    history.run(asks(classes, seconds, deadlines=not is_open))
    return history, gate


def refused_part(history: Direct, tier: str) -> float:
    """How many of a tier's requests were refused at the door."""
    jobs = [job for job in history.jobs if job.ask.tier == tier and job.arrived_us >= WARM_US]
    return sum(job.end == Reason.WOULD_WAIT for job in jobs) / max(1, len(jobs))


def tokens_per_s(history: Direct, seconds: int) -> float:
    """Tokens of what ended in time, in the time after the first minute."""
    last_us = seconds * SECOND_US
    good = [job for job in history.jobs if is_good(job) and WARM_US <= job.end_us < last_us]
    return sum(job.tokens for job in good) * SECOND_US / (last_us - WARM_US)


def is_good(job: Job) -> bool:
    """It was served, in time."""
    deadline_us = job.ask.deadline_us
    is_late = deadline_us and job.end_us - job.arrived_us > deadline_us
    return job.end == End.SUCCEEDED and not is_late


def figures(*, quick: bool) -> dict[str, Any]:
    """All figures of the part `predicted_wait`."""
    seconds = 90 if quick else 600
    history, gate = run(USUAL, seconds)
    everybody, _ = run(USUAL, seconds, is_open=True)
    let_in = [
        job
        for job in history.jobs
        if job.arrived_us >= WARM_US and job.end not in {Reason.WOULD_WAIT, Reason.NO_WORKERS}
    ]
    extra = 0.0
    for classes in (USUAL,) if quick else (USUAL, CROWDED):
        beside = history if classes is USUAL else run(classes, seconds)[0]
        alone = run(classes[:1], seconds, all_of=classes)[0]
        extra = max(extra, refused_part(beside, "gold") - refused_part(alone, "gold"))
    return {
        "deadline_met": round(sum(map(is_good, let_in)) / len(let_in), 4),
        "goodput": round(tokens_per_s(history, seconds) / tokens_per_s(everybody, seconds), 4),
        "retry_after_median_error": round(median(gate.errors), 4) if gate.errors else None,
        "retry_after_looked_at": len(gate.errors),
        "retry_after_median_error_beyond_1s": (
            round(median(gate.errors_beyond), 4) if gate.errors_beyond else None
        ),
        "retry_after_beyond_1s": len(gate.errors_beyond),
        "top_tier_refused_extra": round(extra, 4),
        "refused": {each.tier: round(refused_part(history, each.tier), 4) for each in USUAL},
        "requests": len(history.jobs),
        "virtual_s": seconds,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="a shorter history")
    given = parser.parse_args()
    tell(figures(quick=given.quick), quick=given.quick, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
