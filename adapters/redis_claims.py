"""Redis: which POSTs with an Idempotency-Key are under way, at any ingress of the deployment.

A claim is a field of the request's entry in the index (`adapters.redis`), so that one look
finds both what is known of a request and who is at it. See lua/claim.lua.
"""

from typing import TYPE_CHECKING, NamedTuple

from adapters.redis import TIMEOUT_S, Gather, _answered, _entry, _source
from adapters.redis_script import Script
from schemas.front import CLAIM_MS, WAITING_TTL_MS, Claim, Claimed

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Claims in one script call: below 1 ms of Redis's time, so that others are not held up.
CLAIMS_MAX = 128


class _End(NamedTuple):
    claim: Claim
    is_in_doubt: bool


class RedisClaims:
    """Claims of keys; safe to call concurrently."""

    def __init__(self, client: "Redis", prefix: str, timeout_s: float = TIMEOUT_S) -> None:
        """`prefix` is the index's."""
        self._prefix, self._timeout_s = prefix, timeout_s
        self._claim = Script(client, _source("claim"))
        self._unclaim = Script(client, _source("unclaim"))
        self._claims = Gather(self._claim_all, CLAIMS_MAX, wait_s=timeout_s)
        self._ends = Gather(self._end_all, CLAIMS_MAX, wait_s=timeout_s)

    async def claim(self, claim: Claim) -> Claimed:
        """Begin a POST, or learn why not. Raises StoreDownError."""
        return await self._claims(claim)

    async def release(self, claim: Claim) -> None:
        """It ended with nothing in the log: the key is free again. Raises StoreDownError."""
        await self._ends(_End(claim, is_in_doubt=False))

    async def hold(self, claim: Claim) -> None:
        """It ended in doubt: the key stays this body's. Raises StoreDownError."""
        await self._ends(_End(claim, is_in_doubt=True))

    def _key(self, claim: Claim) -> str:
        return f"{self._prefix}:{{{claim.name.tenant}}}:request:{claim.name.id}"

    async def _claim_all(self, claims: list[Claim]) -> list[Claimed]:
        arguments: list[str | int] = [CLAIM_MS, WAITING_TTL_MS]
        for claim in claims:
            arguments += [claim.digest, claim.owner]
        keys = [self._key(claim) for claim in claims]
        answers = await _answered(self._claim(keys=keys, args=arguments), self._timeout_s)
        return [
            Claimed(_entry(accepted or None, ended or None, None), digest.decode(), held == 1)
            for accepted, ended, digest, held in answers
        ]

    async def _end_all(self, ends: list[_End]) -> list[None]:
        arguments: list[str | int] = [WAITING_TTL_MS]
        for claim, is_in_doubt in ends:
            arguments += [claim.digest, claim.owner, int(is_in_doubt)]
        keys = [self._key(end.claim) for end in ends]
        await _answered(self._unclaim(keys=keys, args=arguments), self._timeout_s)
        return [None] * len(ends)
