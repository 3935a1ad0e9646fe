"""Bulk calls without their HTTP: lines in, verdicts out, each line a fate of its own.

Lines are taken in by waves: those of a wave take each step together, so that a step costs
one round trip, and a wave begins when the one before it is in the log, so that the log has
them in the order of the lines. After each wave everybody else has a turn.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from producers.core.answers import Problem, own_error, unavailable
from producers.core.lines import Line, read_lines, waves
from producers.ingress import Caller, Ingress
from producers.intake import Accepted
from producers.slices import Slices
from schemas.reasons import Reason

#: Longest body of a call, which is held whole: thousands of usual requests, and with all
#: calls under way not more memory than small machines have.
BULK_BYTES_MAX = 8_000_000
#: Most lines of a call: some seconds of work, so that an answer comes before proxies give up.
BULK_LINES_MAX = 10_000
#: Lines that are taken in together. The event loop belongs to one wave for some milliseconds:
#: with a wave of each call at once still less than what Redis is given to answer.
WAVE_LINES = 64
#: Or so many bytes of them: long lines take as long to read as many lines do.
WAVE_BYTES = 256_000
#: Bulk calls under way in this process: more would only wait for each other, with their bodies.
CALLS_MAX = 8
#: And of one tenant, so that nobody takes all of them.
CALLS_PER_TENANT_MAX = 4

TOO_LARGE = (
    f"a bulk call may have up to {BULK_BYTES_MAX} bytes in {BULK_LINES_MAX} lines; "
    "make several calls of it"
)

Answer = Accepted | Problem | Exception

log = logging.getLogger(__name__)


class Bulk:
    """The bulk calls of one ingress."""

    def __init__(self, ingress: Ingress) -> None:
        """No call is under way."""
        self._ingress = ingress
        self._calls: Counter[str] = Counter()

    def enter(self, caller: Caller) -> Problem | None:
        """Begin a call, which has to be left again; not if there are too many."""
        tenant = caller.tenant.name
        if self._calls[tenant] >= CALLS_PER_TENANT_MAX or self._calls.total() >= CALLS_MAX:
            most = f"{CALLS_PER_TENANT_MAX} of a tenant, {CALLS_MAX} in all"
            return unavailable(f"too many bulk calls are under way: up to {most}")
        self._calls[tenant] += 1
        return None

    def leave(self, caller: Caller) -> None:
        """The call is over, however it ended."""
        self._calls[caller.tenant.name] -= 1
        if not self._calls[caller.tenant.name]:
            del self._calls[caller.tenant.name]

    def refuse(self, caller: Caller, detail: str = TOO_LARGE) -> Problem:
        """Refuse a whole call, with nothing of it published."""
        return self._ingress.refuse(Reason.BODY_TOO_LARGE, detail, caller.tenant.name)

    async def verdicts(
        self,
        caller: Caller,
        body: bytes,
        *,
        is_cut: bool,
        trace: bytes | None = None,
        call: str = "",
        authorization: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Take the lines in; yields their verdicts, some lines of NDJSON at a time.

        With `is_cut` there was more of the body: the line that was cut off and those behind it
        have one verdict together, the last. With `authorization` it is looked at again before
        each wave: a key that is revoked meanwhile takes nothing more in.
        """
        if is_cut:
            body = body[: body.rfind(b"\n") + 1]
        doubt, slices = 0, Slices()
        for wave in waves(read_lines(body), WAVE_LINES, WAVE_BYTES):
            still = caller if authorization is None else self._ingress.authenticate(authorization)
            if doubt:
                detail = f"the log did not confirm line {doubt} in time: this one was not tried"
                answers: list[Answer] = [unavailable(detail)] * len(wave)
            elif isinstance(still, Problem):
                answers = [still] * len(wave)
            else:
                answers = await self._ingress.submit_all(caller, wave, trace, call)
                doubt = _first_in_doubt(wave, answers)
                _note_errors(wave, answers)
            yield b"".join(map(_verdict, wave, answers))
            await slices.rest()
        if is_cut:
            number = body.count(b"\n") + 1
            detail = f"{TOO_LARGE}; from line {number} on nothing was read"
            yield _problem(number, self.refuse(caller, detail))


def has_too_many_lines(body: bytes) -> bool:
    """Whether a body has more lines than a call may have."""
    return body.count(b"\n") + (not body.endswith(b"\n")) > BULK_LINES_MAX


def _first_in_doubt(wave: list[Line], answers: list[Answer]) -> int:
    """Number of the first line that the log did not confirm in time; 0: there is none.

    The lines behind it would each wait as long, so they are not tried.
    """
    for line, answer in zip(wave, answers, strict=True):
        if isinstance(answer, Problem) and answer.reason is Reason.IN_DOUBT:
            return line.number
    return 0


def _note_errors(wave: list[Line], answers: list[Answer]) -> None:
    """Log what the caller is told as an error of ours: the first of a kind for all."""
    noted = set[type[Exception]]()
    for line, answer in zip(wave, answers, strict=True):
        if isinstance(answer, Exception) and type(answer) not in noted:
            noted.add(type(answer))
            log.error("line %d of a bulk call failed", line.number, exc_info=answer)


def _verdict(line: Line, answer: Answer) -> bytes:
    if isinstance(answer, Problem):
        return _problem(line.number, answer)
    if isinstance(answer, Exception):
        return msgspec.json.encode({"line": line.number} | own_error(answer)) + b"\n"
    verdict = {
        "line": line.number,
        "status": 202,
        "id": answer.id,
        "state": answer.state,
        "idempotency_key": answer.key,
    }
    return msgspec.json.encode(verdict) + b"\n"


def _problem(number: int, problem: Problem) -> bytes:
    return msgspec.json.encode({"line": number} | problem.content()) + b"\n"
