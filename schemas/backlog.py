"""What the scheduler tells the ingresses about what waits: a few numbers, several times a second.

Of each pool there is one `PoolBacklog`, its head, and `QueueSlice`s with the queues of
tenants that have something waiting. A few thousand queues stand in one slice that is written
with each head; more are written in turn, a slice at a time, so that the work of writing them
is bounded; `stamps` of the head tells which slice is how old.

Neighbours are told in sum: `levels` of a tier hold the members of its ring (tenants without a
parent, and families) by how much they have waiting for their weight, so that the sum over
neighbours of min(queue, weight x y) takes a few steps whatever their number.

Work and debts are in the pool's unit, rates in units in 1,000 seconds, times in epoch
milliseconds by the scheduler's clock. Nothing is decided by these records but who is let in.
"""

from msgspec import Struct

from schemas.policy import CostModel

VERSION = 1
#: A backlog that is older says nothing any more.
STALE_MS = 2_000
#: ... or than so many times what lies between two heads, where there is much to look at.
STALE_LOOKS = 4
#: A reader that comes later than this finds nothing at all.
KEPT_MS = 60_000
#: `rate` and `taken` count what is done in so many milliseconds.
RATE_MS = 1_000_000
#: `head` of a queue whose first request can't be compared with another.
NO_HEAD = -1
#: Bits of the steps in each doubling: work for weight is known to a quarter.
_STEP_BITS = 2
#: Parts of a unit that levels tell apart, so that a weight may be larger than the work.
_FRACTION_BITS = 8
#: Levels that there are: of work and weights of up to 70 bits.
LEVELS = 71 << _STEP_BITS
#: Deadlines beside a priority in `head`, as many bits as a time has.
_TIME_BITS = 48


class QueueRow(Struct, array_like=True, frozen=True, gc=False):
    """What one tenant has waiting in one tier, of rank `tier`.

    `debt` is what it was served in advance, its parent's included. `head` orders the first of
    its requests, see `head_of`.
    """

    tier: int
    tenant: str
    count: int
    tokens: int
    work: int
    debt: int
    weight: int
    head: int = NO_HEAD


class QueueSlice(Struct, array_like=True, frozen=True):
    """A part of a pool's queues."""

    v: int
    at_ms: int
    queues: tuple[QueueRow, ...]


class TierBacklog(Struct, array_like=True, frozen=True):
    """One tier of a pool.

    `taken`: what was picked of it lately. `floor`: percent. `levels`: (level, work, weight), each
    the sums of the members whose `level` it is, ascending.
    """

    name: str
    count: int
    work: int
    taken: int
    floor: int
    levels: tuple[tuple[int, int, int], ...]


class PoolBacklog(Struct, array_like=True, frozen=True):
    """The head: one pool at one moment.

    Attributes:
        unit: the cost model that work is counted in.
        rate: what all slots do together when they are busy; 0: not measured yet.
        residual_ms: until a batch can be sent again.
        service_ms: from the pick of a request to its end, on average.
        spread_ms: how far from that it usually is.
        slots: of lanes with a live worker.
        lanes: those lanes; 0: nobody works here.
        room: batches that can be sent at once.
        running: batches in workers' hands.
        us_per_token: service of a token as learned, for `adaptive`.
        tiers: in rank order.
        stamps: when each slice of the queues was written.
        read: (topic, partition, next offset to read) of the requests' partitions.
        every_ms: until the next head, as it looks now.
    """

    v: int
    pool: str
    at_ms: int
    unit: CostModel
    rate: int
    residual_ms: int
    service_ms: int
    spread_ms: int
    slots: int
    lanes: int
    room: int
    running: int
    us_per_token: int
    tiers: tuple[TierBacklog, ...]
    stamps: tuple[int, ...]
    read: tuple[tuple[str, int, int], ...] = ()
    every_ms: int = 0


def level(work: int, weight: int) -> int:
    """The level of a member: the logarithm of its work for its weight, in quarters of a doubling.

    Members of a level differ by a quarter at most.
    """
    scaled = (work << _FRACTION_BITS) // max(1, weight)
    bits = scaled.bit_length()
    below = bits - 1 - _STEP_BITS
    step = scaled >> below if below >= 0 else scaled << -below
    return min(bits << _STEP_BITS | step & ((1 << _STEP_BITS) - 1), LEVELS - 1)


def head_of(priority: int, deadline_ms: int) -> int:
    """Order of a request inside its tenant as far as its arrival: the smaller one goes first."""
    return priority << _TIME_BITS | (deadline_ms or (1 << _TIME_BITS) - 1)


def slice_name(pool: str, index: int) -> str:
    """Name that a slice is published under; the head is under the pool's own."""
    return f"{pool}:{index}"
