"""What is measured of a history of `simulation.direct`: gaps, their bound, waits, shares.

Service of a tenant is the true cost of its requests, counted in full when they are picked.
All are exact over everything that happened; only `since_start` samples, as its source does.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from simulation.direct import Job, Moment

Cost = Callable[[Job], int]


class Gap(NamedTuple):
    """The largest difference of weighted service, of these two, in an interval from `begin_us`."""

    tokens: float
    one: str
    two: str
    begin_us: int


class _Pair:
    """Running difference of two tenants while both have work, and its extremes."""

    def __init__(self, one: str, two: str) -> None:
        self.names = (one, two)
        self.is_open = False
        self.difference = self.low = self.high = 0.0
        self.begin_us = 0

    def open(self, now_us: int) -> None:
        self.is_open = True
        self.difference = self.low = self.high = 0.0
        self.begin_us = now_us

    def move(self, by: float) -> float:
        """Another difference; returns the largest over any interval so far."""
        self.difference += by
        self.low = min(self.low, self.difference)
        self.high = max(self.high, self.difference)
        return self.high - self.low


def backlogged_gaps(
    moments: Sequence[Moment], weights: Mapping[str, int], cost: Cost, settled: int = 0
) -> list[Gap]:
    """The worst interval of each pair in which both have requests waiting.

    In a stretch in which both wait, the difference D(t) of their weighted service since its
    beginning gives the interval from s to t a gap of |D(t) - D(s)|; the largest is max D -
    min D. The pick that empties a queue belongs to the stretch that it ends. Before `settled`
    requests of a tenant have ended, nothing counts.
    """
    pairs = [_Pair(*names) for names in combinations(sorted(weights), 2)]
    of = {name: [pair for pair in pairs if name in pair.names] for name in weights}
    worst = {pair.names: Gap(0, *pair.names, 0) for pair in pairs}
    waiting = dict.fromkeys(weights, 0)
    ended = dict.fromkeys(weights, 0)
    for what, at_us, job in moments:
        name = job.tenant
        if what == "picked":
            for pair in of[name]:
                if pair.is_open:
                    by = cost(job) / weights[name]
                    gap = pair.move(by if name == pair.names[0] else -by)
                    if gap > worst[pair.names].tokens:
                        worst[pair.names] = Gap(gap, *pair.names, pair.begin_us)
        waiting[name] += {"arrived": 1, "picked": -1, "dropped": -1, "ended": 0}[what]
        ended[name] += what == "ended"
        for pair in of[name]:
            both = all(waiting[n] > 0 and ended[n] >= settled for n in pair.names)
            if not both:
                pair.is_open = False
            elif not pair.is_open:
                pair.open(at_us)
    return list(worst.values())


def bound(
    gap: Gap, moments: Sequence[Moment], weights: Mapping[str, int], cost: Cost, quantum: int
) -> float:
    """How large the gap of two tenants may be: quantum + spread / weight of each.

    D* = deficit + credit - unsettled only moves by grants and picks. With M the dearest
    request, e the largest error of an estimate and k the most in flight, a pick leaves a D* of
    at least - k e, and a visit ends below M + k e; surcharges may use up credit. So spread <=
    M + 2 k e + sum of surcharges, over what was in flight when the last visit ended before the
    one that the interval may cut, or came later. With exact estimates it is M.
    """
    picked = [job for what, _, job in moments if what == "picked"]
    total = float(quantum)
    for name in (gap.one, gap.two):
        since_us = _before_cut_visit(picked, name, gap.begin_us)
        own = [job for job in picked if job.tenant == name]
        own = [job for job in own if job.end_us < 0 or job.end_us >= since_us]
        errors = [cost(job) - job.charge for job in own]
        dearest = max((max(cost(job), job.charge) for job in own), default=0)
        wrong = max(map(abs, errors), default=0)
        surcharges = sum(max(0, error) for error in errors)
        spread = dearest + 2 * wrong * _most_in_flight(own) + surcharges
        total += spread / weights[name]
    return total


def _before_cut_visit(picked: Sequence[Job], name: str, begin_us: int) -> int:
    """When a tenant was picked last in a visit that had ended by then; -1: never.

    A visit goes on while nobody else is picked, so picks in a row may be one.
    """
    found = -1
    row: str | None = None
    last_us = -1
    for job in picked:
        if job.picked_us >= begin_us:
            break
        if job.tenant == name:
            if row != name:
                found = last_us
            last_us = job.picked_us
        row = job.tenant
    return found


def _most_in_flight(jobs: Sequence[Job]) -> int:
    changes = [(job.picked_us, 1) for job in jobs]
    changes += [(job.end_us, -1) for job in jobs if job.end_us >= 0]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def since_start(
    jobs: Sequence[Job], tenants: Collection[str], cost: Cost, until_us: int, samples: int = 100
) -> float:
    """The public artifact's gap: most minus least service since the start.

    Service comes evenly from a request's first token to its end; the worst of the samples.
    """
    worst = 0.0
    for number in range(1, samples + 1):
        at_us = until_us * number // samples
        service = dict.fromkeys(tenants, 0.0)
        for job in jobs:
            if 0 <= job.first_us < at_us:
                done = min(1.0, (at_us - job.first_us) / max(1, job.end_us - job.first_us))
                service[job.tenant] += cost(job) * done
        worst = max(worst, max(service.values()) - min(service.values()))
    return worst


def throughput(moments: Sequence[Moment], jobs: Sequence[Job]) -> float:
    """Output tokens a second while anybody waits; each request's come evenly until its end."""
    waiting = since_us = 0
    stretches: list[tuple[int, int]] = []
    for what, at_us, _ in moments:
        before = waiting
        waiting += {"arrived": 1, "picked": -1, "dropped": -1, "ended": 0}[what]
        if waiting and not before:
            since_us = at_us
        elif before and not waiting and at_us > since_us:
            stretches.append((since_us, at_us))
    made = 0.0
    for job in jobs:
        if job.end_us > job.picked_us >= 0:
            inside = sum(
                max(0, min(end, job.end_us) - max(begin, job.picked_us)) for begin, end in stretches
            )
            made += job.output_tokens * inside / (job.end_us - job.picked_us)
    seconds = sum(end - begin for begin, end in stretches) / 1e6
    return made / seconds if seconds else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank; of nothing it is 0."""
    if not values:
        return 0.0
    ranked = sorted(values)
    return ranked[max(0, -int(-len(ranked) * percent // 100) - 1)]


def shares(jobs: Sequence[Job], cost: Cost) -> dict[str, float]:
    """Each tenant's part of the service of these jobs."""
    service: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        service[job.tenant] += cost(job)
    total = sum(service.values())
    return {name: own / total for name, own in service.items()}


def entitled(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Max-min fair amounts at equal weights: nobody gets more than it asks, the rest is level."""
    amounts: dict[str, float] = {}
    left = capacity
    for number, name in enumerate(sorted(demands, key=lambda n: (demands[n], n))):
        amounts[name] = min(demands[name], left / (len(demands) - number))
        left -= amounts[name]
    return amounts


def twice_running(moments: Sequence[Moment], weights: Mapping[str, int]) -> int:
    """Picks of the tenant that was picked last while another of its weight had work."""
    waiting = dict.fromkeys(weights, 0)
    last, found = "", 0
    for what, _, job in moments:
        name = job.tenant
        if what == "picked":
            others = any(
                count and other != name and weights[other] == weights[name]
                for other, count in waiting.items()
            )
            found += name == last and others
            last = name
        waiting[name] += {"arrived": 1, "picked": -1, "dropped": -1, "ended": 0}[what]
    return found
