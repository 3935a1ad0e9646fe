"""Max-min fair shares, as water fills vessels: who wants less leaves the rest to the others.

Exact fractions, no knowledge of any scheduler. The share of a tenant is the lesser of its demand
and weight * level, with one level for all, so high that the capacity is used up (or every demand
is met).
"""

from collections.abc import Mapping
from fractions import Fraction

Shares = dict[str, Fraction]


def fill(
    capacity: Fraction | int, demands: Mapping[str, Fraction | int], weights: Mapping[str, int]
) -> Shares:
    """Divide a capacity: raise the level until the next one is content, again and again."""
    shares = dict.fromkeys(demands, Fraction(0))
    left = Fraction(capacity)
    thirsty = {name for name, demand in demands.items() if demand > 0}
    while thirsty and left > 0:
        together = sum(weights[name] for name in thirsty)
        rise = min((demands[n] - shares[n]) / Fraction(weights[n]) for n in thirsty)
        rise = min(rise, left / together)
        for name in thirsty:
            shares[name] += rise * weights[name]
        left -= rise * together
        thirsty = {name for name in thirsty if shares[name] < demands[name]}
    return shares


def fill_families(
    capacity: Fraction | int,
    demands: Mapping[str, Fraction | int],
    weights: Mapping[str, int],
    parents: Mapping[str, str],
) -> Shares:
    """Two levels: among parents first, then among each parent's children.

    A tenant that `parents` doesn't name is its own parent; as a child of itself, beside
    others, it has weight 1.
    """
    families: dict[str, list[str]] = {}
    for name in demands:
        families.setdefault(parents.get(name, name), []).append(name)
    of_family = fill(
        capacity,
        {family: sum(Fraction(demands[n]) for n in names) for family, names in families.items()},
        {family: weights[family] for family in families},
    )
    shares: Shares = {}
    for family, names in families.items():
        inside = {name: 1 if name == family else weights[name] for name in names}
        shares |= fill(of_family[family], {name: demands[name] for name in names}, inside)
    return shares
