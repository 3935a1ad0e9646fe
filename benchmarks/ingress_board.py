"""A backlog on the board of an ingress under load, as a busy scheduler would publish it.

So that each request of the benchmark is looked at in full: against neighbours, tiers and a
target, which none of them misses.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adapters.redis_board import RedisBoard
from schemas.backlog import (
    RATE_MS,
    VERSION,
    PoolBacklog,
    QueueRow,
    QueueSlice,
    TierBacklog,
    level,
    slice_name,
)
from schemas.codec import encode
from schemas.policy import CostModel, Policy

EVERY_S = 0.2
#: What each tenant has waiting, and what the pool does in a second: far from any target.
WAITING = 1_000
PER_SECOND = 1_000_000


@contextmanager
def told(url: str, prefix: str, policy: Policy, tenants: Sequence[str]) -> Iterator[None]:
    """Publish the same backlog of the first pool again and again, until the end."""
    board, ended = RedisBoard(url, prefix), threading.Event()

    def publish() -> None:
        while not ended.wait(EVERY_S):
            _post(board, policy, tenants)

    _post(board, policy, tenants)
    thread = threading.Thread(target=publish, name="benchmark-backlog")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        board.close()


def _post(board: RedisBoard, policy: Policy, tenants: Sequence[str]) -> None:
    pool, now_ms = policy.pools[0].name, time.time_ns() // 1_000_000
    rows = tuple(QueueRow(0, name, WAITING, 10 * WAITING, WAITING, 0, 1) for name in tenants)
    work = WAITING * len(tenants)
    levels = ((level(WAITING, 1), work, len(tenants)),)
    board.post(slice_name(pool, 0), encode(QueueSlice(VERSION, now_ms, rows)))
    board.post(
        pool,
        encode(
            PoolBacklog(
                v=VERSION,
                pool=pool,
                at_ms=now_ms,
                unit=CostModel.REQUEST,
                rate=PER_SECOND * RATE_MS // 1_000,
                residual_ms=10,
                service_ms=50,
                spread_ms=5,
                slots=8,
                lanes=4,
                room=0,
                running=12,
                us_per_token=0,
                tiers=(TierBacklog(policy.tiers[0].name, work, work, 0, 0, levels),),
                stamps=(now_ms,),
            )
        ),
    )
