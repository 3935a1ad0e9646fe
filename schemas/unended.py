"""Transactions that nobody ends any more.

Taking a transactional id over ends what the predecessor left open. Brokers can break that
promise: those of Kafka 4.3 and 4.4, killed and started again, forget the end of a transaction
whose partitions have no leader at that moment, and hold it for complete (KAFKA-20734). Its
records stay without an end until the next transaction of the same id ends, and are then
committed with it: decided, or run, a second time. So who has taken an id over looks, in the
partition where transactions of this id alone are. What others append there outside of
transactions plays no part.
"""

from contextlib import closing

from schemas.log import Log, Partition

#: Somebody may have taken the id over after us, and be in the midst of a transaction: its records
#: don't stay where they are for so many looks, with so long between two, seconds.
LOOKS = 100
LOOK_S = 0.1


def unended(log: Log, partition: Partition) -> str | None:
    """What to tell when a partition holds records whose transaction has no end; None: it doesn't.

    Args:
        log: the log.
        partition: its transactions are of one id, which was just taken over.

    Raises:
        UnavailableError: the log does not answer.
    """
    first = -1
    with closing(log.reader()) as committed, closing(log.reader(committed_only=False)) as every:
        for _ in range(LOOKS):
            # In this order: what is appended between the two questions needs no second look.
            end = every.bounds(partition).end
            start = committed.bounds(partition).end
            if start >= end or start > first >= 0:
                return None
            first = start
            every.poll(1, LOOK_S)  # of a reader that reads nothing: a pause
    topic, number = partition
    return (
        f"{topic}[{number}]: records from offset {start} on (of {end}) belong to a transaction "
        "that has no end, although its writer is gone: the brokers have lost it (those of Kafka "
        "4.3 and 4.4 can, KAFKA-20734). End it with Kafka's own tool, kafka-transactions.sh "
        f"find-hanging and abort with --topic {topic} --partition {number} --start-offset {start}, "
        "and the same for other partitions that find-hanging names, while nothing runs that "
        "could write there"
    )
