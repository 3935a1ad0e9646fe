"""What people tell the scheduler, on the topic `control`; partition = shard.

Records as in `schemas.records`: msgspec arrays `[tag, v, field, ...]`, new fields last.
A cancel goes to the one shard where its request stands; a pause or a resume goes to every
shard, because each knows only the pools that are its own.
"""

from msgspec import Struct


class Cancel(Struct, array_like=True, tag="cancel", frozen=True):
    """End the request that stands at this place, wherever it is by now."""

    v: int
    topic: str
    partition: int
    offset: int


class Pause(Struct, array_like=True, tag="pause", frozen=True):
    """Pick nothing of this tenant at this endpoint; what waits goes on waiting, and expires.

    `tenant` "" is every tenant, `endpoint` "" every endpoint; never both. A tenant's children
    are paused with it. `until_ms` is when it is over by itself, 0: only by a `Resume`. A later
    pause of the same two names takes the place of an earlier one.
    """

    v: int
    tenant: str
    endpoint: str
    until_ms: int = 0


class Resume(Struct, array_like=True, tag="resume", frozen=True):
    """End the pause of the same two names; others that cover the same requests stay."""

    v: int
    tenant: str
    endpoint: str


ControlRecord = Cancel | Pause | Resume
