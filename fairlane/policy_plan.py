"""What applying a policy would do: the difference to the published one, and what forbids it.

Pure. A plan is a list of changes in the order of the document; `forbidden` names the
changes that the topics can't follow, each with its reason and the way out.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier

_Named = Tier | Pool | Endpoint | Tenant


class Change(NamedTuple):
    """One line of a plan: `+` added, `~` changed, `-` removed."""

    sign: str
    what: str
    detail: str = ""

    def __str__(self) -> str:
        """Line for people: `~ endpoint "embed": quantum 1 -> 32`."""
        return f"{self.sign} {self.what}{': ' if self.detail else ''}{self.detail}"


def plan(old: Policy | None, new: Policy) -> list[Change]:
    """Changes that lead from the published policy (None: there is none) to the new one."""
    changes = [*_topology(old, new), *_rank(old, new)]
    for word, before, after in (
        ("tier", old.tiers if old else (), new.tiers),
        ("pool", old.pools if old else (), new.pools),
        ("endpoint", old.endpoints if old else (), new.endpoints),
        ("tenant", old.tenants if old else (), new.tenants),
    ):
        changes += _section(word, before, after)
    return changes


def forbidden(old: Policy | None, new: Policy) -> list[str]:
    """Why the new policy can't follow the published one; empty when it can."""
    if old is None:
        return []
    reasons = []
    if old.topology != new.topology:
        reasons.append(
            f"topology: {_differences(old.topology, new.topology)}: it decides on which partitions "
            "published requests stand and is fixed by the first policy; keep it, or start "
            "another deployment under another FAIRLANE_PREFIX"
        )
    for pool in new.pools:
        before = old.pool(pool.name)
        if before is not None and before.lanes != pool.lanes:
            reasons.append(
                f'pool "{pool.name}": lanes {before.lanes} -> {pool.lanes}: a lane is a partition '
                "and may hold batches; keep the number, or define a pool of another name and "
                "let the endpoint name it"
            )
    return reasons


def _topology(old: Policy | None, new: Policy) -> Iterator[Change]:
    if old is None:
        top = new.topology
        shape = f"shards {top.shards}, spread {top.spread}, buckets {top.buckets}"
        yield Change("+", "topology", shape)
    elif old.topology != new.topology:
        yield Change("~", "topology", _differences(old.topology, new.topology))


def _rank(old: Policy | None, new: Policy) -> Iterator[Change]:
    """Tell a changed order of the tiers that stay: it changes who is served first."""
    if old is None:
        return
    before = [tier.name for tier in old.tiers]
    after = [tier.name for tier in new.tiers]
    kept = [name for name in before if name in after]
    if kept != [name for name in after if name in before]:
        yield Change("~", "rank of tiers", f"{', '.join(before)} -> {', '.join(after)}")


def _section(word: str, before: Sequence[_Named], after: Sequence[_Named]) -> Iterator[Change]:
    old = {item.name: item for item in before}
    new = {item.name: item for item in after}
    for name, item in new.items():
        if name not in old:
            yield Change("+", f'{word} "{name}"', _given(item))
        elif old[name] != item:
            yield Change("~", f'{word} "{name}"', _differences(old[name], item))
    for name in old:
        if name not in new:
            yield Change("-", f'{word} "{name}"')


def _given(item: msgspec.Struct) -> str:
    """Fields that are not at their default, but for the name."""
    shown = [
        f"{field.name} {_text(getattr(item, field.name))}"
        for field in msgspec.structs.fields(item)
        if field.name != "name" and (field.required or not _is_default(item, field))
    ]
    return ", ".join(shown)


def _is_default(item: msgspec.Struct, field: msgspec.structs.FieldInfo) -> bool:
    value = getattr(item, field.name)
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def _differences(before: msgspec.Struct, after: msgspec.Struct) -> str:
    return ", ".join(
        f"{field} {_text(getattr(before, field))} -> {_text(getattr(after, field))}"
        for field in before.__struct_fields__
        if getattr(before, field) != getattr(after, field)
    )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "none" if value in (None, "") else str(value)
