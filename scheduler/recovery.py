"""From the log back to State: take the id over, and read to an end asked for after that.

Order of things (docs/spec): what was read before the shard's transactional id is taken over
counts only because reading goes on, afterwards, to an end of `decisions` that is asked for
then. So everything may be read ahead: while brokers still end the transaction of a
predecessor, or long before, by a standby. Nothing is decided here.
"""

from collections.abc import Callable
from contextlib import closing

from scheduler.bodies import Bodies
from scheduler.fold import Fold
from scheduler.ports import Notes
from scheduler.story import RecoveryError
from schemas.log import Log, LogError, TransactionalProducer
from schemas.topics import Topics
from schemas.unended import unended

__all__ = ["RecoveryError", "recover", "take_over"]


#: How long a slice of reading ahead waits for records that must come.
AHEAD_S = 0.01
#: ... and how many in vain end it.
EMPTY_MAX = 100


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
    return _finished(Fold(log, topics, shard, notes, bodies))


def take_over(
    log: Log,
    producer: TransactionalProducer,
    fold: Fold,
    again: Callable[[], Fold],
    meanwhile: Callable[[], bool] | None = None,
) -> Fold:
    """Take a shard's id over, reading on meanwhile, and finish its state.

    Args:
        log: the log.
        producer: the shard's; nothing was initialised.
        fold: the state as far as it was read, by a standby or not at all.
        again: makes an empty one: what goes wrong before the id is ours is no verdict.
        meanwhile: other work, a slice each call; False when there was none. None: there is none.

    Raises:
        RecoveryError: the log lacks or contradicts what is needed, or the brokers have left
            a transaction of the predecessor without an end.
        LogError: it does not answer.
    """
    empty = idle = 0
    failed, reads = False, True

    def read_ahead() -> bool:
        nonlocal empty, idle, failed, reads
        if reads:
            try:
                empty = 0 if fold.turn(AHEAD_S) else empty + 1
            except (RecoveryError, LogError):
                failed = True
            reads = not failed and (empty == 0 or not fold.is_level) and empty < EMPTY_MAX
        if meanwhile is None:
            return reads
        idle = 0 if meanwhile() else idle + 1
        return reads or idle < EMPTY_MAX

    try:
        producer.init(read_ahead)
        if (left := unended(log, fold.story.partition)) is not None:
            raise RecoveryError(left)
    except BaseException:
        fold.close()
        raise
    if not failed:
        try:
            finished = _finished(fold, meanwhile)
            finished.check_topics()  # what was so when it was read may be long ago
        except RecoveryError:
            pass  # the same from its beginning says whether this is so
        else:
            return finished
    fold.close()
    return _finished(again(), meanwhile)


def _finished(fold: Fold, meanwhile: Callable[[], bool] | None = None) -> Fold:
    with closing(fold):
        fold.read_to(fold.story.end, meanwhile)
    return fold
