"""Who asks for what: seeded generators of arrivals, one for each kind of traffic.

Every generator is a pure function of a `random.Random` and its arguments, and gives a list
of `Arrival` in order of time. A tenant that has a generator of its own (`stream`) asks for
the same whatever others do: enlarging one tenant's burst changes nobody else's traffic.

What belongs here: times and sizes of requests. What does not: policies, and who is served.
"""

from functools import cache
from random import Random
from typing import NamedTuple

from simulation.door import Arrival

#: The engine's rule: four bytes are a token.
BYTES_PER_TOKEN = 4
#: A body is a JSON string: its two quotes take half a token.
_QUOTES = 2


class Asker(NamedTuple):
    """A tenant at an endpoint; its bodies have `tokens_min`..`tokens_max` tokens, evenly."""

    tenant: str
    tier: str
    endpoint: str
    tokens_min: int = 40
    tokens_max: int = 160


def stream(seed: int, name: str) -> Random:
    """The generator of one tenant under one seed, the same on every machine."""
    return Random(f"{seed}:{name}")  # noqa: S311 - traffic, no secret


@cache
def text_body(tokens: int) -> bytes:
    """A JSON string that counts as exactly `tokens` tokens (at least 1)."""
    return b'"' + b"x" * (BYTES_PER_TOKEN * max(1, tokens) - _QUOTES) + b'"'


def steady(
    random: Random, asker: Asker, start_ms: int, stop_ms: int, every_ms: int
) -> list[Arrival]:
    """One request every `every_ms` in [start, stop); only the first one's place is drawn."""
    first_ms = start_ms + random.randrange(every_ms)
    return [_arrival(random, asker, at_ms) for at_ms in range(first_ms, stop_ms, every_ms)]


def poisson(
    random: Random, asker: Asker, start_ms: int, stop_ms: int, per_s: float
) -> list[Arrival]:
    """Independent requests in [start, stop), `per_s` a second on average."""
    arrivals = []
    at_ms = start_ms + random.expovariate(per_s) * 1000
    while at_ms < stop_ms:
        arrivals.append(_arrival(random, asker, int(at_ms)))
        at_ms += random.expovariate(per_s) * 1000
    return arrivals


def bursty(
    random: Random, asker: Asker, start_ms: int, stop_ms: int, every_ms: int, size: int
) -> list[Arrival]:
    """Bursts of about `size` requests (half to one and a half), `every_ms` apart on average."""
    arrivals = []
    at_ms = start_ms + random.expovariate(1 / every_ms)
    while at_ms < stop_ms:
        count = random.randint(max(1, size // 2), max(1, size + size // 2))
        arrivals += burst(random, asker, int(at_ms), count)
        at_ms += random.expovariate(1 / every_ms)
    return arrivals


def on_off(
    random: Random,
    asker: Asker,
    start_ms: int,
    stop_ms: int,
    on_ms: int,
    off_ms: int,
    per_s: float,
) -> list[Arrival]:
    """Poisson traffic for `on_ms`, then silence for `off_ms`, again and again."""
    arrivals = []
    for begin_ms in range(start_ms, stop_ms, on_ms + off_ms):
        arrivals += poisson(random, asker, begin_ms, min(begin_ms + on_ms, stop_ms), per_s)
    return arrivals


def burst(random: Random, asker: Asker, at_ms: int, count: int) -> list[Arrival]:
    """`count` requests at one moment; a smaller burst is the beginning of a larger one."""
    return [_arrival(random, asker, at_ms) for _ in range(count)]


def sized(random: Random, arrivals: list[Arrival], asker: Asker, median: int) -> list[Arrival]:
    """The same requests with heavy-tailed sizes: log-normal tokens around `median`.

    About one in fifty has more than eight times as many; clamped to the asker's least and most.
    """
    return [
        arrival._replace(body=text_body(_clamped(random.lognormvariate(0, 1) * median, asker)))
        for arrival in arrivals
    ]


def pareto(random: Random, arrivals: list[Arrival], asker: Asker, alpha: float) -> list[Arrival]:
    """Likewise with Pareto's tail from the asker's least on: the smaller `alpha`, the heavier."""
    return [
        arrival._replace(
            body=text_body(_clamped(random.paretovariate(alpha) * asker.tokens_min, asker))
        )
        for arrival in arrivals
    ]


def _clamped(tokens: float, asker: Asker) -> int:
    return int(min(max(tokens, asker.tokens_min), asker.tokens_max))


class Agent:
    """A closed loop: asks, waits for the answer, thinks, asks again, `turns` times.

    `first` is its first turn; `after(now)` the next one, once the last has ended. A tenant
    may have several; each draws from its own generator.
    """

    def __init__(
        self, random: Random, asker: Asker, start_ms: int, turns: int, think_ms: int
    ) -> None:
        self._random = random
        self._asker = asker
        self._left = turns - 1
        self._think_ms = think_ms
        self.first = _arrival(random, asker, start_ms)

    def after(self, now_ms: int) -> Arrival | None:
        """The turn that follows on an answer at `now_ms`, thinking included; None: no more."""
        if self._left <= 0:
            return None
        self._left -= 1
        thinks_ms = int(self._random.expovariate(1 / self._think_ms)) if self._think_ms else 0
        return _arrival(self._random, self._asker, now_ms + thinks_ms)


def few(random: Random, asker: Asker, start_ms: int, stop_ms: int, count: int) -> list[Arrival]:
    """`count` requests at moments drawn evenly from [start, stop)."""
    moments = sorted(random.randrange(start_ms, stop_ms) for _ in range(count))
    return [_arrival(random, asker, at_ms) for at_ms in moments]


def _arrival(random: Random, asker: Asker, at_ms: int) -> Arrival:
    tokens = random.randint(asker.tokens_min, asker.tokens_max)
    return Arrival(at_ms, asker.tenant, asker.endpoint, asker.tier, text_body(tokens))
