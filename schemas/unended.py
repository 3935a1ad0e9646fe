"""Transactions that nobody ends any more.

Taking a transactional id over ends what the predecessor left open. Brokers can break that
promise: those of Kafka 4.3 and 4.4, killed and started again, forget the end of a transaction
whose partitions have no leader at that moment, and hold it for complete (KAFKA-20734). Its
records stay without an end until the next transaction of the same id ends, and are then
committed with it: decided, or run, a second time. So who has taken an id over looks, where
nobody else writes.
"""

from contextlib import closing

from schemas.log import Log, Partition


def unended(log: Log, partition: Partition) -> str | None:
    """What to tell when a partition holds records whose transaction has no end; None: it doesn't.

    Args:
        log: the log.
        partition: written to by one transactional id only, which was just taken over.

    Raises:
        UnavailableError: the log does not answer.
    """
    with closing(log.reader()) as committed, closing(log.reader(committed_only=False)) as every:
        start = committed.bounds(partition).end
        end = every.bounds(partition).end
    if start >= end:
        return None
    topic, number = partition
    return (
        f"{topic}[{number}]: records from offset {start} on (of {end}) belong to a transaction "
        "that has no end, although its writer is gone: the brokers have lost it (those of Kafka "
        "4.3 and 4.4 can, KAFKA-20734). End it with Kafka's own tool, kafka-transactions.sh "
        f"find-hanging and abort with --topic {topic} --partition {number} --start-offset {start}, "
        "and the same for other partitions that find-hanging names"
    )
