"""An engine that calls a server of OpenAI's HTTP interface: vLLM, SGLang, llama.cpp, others.

    200                     the answer; a stream is read to its end and answered whole
    429                     the gate closes for Retry-After: no slot of this worker calls before
                            it opens. No failed try, but bounded (`PAUSED_S_MAX`)
    408, 425, 5xx,          a failed try: again after a pause that doubles, up to `tries`;
    connection, time-out,   then `engine_failed`, with the last fault in the detail
    broken stream, no JSON
    401, 403, 3xx, 404      the operator's mistake (a key, an address): the gate closes as after
    without a JSON error    a 429, and the log has an alarm; no request is to blame, unless the
                            server answers others meanwhile
    other 4xx               `engine_refused`, with the server's own message

A request that waits at the gate keeps its slot. So a server that asks for a pause gets one
from the scheduler, too: it sends nothing to lanes without a free slot, and what waits there
keeps its order, its fairness and its right to expire. A deadline that passes during a wait
ends the request as expired; a call that is running is let to its end.

Requests of a batch are called abreast, embeddings of the same options in one call. When that
call fails, and one of its inputs may be why, each is called alone with the tries that are left,
at least one: none harms another. A server that is down fails them together. Charged
is what the server counts; where it counts nothing, and for an answer that broke on its last
try, what came (`upstream_answers`). `service_ms` is the time of the calls, without pauses.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed
from workers.engines.upstream_abreast import abreast, broken
from workers.engines.upstream_answers import AnswerError
from workers.engines.upstream_embeddings import Merged, merged, shared, taken_apart
from workers.engines.upstream_gate import BARRED_PAUSE_S, PAUSE_S_MAX, SPREAD_S, Gate
from workers.engines.upstream_http import (
    Answered,
    Barred,
    Broken,
    Busy,
    Hopeless,
    Patience,
    Refused,
    Server,
    Stopped,
    Try,
)
from workers.engines.upstream_transport import LOOK_S
from workers.engines.upstream_wire import BodyError, Call, call_for
from workers.ports import Clock

#: The pause after the first failed try, seconds; it doubles with each further one.
BACKOFF_S = 0.2
#: And grows no further: by then a server is restarting, and that takes a while anyway.
BACKOFF_S_MAX = 10.0
#: One request waits at the gate no longer than this altogether, seconds; as long as a request
#: of an endpoint with the default limits may wait before it is picked.
PAUSED_S_MAX = 600.0

#: Why the gate is closed, in words for the tenants: they can't mend a key or an address.
BUSY = "the server was busy (429)"
BARRED = "the server could not be used, which this worker's operator has to mend,"

log = logging.getLogger(__name__)


class UpstreamSettings(NamedTuple):
    """Where the server is, and how much patience a call has (seconds).

    `route` fixes the path ("" tells it by the body), `model` fills in what a body leaves out.
    `between_s` is the longest silence in an answer, the wait for its first byte included: a
    long generation that is no stream is silent until it is done.
    """

    url: str
    route: str = ""
    model: str = ""
    tries: int = 3
    connect_s: float = 5.0
    between_s: float = 120.0
    whole_s: float = 600.0


class Pace(NamedTuple):
    """Time and chance: seconds that only grow, a pause, and a fraction in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


