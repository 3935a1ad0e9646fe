"""Pause and resume: names checked against the published policy, then told to every shard.

Every shard is told, also those that serve other endpoints now: a later policy may give an
endpoint a pool of theirs. What is told twice is the same as told once, so whoever is not sure
that it arrived says it again.
"""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from fairlane.errors import FairlaneError
from fairlane.publish import publish_control, published_policy
from schemas.log import Log, LogError
from schemas.policy import Policy
from schemas.policy_check import undefined
from schemas.records import VERSION, Pause, Resume
from schemas.topics import DAY_MS, HOUR_MS, Topics

#: The longest pause with an end; a longer one is a decision, taken back by hand.
PAUSE_MS_MAX = 366 * DAY_MS

_UNITS_MS = {"d": DAY_MS, "h": HOUR_MS, "m": 60_000, "s": 1_000}
#: Nine digits a part are more than a year in every unit.
_DURATION = re.compile(r"(?=.)" + "".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in _UNITS_MS))
_NO_END = "leave --for and --until out for a pause that lasts until it is resumed"


class PauseError(FairlaneError):
    """Nothing was paused or resumed, or not surely; the message says why and what to do."""


class Whose(NamedTuple):
    """Whom a pause or a resume is about, as the policy knows them; "" is all of them."""

    tenant: str
    endpoint: str
    children: tuple[str, ...] = ()
    shards: int = 1

    def __str__(self) -> str:
        """For people: `tenant "acme" at endpoint "embed"`."""
        who = f'tenant "{self.tenant}"' if self.tenant else "every tenant"
        if self.children:
            who += f" with its children ({', '.join(self.children)})"
        where = f'endpoint "{self.endpoint}"' if self.endpoint else "every endpoint"
        return f"{who} at {where}"


def pause(log: Log, topics: Topics, tenant: str, endpoint: str, until_ms: int = 0) -> Whose:
    """Pause a tenant, an endpoint, or a tenant at an endpoint; "" is all, not for both.

    `until_ms` is when it is over by itself; 0: when it is resumed. Returns who is paused.

    Raises PauseError when the policy has no such names, or the log did not confirm.
    """
    return _tell(log, topics, Pause(VERSION, tenant, endpoint, until_ms))


def resume(log: Log, topics: Topics, tenant: str, endpoint: str) -> Whose:
    """End the pause that was given with the same names. Raises like `pause`."""
    return _tell(log, topics, Resume(VERSION, tenant, endpoint))


def end_ms(now_ms: int, lasts: str | None, until: str | None) -> int:
    """When a pause ends, from the texts of `--for` and `--until`; 0 when neither is given.

    Raises PauseError for other texts, a time that is over, and one too far away.
    """
    if lasts is not None and until is not None:
        raise PauseError("--for and --until say the same in two ways: give one of them")
    if lasts is not None:
        end = now_ms + _duration_ms(lasts)
    elif until is not None:
        end = _time_ms(until)
    else:
        return 0
    if end <= now_ms:
        raise PauseError(f"{lasts or until!r} is over already: nothing would be paused")
    if end - now_ms > PAUSE_MS_MAX:
        days = PAUSE_MS_MAX // DAY_MS
        raise PauseError(f"{lasts or until!r} is more than {days} days away: {_NO_END}")
    return end


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise PauseError(f"--for {text!r} is no duration: 90s, 10m, 2h, 1d, 1h30m; {_NO_END}")
    parts = zip(found.groups(), _UNITS_MS.values(), strict=True)
    return sum(int(count or 0) * unit_ms for count, unit_ms in parts)


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise PauseError(
            f"--until {text!r} is no time of ISO 8601: 2026-12-01T09:30Z; {_NO_END}"
        ) from error
    if time.tzinfo is None:
        raise PauseError(f"--until {text!r} has no time zone: append Z (UTC) or +01:00")
    return round(time.timestamp() * 1_000)


def shown_time(time_ms: int) -> str:
    """A time for people: `2026-12-01 09:30:00Z`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _tell(log: Log, topics: Topics, record: Pause | Resume) -> Whose:
    policy = published_policy(log, topics)
    if policy is None:
        raise PauseError(
            f"no policy is published under {topics.prefix!r}: run `fairlane policy apply FILE`"
        )
    whose = _whose(policy, record.tenant, record.endpoint)
    try:
        publish_control(log, topics, record, whose.shards)
    except LogError as error:
        raise PauseError(
            f"{error}: some of {whose.shards} shards may not know; run the same command again"
        ) from error
    return whose


def _whose(policy: Policy, tenant: str, endpoint: str) -> Whose:
    if not tenant and not endpoint:
        raise PauseError(
            "name a tenant, an endpoint (--endpoint), or both: everything at once is not paused"
        )
    if tenant and policy.tenant(tenant) is None:
        raise PauseError(undefined("tenant", tenant, (t.name for t in policy.tenants)))
    if endpoint and policy.endpoint(endpoint) is None:
        raise PauseError(undefined("endpoint", endpoint, (e.name for e in policy.endpoints)))
    children = tuple(child.name for child in policy.children(tenant)) if tenant else ()
    return Whose(tenant, endpoint, children, policy.topology.shards)
