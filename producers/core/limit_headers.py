"""Where limits stand, as headers of an answer.

Three families, each at most once an answer:

    RateLimit-Policy: "requests-minute";q=100;w=60, "in-flight";q=8;qu="concurrent-requests"
    RateLimit: "requests-minute";r=99;t=65, "in-flight";r=7
    x-ratelimit-limit-requests: 100
    x-ratelimit-remaining-requests: 99
    x-ratelimit-reset-requests: 1m5s

The first two are those of draft-ietf-httpapi-ratelimit-headers (08 and later: lists of quoted
names with parameters). Its registry of units has none for tokens: those policies say so by a
parameter of ours, which others read over. The third is what clients of OpenAI's API read, for
the minute only. A bare x-ratelimit-reset is never sent: there are clients that sleep until then.

A limit that counts for a tenant and again for its parent has one name and two states: the one
with less left is told.
"""

from collections.abc import Iterable, Sequence

from schemas.front import LimitState

#: Most digits of a number in a structured field.
_NUMBER_MAX = 10**15 - 1
_CONCURRENT = "in_flight"
_MINUTE = 60
_HOUR = 3_600
#: Names of limits as OpenAI's headers call them.
_SHORT = {"requests/minute": "requests", "tokens/minute": "tokens"}


def headers(states: Sequence[LimitState]) -> dict[str, str]:
    """The headers of an answer that was given under these limits; none for none."""
    if not states:
        return {}
    tightest = _tightest(states)
    found = {
        "RateLimit-Policy": ", ".join(map(_policy, tightest)),
        "RateLimit": ", ".join(map(_left, tightest)),
    }
    for state in tightest:
        short = _SHORT.get(state.name)
        if short:
            found[f"x-ratelimit-limit-{short}"] = str(_number(state.limit))
            found[f"x-ratelimit-remaining-{short}"] = str(_number(state.remaining))
            found[f"x-ratelimit-reset-{short}"] = _duration(state.reset_s)
    return found


def _tightest(states: Iterable[LimitState]) -> list[LimitState]:
    """One state a name, in the order of the names' first."""
    found: dict[str, LimitState] = {}
    for state in states:
        known = found.get(state.name)
        if known is None or (state.remaining, -state.reset_s) < (known.remaining, -known.reset_s):
            found[state.name] = state
    return list(found.values())


def _policy(state: LimitState) -> str:
    item = f"{_name(state)};q={_number(state.limit)}"
    if state.name == _CONCURRENT:
        item += ';qu="concurrent-requests"'
    elif "tokens" in state.name:
        item += ';fairlane-unit="tokens"'
    return f"{item};w={state.window_s}" if state.window_s > 0 else item


def _left(state: LimitState) -> str:
    item = f"{_name(state)};r={_number(state.remaining)}"
    return f"{item};t={_number(state.reset_s)}" if state.window_s > 0 or state.reset_s > 0 else item


def _name(state: LimitState) -> str:
    return '"' + state.name.replace("/", "-").replace("_", "-") + '"'


def _number(value: int) -> int:
    return min(max(0, value), _NUMBER_MAX)


def _duration(seconds: int) -> str:
    """65 -> 1m5s."""
    seconds = _number(seconds)
    hours, rest = divmod(seconds, _HOUR)
    minutes, left = divmod(rest, _MINUTE)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"
