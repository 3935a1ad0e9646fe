"""Everything an ingress is made of, as the process wiring hands it in."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from producers.core.inputs import TokenCount
from producers.limiting import WhenDown
from producers.ports import (
    BacklogReader,
    Claims,
    Clock,
    Index,
    Limits,
    Meter,
    NoMeter,
    Offload,
    RandomBytes,
)
from schemas.log import Log
from schemas.topics import Topics


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything an ingress is made of; see `fairlane` for the wiring."""

    log: Log
    topics: Topics
    limits: Limits
    index: Index
    clock: Clock
    random_bytes: RandomBytes
    offload: Offload = asyncio.to_thread
    #: Name of the static member in the index group: it takes over from itself at once.
    instance: str | None = None
    when_down: WhenDown = WhenDown.DEGRADED
    meter: Meter = field(default_factory=NoMeter)
    #: None: there is no other ingress.
    claims: Claims | None = None
    #: None: nothing is refused by predicted waits.
    backlog: BacklogReader | None = None
    #: Tokenizers that are at hand, by endpoint; others' tokens are estimated.
    token_counts: Mapping[str, TokenCount] = field(default_factory=dict)