class UpstreamEngine:
    """An `Engine`; one for all slots and lanes of a worker, so that they share one gate."""

    def __init__(
        self, settings: UpstreamSettings, clock: Clock, key: str = "", pace: Pace | None = None
    ) -> None:
        """Connect to nothing yet; `key` is the server's, sent as a bearer token."""
        self._settings = settings
        self._clock = clock
        self._pace = pace or Pace()
        self._gate = Gate(self._pace.monotonic)
        self._well_s = float("-inf")  # when the last call began that was answered
        patience = Patience(settings.connect_s, settings.between_s, settings.whole_s)
        self._server = Server(settings.url, key, patience, lambda: clock.now_ms() / 1000)

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        """Call the server for each request of a batch, or once for several embeddings."""
        return [outcome._replace(is_timed=True) for outcome in self._run(batch.requests, cancelled)]

    def _run(
        self, requests: Sequence[EngineRequest], cancelled: Callable[[int], bool]
    ) -> list[EngineOutcome]:
        calls = [self._prepared(request) for request in requests]
        tries = [
            _Tries(request, call, partial(cancelled, index)) if isinstance(call, Call) else call
            for index, (request, call) in enumerate(zip(requests, calls, strict=True))
        ]
        sound = [one for one in tries if isinstance(one, _Tries)]
        together = merged([one.call for one in sound]) if len(sound) == len(tries) > 1 else None
        if together is not None:
            outcomes = self._together(sound, together)
            if outcomes is not None:
                return outcomes

        def run_one(index: int) -> EngineOutcome:
            one = tries[index]
            return self._serve(one) if isinstance(one, _Tries) else one

        return abreast(run_one, len(requests))

    def close(self) -> None:
        """Close every connection."""
        self._server.close()

    def _prepared(self, request: EngineRequest) -> Call | EngineOutcome:
        try:
            return call_for(request.body, self._settings.route, self._settings.model)
        except BodyError as error:
            return failed(Reason.ENGINE_REFUSED, str(error))
        except Exception as error:  # noqa: BLE001 - the others of the batch go on
            return broken(error)

    def _serve(self, tries: "_Tries") -> EngineOutcome:
        while True:
            ended = self._pass_gate(tries) or self._try(tries)
            if ended is not None:
                return ended

    def _try(self, tries: "_Tries") -> EngineOutcome | None:
        """Call once; None when there is to be another try, and its time has come."""
        began_s = self._pace.monotonic()
        said = self._server.call(tries.call, tries.request, tries.is_unwanted)
        before_s = tries.spent_s
        tries.spent_s += self._pace.monotonic() - began_s
        tries.is_input = _may_be_input(said)
        match said:
            case Answered():
                self._well_s = max(self._well_s, began_s)
                first_s = before_s + said.first_s if said.first_s else 0.0
                usage = replace(tries.timed(said.usage), first_token_ms=_ms(first_s))
                return EngineOutcome(End.SUCCEEDED, said.output, usage)
            case Refused():
                return tries.failed(Reason.ENGINE_REFUSED, said.detail)
            case Hopeless():
                tries.came(said.usage)
                return tries.failed(Reason.ENGINE_FAILED, said.detail)
            case Stopped():
                tries.came(said.usage)
                return cancelled(tries.timed(tries.most))
            case Busy():
                self._gate.close(said.after_s, BUSY)
                return None
            case Barred():
                return self._bar(tries, said)
            case Broken():
                tries.came(said.usage)
                tries.failures += 1
                if tries.failures >= self._settings.tries:
                    detail = f"after {tries.failures} tries: {said.detail}"
                    return tries.failed(Reason.ENGINE_FAILED, detail)
                asked_s = min(said.after_s or 0.0, PAUSE_S_MAX)
                return self._wait(tries, max(self._backoff_s(tries.failures), asked_s))

    def _bar(self, tries: "_Tries", said: Barred) -> EngineOutcome | None:
        """Close the gate, with one alarm a closing; None when there is to be another try.

        A request that is barred again, while others that were called since its first time
        were answered, is to blame itself.
        """
        now_s = self._pace.monotonic()
        if said.may_be_input and self._well_s > tries.barred_s:
            tries.is_input = True
            return tries.failed(Reason.ENGINE_REFUSED, said.detail)
        tries.barred_s = min(tries.barred_s, now_s)
        if self._gate.close(BARRED_PAUSE_S, BARRED):
            log.error(
                "upstream: %s does not let this worker in (%s): look at --upstream-url and the "
                "key; nothing is called for %g s",
                self._server.address,
                said.detail,
                BARRED_PAUSE_S,
            )
        return None

    def _backoff_s(self, failures: int) -> float:
        """Half of it certain, half by chance, so that who failed together returns apart."""
        most_s = min(BACKOFF_S * (1 << min(failures - 1, 16)), BACKOFF_S_MAX)
        return most_s * (1 + self._pace.chance()) / 2

    def _pass_gate(self, tries: "_Tries") -> EngineOutcome | None:
        """Wait until the gate is open; an outcome when nothing is to be called any more."""
        while (left_s := self._gate.left_s) > 0:
            if tries.paused_s >= PAUSED_S_MAX:
                detail = f"{self._gate.why} for {PAUSED_S_MAX:.0f} s"
                return tries.failed(Reason.ENGINE_FAILED, detail)
            wait_s = left_s + SPREAD_S * self._pace.chance()
            tries.paused_s += wait_s
            ended = self._wait(tries, wait_s)
            if ended is not None:
                return ended
        return self._wait(tries, 0.0)

    def _wait(self, tries: "_Tries", wait_s: float) -> EngineOutcome | None:
        """Wait in short steps; an outcome when the request is cancelled or its deadline passes."""
        until_s = self._pace.monotonic() + wait_s
        while True:
            if tries.is_unwanted():
                return cancelled(tries.timed(tries.most))
            if 0 < tries.request.deadline_ms <= self._clock.now_ms():
                usage = tries.timed(tries.most)
                return EngineOutcome(End.EXPIRED, b"", usage, Reason.DEADLINE.value)
            left_s = until_s - self._pace.monotonic()
            if left_s <= 0:
                return None
            self._pace.wait(min(left_s, LOOK_S))

    def _together(self, alone: Sequence["_Tries"], together: Merged) -> list[EngineOutcome] | None:
        """One call for all; None when each is to be called alone, so that none harms another.

        The call waits no longer than the first deadline; it stops when nobody wants any of it.
        """
        deadlines = [one.request.deadline_ms for one in alone if one.request.deadline_ms]
        first = alone[0].request._replace(deadline_ms=min(deadlines, default=0))
        tries = _Tries(first, together.call, lambda: all(one.is_unwanted() for one in alone))
        outcome = self._serve(tries)
        if outcome.end is End.SUCCEEDED:
            try:
                parts = taken_apart(together, outcome.output, outcome.usage)
            except (AnswerError, RecursionError):
                tries.is_input = True
                tries.came(outcome.usage)
            else:
                return [
                    cancelled(usage)
                    if one.is_unwanted()
                    else EngineOutcome(End.SUCCEEDED, output, usage)
                    for one, (output, usage) in zip(alone, parts, strict=True)
                ]
        if tries.is_input or outcome.end is End.EXPIRED:
            for one, usage in zip(alone, shared(tries.most, together.sizes), strict=True):
                one.carry(tries, usage)
            return None
        return [
            cancelled(usage) if one.is_unwanted() else outcome._replace(usage=usage)
            for one, usage in zip(alone, shared(outcome.usage, together.sizes), strict=True)
        ]


