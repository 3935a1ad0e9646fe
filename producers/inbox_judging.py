"""What becomes of an inbox's records: let in, answered, or held back until there is room.

A tenant chooses what happens over its limits: `refuse` answers each record at once; `hold`
leaves the first one and all behind it in the inbox. What is no fault of the tenant (a part of
the service is down) holds in either case.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from producers.core.answers import AGAIN_S, Problem
from producers.core.inbox_answers import Answer, repeated
from producers.inbox_reading import Mail, Refused
from producers.intake import Accepted, Asked, Intake
from producers.ports import Clock
from producers.refusing import RefusalLog
from schemas.front import StoreDownError
from schemas.log import LogError
from schemas.policy import Inbox
from schemas.reasons import TABLE, Retry

#: Reasons that no tenant can do anything about: the record stays where it is.
OURS = frozenset({"unavailable", "unfinished", "in_doubt"})
#: A held inbox is looked at again by then: limits and the policy may have changed.
HOLD_S_MAX = 60
#: A held inbox's records ask for room one after the other; after so long the rest waits for the
#: next cycle, in which others have their turn again.
JUDGE_MS_MAX = 1_000

#: What a record came to: to be published, or answered; None: its request is in the log already.
Fate = Mail | Answer | None


class Judged(NamedTuple):
    """Fates of the first records of a share, in order, and for how long the rest is held."""

    fates: list[Fate]
    hold_s: int = 0


async def judge(
    mails: Sequence[Mail], inbox: Inbox, intake: Intake, refusals: RefusalLog, clock: Clock
) -> Judged:
    """Fates of an inbox's oldest records.

    Stops at a request that is here already: the second one is looked at once the first one
    is in the log. Stops where it took too long. Raises LogError and StoreDownError.
    """
    mails = list(_distinct(mails))
    is_held = inbox is Inbox.HOLD
    verdicts = await (_one_by_one(mails, intake, clock) if is_held else _together(mails, intake))
    fates: list[Fate] = []
    for mail, verdict in zip(mails, verdicts, strict=False):
        if isinstance(verdict, Problem) and _holds(verdict, inbox):
            await withdraw(_admitted(mails, verdicts, len(fates)), intake)
            return Judged(fates, min(HOLD_S_MAX, max(AGAIN_S, verdict.retry_after_s)))
        if isinstance(verdict, StoreDownError | LogError):
            await withdraw(_admitted(mails, verdicts, 0), intake)
            raise verdict
        fates.append(_fate(mail, verdict, refusals))
    return Judged(fates)


async def withdraw(fates: Iterable[Fate], intake: Intake) -> None:
    """What was admitted among these is not published now: it is judged again later."""
    admitted = [f.asked for f in fates if isinstance(f, Mail) and isinstance(f.asked, Asked)]
    await asyncio.gather(*map(intake.withdraw, admitted))


def _admitted(mails: Sequence[Mail], verdicts: Sequence["Verdict"], start: int) -> Iterator[Mail]:
    """Those that were admitted, from a place on."""
    for mail, verdict in list(zip(mails, verdicts, strict=False))[start:]:
        if verdict is None and mail.stand is None:
            yield mail


Verdict = Accepted | Problem | BaseException | None


async def _together(mails: Sequence[Mail], intake: Intake) -> list[Verdict]:
    """Verdicts of all at once."""
    verdicts = (_verdict(mail, intake) for mail in mails)
    return list(await asyncio.gather(*verdicts, return_exceptions=True))


async def _one_by_one(mails: Sequence[Mail], intake: Intake, clock: Clock) -> list[Verdict]:
    """Verdicts up to the first that holds: what stands behind it must not take its room."""
    found: list[Verdict] = []
    until_ms = clock.now_ms() + JUDGE_MS_MAX
    for mail in mails:
        try:
            found.append(await _verdict(mail, intake))
        except Exception as error:  # noqa: BLE001 - sorted out by who asked
            found.append(error)
        last = found[-1]
        if isinstance(last, Problem) and _holds(last, Inbox.HOLD):
            break
        if clock.now_ms() >= until_ms:
            break
    return found


async def _verdict(mail: Mail, intake: Intake) -> Verdict:
    if not isinstance(mail.asked, Asked):
        return None
    if mail.stand is not None:
        await intake.recall(mail.asked, *mail.stand)
        return None
    return await intake.admit(mail.asked)


def _fate(mail: Mail, verdict: Verdict, refusals: RefusalLog) -> Fate:
    if mail.stand is not None:
        return None
    match mail.asked:
        case Refused(problem, endpoint):
            refusals.note(problem, mail.tenant, endpoint)
            return mail.refusal(problem)
        case Exception() as error:
            return mail.failure(error)
        case Asked():
            pass
    match verdict:
        case Accepted():
            return repeated(mail.tenant, mail.id, mail.position, mail.headers, verdict.state)
        case Problem():
            return mail.refusal(verdict)
        case Exception():
            return mail.failure(verdict)
        case BaseException():
            raise verdict
        case None:
            return mail


def _holds(problem: Problem, inbox: Inbox) -> bool:
    if problem.reason.value in OURS:
        return True
    return inbox is Inbox.HOLD and TABLE[problem.reason].retry is Retry.LATER


def _distinct(mails: Sequence[Mail]) -> Iterator[Mail]:
    ids = set[str]()
    for mail in mails:
        if mail.id in ids:
            return
        ids.add(mail.id)
        yield mail
