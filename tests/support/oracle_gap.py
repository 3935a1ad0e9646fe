"""The bound between two tenants over any interval in which both have eligible work.

Let Q be the quantum, w the weights, S the service of an interval (true cost of the picks in
it), and D* = deficit + credit - unsettled (tests.support.oracle_ledger). Then for i and j,

    S_i/w_i - S_j/w_j  <=  Q + spread_i/w_i + spread_j/w_j

where the spread of a tenant is the greatest minus the least D* that it has at rest (while the
pointer is not on its seat) from the interval's beginning to its end; a visit that the interval
cuts counts from below alone, by the least value met in it.

Why. S = grants - change of D*. Say the interval touches n visits of i. Between two visits of i
in a row the pointer comes to j once and leaves it, so j has at least n - 1 whole visits. With
R the balance at rest before the first touched visit of i:  S_i = n Q w_i + R_i - D*_i(end),  and
for j, whose last visit may be cut, with R at rest before that one:  S_j >= (n - 1) Q w_j +
D*_j(begin) - R_j.  Divide by the weights and subtract: the grants differ by one Q, the rest are
differences of two values that the spreads cover.

With exact estimates D* is the deficit. At rest it is below the cost of a head that it did not
cover, and a pick never takes it below 0: the spread is at most M - 1, M the greatest cost. So

    gap  <=  Q + (M - 1)/w_i + (M - 1)/w_j

for every pair and every interval. Where estimates err, or batches are lost, D* moves still with
grants and picks alone, a settlement leaves it where it is. With at most k requests of a tenant in
flight, k M is the most that is unsettled: a pick leaves a D* of at least - k M; a visit ends below
M (deficit) + M (credit) + k M. The spread is at most (2 k + 2) M: in flight, not in the past.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.support.oracle_ledger import Account, Ledger


@dataclass(frozen=True)
class Interval:
    """An interval between two moments, and by how much its gap is above the bound."""

    begin: int
    end: int
    ahead: str
    behind: str
    gap: Fraction
    bound: Fraction


def spans(moments: Sequence[dict[str, Account]], one: str, two: str) -> Iterator[tuple[int, int]]:
    """Longest runs of moments at which both are eligible, and the one that ends each."""
    begin: int | None = None
    for number, moment in enumerate(moments):
        both = all(name in moment and moment[name].eligible for name in (one, two))
        if both and begin is None:
            begin = number
        if begin is not None and (not both or number == len(moments) - 1):
            yield begin, number
            begin = None


def broken_bounds(
    ledger: Ledger, weights: dict[str, int], quantum: int, spread: int | None = None
) -> list[Interval]:
    """Intervals beyond the bound: the worst of each span and pair.

    Every tenant's `spread` is given, or else measured.
    """
    found = []
    for ahead in weights:
        for behind in weights:
            if ahead == behind:
                continue
            for begin, end in spans(ledger.moments, ahead, behind):
                worst = worst_of(ledger, (begin, end), ahead, behind, weights, quantum, spread)
                if worst is not None:
                    found.append(worst)
    return found


def rests(ledger: Ledger, name: str) -> list[int]:
    """D* at rest at each moment; while the pointer is on its seat, the one before it came."""
    found, last, visits, service = [], 0, 0, 0
    for moment in ledger.moments:
        account = moment.get(name)
        if account is not None:
            if not account.visited:
                last = whole(account)
            elif account.visits != visits:
                last = account.granted - account.increment - service
            visits, service = account.visits, account.service
        found.append(last)
    return found


def whole(account: Account) -> int:
    """D* with what the cap of the credit took: it was granted, and never served."""
    return account.granted - account.service


def worst_of(
    ledger: Ledger,
    span: tuple[int, int],
    ahead: str,
    behind: str,
    weights: dict[str, int],
    quantum: int,
    spread: int | None,
) -> Interval | None:
    """Of all intervals of one span, the one that is furthest beyond its bound."""
    worst: Interval | None = None
    begin, end = span
    moments = ledger.moments
    rest = {name: rests(ledger, name) for name in (ahead, behind)}
    weight_a, weight_b = weights[ahead], weights[behind]
    both = weight_a * weight_b

    def service(number: int) -> int:
        """Weighted difference, times both weights: integers are faster than fractions."""
        at = moments[number]
        return at[ahead].service * weight_b - at[behind].service * weight_a

    at_pick = sorted({pick.moment for pick in ledger.picks if begin < pick.moment <= end})
    for first in [begin, *at_pick]:
        low = {n: min(rest[n][first], whole(moments[first][n])) for n in (ahead, behind)}
        high = {n: rest[n][first] for n in (ahead, behind)}
        start = service(first)
        for last in at_pick:
            if last <= first:
                continue
            for name in (ahead, behind):
                high[name] = max(high[name], rest[name][last])
                low[name] = min(low[name], rest[name][last])
            spread_a = high[ahead] - min(low[ahead], whole(moments[last][ahead]))
            spread_b = high[behind] - min(low[behind], whole(moments[last][behind]))
            if spread is not None:
                spread_a = spread_b = spread
            bound = quantum * both + spread_a * weight_b + spread_b * weight_a
            over = service(last) - start - bound
            if over > 0 and (worst is None or over > (worst.gap - worst.bound) * both):
                gap = Fraction(service(last) - start, both)
                worst = Interval(first, last, ahead, behind, gap, Fraction(bound, both))
    return worst