class _Tries:
    """One request's tries so far: what they took, and the most that came of an answer."""

    def __init__(self, request: EngineRequest, call: Call, is_unwanted: Callable[[], bool]) -> None:
        self.request, self.call, self.is_unwanted = request, call, is_unwanted
        self.failures = 0
        self.spent_s = 0.0
        self.paused_s = 0.0
        self.barred_s = float("inf")
        self.is_input = False
        self.most = Usage()

    def carry(self, common: "_Tries", usage: Usage) -> None:
        """Go on where a common call ended; `usage` is this request's share of what came."""
        self.failures, self.most = common.failures, usage
        self.spent_s, self.paused_s = common.spent_s, common.paused_s

    def came(self, usage: Usage) -> None:
        """Keep what a try without an answer brought, if it is the most so far."""
        self.most = max(self.most, usage, key=lambda usage: usage.tokens)

    def timed(self, usage: Usage) -> Usage:
        return replace(usage, service_ms=_ms(self.spent_s))

    def failed(self, reason: Reason, detail: str) -> EngineOutcome:
        return failed(reason, detail)._replace(usage=self.timed(self.most))


def _ms(seconds: float) -> int:
    """Milliseconds, rounded up: what took any time took one at least."""
    return -int(-seconds * 1000 // 1)


def _may_be_input(said: Try) -> bool:
    """Whether what became of a call may be the fault of what was sent."""
    return isinstance(said, Refused | Hopeless) or (isinstance(said, Broken) and said.is_input)
