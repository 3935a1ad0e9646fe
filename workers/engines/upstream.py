"""An engine that calls a server of OpenAI's HTTP interface: vLLM, SGLang, llama.cpp, others.

    200                     the answer; a stream is read to its end and answered whole
    429                     the gate closes for Retry-After: no slot of this worker calls before
                            it opens. No failed try, but bounded (`PAUSED_S_MAX`)
    408, 425, 5xx,          a failed try: again after a pause that doubles, up to `tries`;
    connection, time-out,   then `engine_failed`, with the last fault in the detail
    broken stream, no JSON
    other 4xx               `engine_refused`, with the server's own message

A request that waits at the gate keeps its slot. So a server that asks for a pause gets one
from the scheduler, too: it sends nothing to lanes without a free slot, and what waits there
keeps its order, its fairness and its right to expire. A deadline that passes during a wait
ends the request as expired; a call that is running is let to its end.

Requests of a batch are called abreast, embeddings of the same options in one call. Charged
is what the server counts; where it counts nothing, and for an answer that broke on its last
try, what came (`upstream_answers`). `service_ms` is the time of the calls, without pauses.
"""

import random
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from msgspec.structs import replace

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed
from workers.engines.upstream_answers import AnswerError
from workers.engines.upstream_embeddings import Merged, merged, taken_apart
from workers.engines.upstream_gate import PAUSE_S_MAX, SPREAD_S, Gate
from workers.engines.upstream_http import (
    Answered,
    Broken,
    Busy,
    Hopeless,
    Patience,
    Refused,
    Server,
    Stopped,
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
#: Requests of one batch that are called at once; more than that only queue at the server.
ABREAST_MAX = 32


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
        patience = Patience(settings.connect_s, settings.between_s, settings.whole_s)
        self._server = Server(settings.url, key, patience, lambda: clock.now_ms() / 1000)

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        """Call the server for each request of a batch, or once for several embeddings."""
        requests = batch.requests
        calls: list[Call | EngineOutcome] = [self._prepared(request) for request in requests]
        sound = [call for call in calls if isinstance(call, Call)]
        together = merged(sound) if len(sound) == len(requests) > 1 else None
        if together is not None:
            outcomes = self._together(requests, together, cancelled)
            if outcomes is not None:
                return outcomes

        def run_one(index: int) -> EngineOutcome:
            call = calls[index]
            if isinstance(call, EngineOutcome):
                return call
            return self._serve(requests[index], call, lambda: cancelled(index))

        return _abreast(run_one, len(requests))

    def close(self) -> None:
        """Close every connection."""
        self._server.close()

    def _prepared(self, request: EngineRequest) -> Call | EngineOutcome:
        try:
            return call_for(request.body, self._settings.route, self._settings.model)
        except BodyError as error:
            return failed(Reason.ENGINE_REFUSED, str(error))

    def _serve(
        self, request: EngineRequest, call: Call, is_unwanted: Callable[[], bool]
    ) -> EngineOutcome:
        tries = _Tries(request, call, is_unwanted)
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
        match said:
            case Answered():
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
                self._gate.close(said.after_s)
                return None
            case Broken():
                tries.came(said.usage)
                tries.failures += 1
                if tries.failures >= self._settings.tries:
                    detail = f"after {tries.failures} tries: {said.detail}"
                    return tries.failed(Reason.ENGINE_FAILED, detail)
                asked_s = min(said.after_s or 0.0, PAUSE_S_MAX)
                return self._wait(tries, max(self._backoff_s(tries.failures), asked_s))

    def _backoff_s(self, failures: int) -> float:
        """Half of it certain, half by chance, so that who failed together returns apart."""
        most_s = min(BACKOFF_S * (1 << min(failures - 1, 16)), BACKOFF_S_MAX)
        return most_s * (1 + self._pace.chance()) / 2

    def _pass_gate(self, tries: "_Tries") -> EngineOutcome | None:
        """Wait until the gate is open; an outcome when nothing is to be called any more."""
        while (left_s := self._gate.left_s) > 0:
            if tries.paused_s >= PAUSED_S_MAX:
                detail = f"the server was busy (429) for {PAUSED_S_MAX:.0f} s"
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

    def _together(
        self,
        requests: Sequence[EngineRequest],
        together: Merged,
        is_cancelled: Callable[[int], bool],
    ) -> list[EngineOutcome] | None:
        """One call for all; None when each is to be called alone, so that none harms another.

        The call waits no longer than the first deadline; it stops when nobody wants any of it.
        """
        everybody = range(len(requests))
        deadlines = [request.deadline_ms for request in requests if request.deadline_ms]
        first = requests[0]._replace(deadline_ms=min(deadlines, default=0))
        outcome = self._serve(
            first, together.call, lambda: all(is_cancelled(index) for index in everybody)
        )
        if outcome.end is not End.SUCCEEDED:
            return None
        try:
            parts = taken_apart(together, outcome.output, outcome.usage)
        except AnswerError:
            return None
        service_ms = outcome.usage.service_ms
        return [
            cancelled(replace(usage, service_ms=service_ms))
            if is_cancelled(index)
            else EngineOutcome(End.SUCCEEDED, output, replace(usage, service_ms=service_ms))
            for index, (output, usage) in enumerate(parts)
        ]


class _Tries:
    """One request's tries so far: what they took, and the most that came of an answer."""

    def __init__(self, request: EngineRequest, call: Call, is_unwanted: Callable[[], bool]) -> None:
        self.request, self.call, self.is_unwanted = request, call, is_unwanted
        self.failures = 0
        self.spent_s = 0.0
        self.paused_s = 0.0
        self.most = Usage()

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


def _abreast(run_one: Callable[[int], EngineOutcome], count: int) -> list[EngineOutcome]:
    """Run `run_one` for 0..count-1, up to ABREAST_MAX at once; an exception passes on.

    The threads are daemons, as those of the slots are: a server that never answers must not
    keep a process from ending.
    """
    if count == 1:
        return [run_one(0)]
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, EngineOutcome | BaseException]] = SimpleQueue()
    for index in range(count):
        todo.put(index)

    def work() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except Empty:
                return
            try:
                done.put((index, run_one(index)))
            except BaseException as error:  # noqa: BLE001 - raised again by who waits
                done.put((index, error))

    for _ in range(min(count, ABREAST_MAX)):
        Thread(target=work, name="upstream-call", daemon=True).start()
    outcomes: dict[int, EngineOutcome] = {}
    while len(outcomes) < count:
        index, outcome = done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        outcomes[index] = outcome
    return [outcomes[index] for index in range(count)]
