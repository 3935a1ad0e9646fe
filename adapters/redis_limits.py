"""Redis: the limits' counters.

What belongs here: keys, commands, time-outs, and gathering concurrent calls into one round trip.
What does not: which limits there are, or what to do while Redis is down; every failure of the
client surfaces as `StoreDownError`.

Keys, all but the last with the family's root as the hash tag (a tenant without a parent is its
own root), all with a TTL; the scripts' headers say what is in them:
    <prefix>:{<root>}:limit:<tenant>:<endpoint>         lua/limiter.lua
    <prefix>:{<root>}:charge:<tenant>:<endpoint>:<id>   lua/limiter.lua
    <prefix>:ingresses                                  lua/ingresses.lua
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ConnectionError as NotConnectedError

from adapters.redis import TIMEOUT_S, WRITE_TIMEOUT_S, Gather, _answered, _source
from adapters.redis_script import Script
from schemas.front import (
    CHARGE_TTL_MS,
    INGRESS_TTL_MS,
    OPEN_CHARGE_TTL_MS,
    SLOT_MS,
    SLOTS,
    Charge,
    MonthUse,
    Settlement,
    Verdict,
)
from schemas.policy import Allowance
from schemas.verdicts import enforced, verdict

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Items in one script call: about 1 ms of Redis's time, so that others are not held up.
ITEMS_MAX = 64
#: Script calls under way at a time: Redis runs one while this process makes the next. Each family
#: has its place in one of the two, so that its charges are made in their order.
CALLS_MAX = 2
#: And on a cluster so many for each of these, one a family: each takes a connection.
FAMILIES_MAX = 8
#: Texts of allowances that are kept: one for each that a policy names, mostly far fewer.
_TEXTS_MAX = 4_096


class _Item(NamedTuple):
    """One item of a script call: its hash tag, its keys and its words."""

    tag: str
    keys: tuple[str, ...]
    words: str


class RedisLimits:
    """Charges against the counters in Redis; safe to call concurrently."""

    def __init__(
        self,
        client: "Redis",
        prefix: str,
        now_override_ms: str = "",
        timeout_s: float = TIMEOUT_S,
        *,
        is_cluster: bool = False,
    ) -> None:
        """`now_override_ms` stands in for Redis's clock in tests; leave it empty in service.

        On a cluster, each call carries the items of one hash tag.
        """
        self._prefix, self._timeout_s, self._is_cluster = prefix, timeout_s, is_cluster
        self.now_override_ms = now_override_ms
        self._script = Script(client, _source("limiter"))
        self._ingresses = client.register_script(_source("ingresses"))
        self._gathers = [Gather(self._run_soon, ITEMS_MAX, timeout_s) for _ in range(CALLS_MAX)]

    async def charge(self, charge: Charge) -> Verdict:
        """Take the charge or nothing; raises StoreDownError (then it may have been taken)."""
        id_ms = OPEN_CHARGE_TTL_MS if charge.keeps_id else CHARGE_TTL_MS
        limits = _limits(charge.allowance, charge.parent_allowance if charge.parent else None)
        amounts = f"{charge.requests} {charge.tokens} {charge.weight} {id_ms}"
        words = f"c {2 if charge.parent else 1} {amounts} {limits}"
        return verdict(charge, await self._soon(self._item(charge, words)))

    async def refund(self, charge: Charge) -> bool:
        """Give a charge back, once; its request was certainly not published.

        Returns whether there was anything to give back; raises StoreDownError.
        """
        words = f"r {2 if charge.parent else 1}"
        return bool((await self._soon(self._item(charge, words)))[0])

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        """Put true tokens in the place of estimates, each once; returns how many were.

        Raises StoreDownError; settling again what was settled changes nothing.
        """
        done = 0
        for start in range(0, len(settlements), ITEMS_MAX):
            items = [
                self._item(
                    one,
                    f"s {2 if one.parent else 1} {-1 if one.tokens is None else one.tokens}",
                )
                for one in settlements[start : start + ITEMS_MAX]
            ]
            done += sum(answer[0] for answer in await self._run(items, WRITE_TIMEOUT_S))
        return done

    async def restore(self, uses: Sequence[MonthUse]) -> int:
        """Raise what a month's counters hold to what is known to have been taken.

        For a Redis that lost them. Returns how many were raised; raises StoreDownError.
        """
        done = 0
        for start in range(0, len(uses), ITEMS_MAX):
            items = [self._month(use) for use in uses[start : start + ITEMS_MAX]]
            done += sum(answer[0] for answer in await self._run(items, WRITE_TIMEOUT_S))
        return done

    async def announce(self, name: str) -> int:
        """Say that an ingress lives; returns how many do. Raises StoreDownError."""
        call = self._ingresses(keys=[f"{self._prefix}:ingresses"], args=[name, INGRESS_TTL_MS])
        return int(await _answered(call, self._timeout_s))

    def _item(self, asked: Charge | Settlement, words: str) -> _Item:
        tenant, endpoint, parent = asked.tenant, asked.endpoint, asked.parent
        root = parent or tenant
        tag = f"{self._prefix}:{{{root}}}"
        own = f"{tag}:limit:{tenant}:{endpoint}"
        paid = f"{tag}:charge:{tenant}:{endpoint}:{asked.id}"
        if parent:
            return _Item(root, (own, f"{tag}:limit:{parent}:{endpoint}", paid), words)
        return _Item(root, (own, paid), words)

    def _month(self, use: MonthUse) -> _Item:
        root = use.parent or use.tenant
        key = f"{self._prefix}:{{{root}}}:limit:{use.tenant}:{use.endpoint}"
        return _Item(root, (key, key), f"m 1 {use.month_end_ms} {use.requests} {use.tokens}")

    def _soon(self, item: _Item) -> Coroutine[Any, Any, list[int]]:
        return self._gathers[hash(item.tag) % CALLS_MAX](item)

    async def _run_soon(self, items: list[_Item]) -> list[list[int]]:
        return await self._run(items, self._timeout_s)

    async def _run(self, items: list[_Item], timeout_s: float) -> list[list[int]]:
        if not self._is_cluster:
            return await self._call(items, timeout_s)
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item.tag, []).append(place)
        answers: list[list[int]] = [[]] * len(items)
        families = list(places.values())
        for start in range(0, len(families), FAMILIES_MAX):
            some = families[start : start + FAMILIES_MAX]
            calls = (self._call([items[place] for place in tagged], timeout_s) for tagged in some)
            for tagged, found in zip(some, await asyncio.gather(*calls), strict=True):
                for place, answer in zip(tagged, found, strict=True):
                    answers[place] = answer
        return answers

    async def _call(self, items: list[_Item], timeout_s: float) -> list[list[int]]:
        keys = [key for item in items for key in item.keys]
        arguments: list[str | int] = [SLOT_MS, SLOTS, CHARGE_TTL_MS, self.now_override_ms]
        arguments += [item.words for item in items]

        async def call() -> Any:
            try:
                return await self._script(keys=keys, args=arguments)
            except NotConnectedError:
                # The server was started anew since the last call, or closed an idle connection:
                # ids make a second call of the same charges the first one.
                return await self._script(keys=keys, args=arguments)

        answers: list[list[int]] = await _answered(call(), timeout_s)
        return answers


@lru_cache(_TEXTS_MAX)
def _limits(own: Allowance, parent: Allowance | None) -> str:
    words = enforced(own) + (enforced(parent) if parent is not None else [])
    return " ".join(map(str, words))
