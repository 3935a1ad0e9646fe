"""From the log back to State: take the id over, and read to an end asked for after that.

Order of things (docs/spec): what was read before the shard's transactional id is taken over
counts only because reading goes on, afterwards, to an end of `decisions` that is asked for
then. So everything may be read ahead: while brokers still end the transaction of a
predecessor, or long before, by a standby. Nothing is decided here.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from scheduler.bodies import Bodies
from scheduler.core.mismatch import StateMismatchError
from scheduler.fold import Fold
from scheduler.ports import Notes
from scheduler.story import RecoveryError
from schemas.log import Log, LogError, TransactionalProducer
from schemas.topics import Topics

__all__ = ["RecoveryError", "recover", "take_over"]


def recover(
    log: Log, topics: Topics, shard: int, notes: Notes, bodies: Bodies | None = None
) -> Fold:
    """Rebuild a shard's state from its log, up to its end now.

    Args:
        log: the log.
        topics: names of the deployment.
        shard: which partition of `decisions`.
        notes: progress, one line per phase.
        bodies: takes the bodies of what has not ended; None: the state alone is wanted.

    Raises:
        RecoveryError: the log lacks or contradicts what is needed.
        UnavailableError: the log does not answer.
    """
    fold = Fold(log, topics, shard, notes, bodies)
    with _without_collections(), closing(fold):
        fold.read_to(fold.story.end)
    return fold


def take_over(producer: TransactionalProducer, fold: Fold, again: Callable[[], Fold]) -> Fold:
    """Take a shard's id over, reading on meanwhile, and finish its state.

    Args:
        producer: the shard's; nothing was initialised.
        fold: the state as far as it was read, by a standby or not at all.
        again: makes an empty one: what goes wrong before the id is ours is no verdict.

    Raises:
        RecoveryError: the log lacks or contradicts what is needed.
        LogError: it does not answer.
    """
    with _without_collections():
        failed = False

        def read_ahead() -> bool:
            nonlocal failed
            try:
                return fold.turn()
            except (RecoveryError, StateMismatchError, LogError):
                failed = True
                return False

        producer.init(read_ahead)
        if failed:
            fold.close()
            fold = again()
        with closing(fold):
            fold.read_to(fold.story.end)
    return fold


@contextmanager
def _without_collections() -> Iterator[None]:
    """Millions of objects that stay are made: looking for cycles among them finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
