"""Patience with a service: what is tried again, after which pause, and when it is given up.

One implementation for `fairlane submit` and the client. A call is repeated as it is, so it
must be one that may be: a GET, or a POST with an Idempotency-Key.

Answers that won't stay the same: no answer at all, 408, 429 and 5xx, unless the service says
`X-Should-Retry: false`. `Retry-After` is honoured, with jitter on top, so that callers don't
come back all at once; without it pauses double.

A limit (429) that tells when it is over is no failure but a pace: `Tries` and `Lasting` wait it
out however often it comes; `Until` has a time to keep.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec

#: Without an answer or a Retry-After: the first pause, doubled up to the last.
BACKOFF_S, BACKOFF_S_MAX = 0.5, 30.0
#: A pause is lengthened by up to this share and so much: so that not all come back at once.
JITTER, JITTER_S = 0.1, 1.0
#: Whoever is told to come back later than this comes and asks again: it costs one call an hour.
RETRY_AFTER_S_MAX = 3_600.0

Sleep = Callable[[float], Awaitable[None]]


@dataclass
class Pacer:
    """When senders may send again; `sleep` and `random` are handed in by tests.

    `jitter_s` is for a crowd that comes back after an outage. A limit has none: its crowd is
    one tenant's, and a second may be the whole window.
    """

    sleep: Sleep = asyncio.sleep
    random: Random = field(default_factory=Random)
    until_s: float = 0.0
    jitter_s: float = JITTER_S

    async def wait(self) -> None:
        """Wait until nobody has to pause any more."""
        loop = asyncio.get_running_loop()
        while (pause_s := self.until_s - loop.time()) > 0:
            before = self.until_s
            await self.sleep(pause_s + self.random.uniform(0, self.jitter_s + JITTER * pause_s))
            if self.until_s == before:
                return

    def pause(self, pause_s: float) -> None:
        """Let all senders pause for so long from now."""
        self.until_s = max(self.until_s, asyncio.get_running_loop().time() + pause_s)


class Trouble(NamedTuple):
    """Why something has to be sent again; `status` is 0 and `answer` None without an answer."""

    text: str
    status: int = 0
    retry_after_s: float = 0.0
    answer: httpx.Response | None = None

    @property
    def is_limit(self) -> bool:
        """Whether it is no failure but a limit that is used up."""
        return is_limit(self.status)

    def pause_s(self, failures: int) -> float:
        """How long to pause, after so many failures before: as told, within reason."""
        if self.retry_after_s <= 0:
            return backoff_s(failures)
        return min(max(self.retry_after_s, BACKOFF_S), RETRY_AFTER_S_MAX)


class GivenUpError(Exception):
    """Patience is at its end; `trouble` is the last one."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


class Endurance(Protocol):
    """How long a call is repeated."""

    def is_over(self, trouble: Trouble, pause_s: float) -> bool:
        """Whether to give up now instead of pausing for so long and trying again."""


@dataclass
class Tries:
    """Endures so many failures in a row; a limit is none and is waited out."""

    tries_max: int
    failed: int = 0

    def is_over(self, trouble: Trouble, pause_s: float) -> bool:
        """Count one more."""
        del pause_s
        self.failed = 0 if trouble.is_limit else self.failed + 1
        return self.failed >= self.tries_max


@dataclass
class Lasting:
    """Endures failures in a row for so long; a limit that tells when it is over is none."""

    patience_s: float
    since_s: float | None = None

    def is_over(self, trouble: Trouble, pause_s: float) -> bool:
        """Whether the pause would end later than so long after the first of the failures."""
        if trouble.is_limit and trouble.retry_after_s > 0:
            self.since_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        if self.since_s is None:
            self.since_s = now_s
        return now_s + pause_s > self.since_s + self.patience_s


@dataclass
class Until:
    """Endures until a time of the loop's clock; does not begin a pause that ends after it."""

    until_s: float

    def is_over(self, trouble: Trouble, pause_s: float) -> bool:
        """Whether the pause would end too late."""
        del trouble
        return asyncio.get_running_loop().time() + pause_s > self.until_s


async def patiently(
    call: Callable[[], Awaitable[httpx.Response]],
    pacer: Pacer,
    endurance: Endurance,
    limits: Pacer | None = None,
) -> httpx.Response:
    """Repeat a call until it has an answer that will stay the same.

    Args:
        call: makes the request once.
        pacer: waited for before each try, and told of pauses.
        endurance: when to give up.
        limits: another pacer that takes the pauses of limits (429); also waited for.

    Raises:
        GivenUpError: the endurance is over.
    """
    failures = 0
    while True:
        await pacer.wait()
        if limits:
            await limits.wait()
        try:
            answer = await call()
        except httpx.TransportError as error:
            trouble = Trouble(f"{error or type(error).__name__}")
        else:
            if not is_passing(answer):
                return answer
            detail = document_of(answer).get("detail", "")
            text = f"HTTP {answer.status_code}: {detail}"
            trouble = Trouble(text, answer.status_code, retry_after_s(answer), answer)
        pause_s = trouble.pause_s(failures)
        failures += 1
        if endurance.is_over(trouble, pause_s):
            raise GivenUpError(trouble)
        (limits if limits and trouble.is_limit else pacer).pause(pause_s)


def is_limit(status: int) -> bool:
    """Whether a status says that a limit is used up for now."""
    return status == httpx.codes.TOO_MANY_REQUESTS


def may_pass(status: int) -> bool:
    """Whether a status tells of something that may be over later."""
    return is_limit(status) or status == httpx.codes.REQUEST_TIMEOUT or 500 <= status <= 599  # noqa: PLR2004


def is_passing(answer: httpx.Response) -> bool:
    """Whether the same call may have another answer later."""
    is_told_not_to = answer.headers.get("x-should-retry", "").lower() == "false"
    return may_pass(answer.status_code) and not is_told_not_to


def backoff_s(failures: int) -> float:
    """The pause after so many failures before this one."""
    return min(BACKOFF_S * 2.0 ** min(failures, 16), BACKOFF_S_MAX)


def retry_after_s(answer: httpx.Response) -> float:
    """Seconds of the Retry-After header; 0 when there is none that can be read."""
    value = answer.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0


def document_of(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; empty when it is none."""
    try:
        document = msgspec.json.decode(answer.content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
