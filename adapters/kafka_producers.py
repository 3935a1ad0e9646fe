"""The transactional producer on Kafka.

The end of a transaction: `commit` flushes first. A record that did not arrive means that no
commit was asked for: the transaction is aborted, certainly (and the client may abort the next one
too, before it numbers records afresh: the same is sent again). Once the commit is asked for,
only a success and a fence are certain; after anything else the client is thrown away and the
caller, in doubt, initialises again. The client knows nothing of KIP-890, so no client goes on
after a doubt: a late end of one transaction could end the next one.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from adapters.kafka_client import (
    FENCED,
    REQUEST_TIMEOUT_S,
    RETRY_PAUSE_S,
    Settings,
    error_of,
    meaning,
)
from adapters.kafka_plain import delivery_failure, enqueue
from schemas.log import (
    TRANSACTION_TIMEOUT_MS,
    AbortedError,
    Commit,
    FencedError,
    Headers,
    InDoubtError,
    LogError,
    OnDelivery,
    Partition,
    UnavailableError,
    check_commits,
    check_record,
)

#: Longest single wait for a transaction's end. Left out, the client waits without limit while
#: brokers are silent; given by name, it would be ignored.
END_S = TRANSACTION_TIMEOUT_MS / 1000
#: A transaction whose records did not arrive is aborted if brokers answer; else a new client is
#: sooner done, and ends it as well.
CERTAIN_ABORT_S = 1.0
#: While brokers end a predecessor's transaction they turn `init` down, and the client asks again
#: after half a second, whatever its settings. A new client asks at once, so waits are short.
INIT_S = 0.15
#: ... and how long one look takes whether it is done, while there is other work.
LOOK_S = 0.001
#: How long a client that is thrown away may take to send what it has; away from brokers, all of it.
DISCARD_S = 0.5

_GroupOf = Callable[[str], Consumer]


class KafkaTransactional:
    """Holder of one transactional id. Not for several threads at once."""

    def __init__(self, settings: Settings, group_of: _GroupOf, transactional_id: str) -> None:
        self._settings = settings
        self._group_of = group_of
        self._id = transactional_id
        self._place = f"transactional id {transactional_id}"
        self._client: Producer | None = None
        self._failure: LogError | None = None
        self._is_open = False

    def init(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """Take the id over with a new client; ends the predecessor's open transaction.

        The client works in threads of its own, so `meanwhile` costs the brokers no time.

        Raises:
            UnavailableError: the coordinator doesn't answer.
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        client = self._renew()
        is_busy = meanwhile is not None
        while True:
            try:
                client.init_transactions(LOOK_S if is_busy else INIT_S)
            except KafkaException as raised:
                error = error_of(raised)
                if not error.retriable() or time.monotonic() > deadline:
                    self.close()
                    raise meaning(error, f"{self._place}: init") from raised
                if error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    client = self._renew()
            else:
                return
            if meanwhile is not None:
                begun = time.monotonic()
                is_busy = meanwhile()
                deadline += time.monotonic() - begun  # the brokers' time is not spent by others

    def begin(self) -> None:
        """Open a transaction. Raises LogError before `init`, in doubt, or inside of another."""
        if self._client is None:
            raise LogError(f"{self._place}: init comes before begin")
        if self._is_open:
            raise LogError(f"{self._place}: a transaction is open already")
        try:
            self._client.begin_transaction()
        except KafkaException as raised:
            self._give_up(error_of(raised), "begin")
        self._is_open, self._failure = True, None

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Add a record; a failure that ends the transaction shows at `commit`.

        Raises:
            TooLargeError: this record alone is refused.
            UnavailableError: the client's queue is full; this record alone is not sent.
        """
        client = self._open_client()
        check_record(topic, partition, value, key, headers)
        report = self._report if on_delivery is None else self._reporter(on_delivery)
        try:
            enqueue(client, topic, partition, value, key, headers, report)
        except KafkaException as raised:
            error = error_of(raised)
            if error.code() not in {KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED}:  # noqa: SLF001
                raise meaning(error, f"{topic}[{partition}]: send") from raised
            failure = UnavailableError(
                f"{topic}[{partition}]: send: {error.str()}: the transaction has failed"
            )
            self._keep(failure)
            if on_delivery is not None:
                on_delivery(None, failure)

    def send_offsets(self, group: str, commits: Mapping[Partition, Commit]) -> None:
        """Commit positions of a group without members, with the transaction or not at all.

        Raises:
            TooLargeError: metadata above the limit; the transaction goes on.
            FencedError, AbortedError, InDoubtError: as `commit`.
        """
        client = self._open_client()
        check_commits(group, commits)
        if not commits:
            return
        offsets = [
            TopicPartition(topic, partition, commit.offset, commit.metadata)
            for (topic, partition), commit in commits.items()
        ]
        metadata = self._group_of(group).consumer_group_metadata()
        error = self._repeat(
            lambda: client.send_offsets_to_transaction(offsets, metadata, REQUEST_TIMEOUT_S)
        )
        if error is None:
            return
        if error.txn_requires_abort():
            self._abort_certainly(meaning(error, f"{self._place}: send_offsets"))
        self._give_up(error, "send_offsets")

    def commit(self) -> None:
        """End the transaction.

        Raises:
            FencedError: another holder has the id; nothing was committed.
            AbortedError: certainly nothing was committed, and the id is still ours.
            TooLargeError, LogError: nothing was committed, and the same would fail again: a topic
                refuses the size of a record, or does not exist.
            InDoubtError: it may or may not be committed; `init` again and read.
        """
        client = self._open_client()
        try:
            outstanding = client.flush(END_S)
        except (KafkaException, SystemError) as raised:
            self._give_up(_fatal(raised), "commit")
        if outstanding:
            self.close()
            raise InDoubtError(
                f"{self._place}: commit: the brokers took no record for {END_S} s; initialise "
                "again and read what is committed"
            )
        if self._failure is not None:
            self._abort_certainly(self._failure)
        self._is_open = False
        error = self._repeat(lambda: client.commit_transaction(END_S), END_S)
        if error is not None:
            self._give_up(error, "commit")

    def abort(self) -> None:
        """Abort the open transaction. Raises FencedError or InDoubtError."""
        self._abort(END_S)

    def close(self) -> None:
        """Free the client; an open transaction is left to the next `init`."""
        client, self._client = self._client, None
        self._is_open, self._failure = False, None
        if client is not None:
            _discard(client)

    def _renew(self) -> Producer:
        self.close()
        self._client = client = Producer(self._settings.transactional(self._id))
        return client

    def _open_client(self) -> Producer:
        if self._client is None or not self._is_open:
            raise LogError(f"{self._place}: no transaction is open; begin one")
        return self._client

    def _report(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report of a transaction's record: one failure ends the transaction."""
        if error is not None:
            failure = delivery_failure(error, message)
            assert failure is not None
            self._keep(failure)

    def _reporter(self, on_delivery: OnDelivery) -> Callable[[KafkaError | None, Message], None]:
        """Likewise, of a record whose sender wants to hear of it."""

        def report(error: KafkaError | None, message: Message) -> None:
            self._report(error, message)
            failure = delivery_failure(error, message)
            on_delivery(None if failure else message.offset(), failure)

        return report

    def _keep(self, failure: LogError) -> None:
        """Keep the cause: siblings of a refused record are dropped too, and may report first."""
        passing = (InDoubtError, UnavailableError)
        if self._failure is None or (
            isinstance(self._failure, passing) and not isinstance(failure, passing)
        ):
            self._failure = failure

    def _abort(self, wait_s: float) -> None:
        client = self._open_client()
        self._is_open = False
        error = self._repeat(lambda: client.abort_transaction(wait_s), wait_s)
        if error is not None:
            self._give_up(error, "abort")

    def _abort_certainly(self, cause: LogError) -> NoReturn:
        """End a transaction whose commit was never asked for, and say so."""
        self._abort(CERTAIN_ABORT_S)
        if not isinstance(cause, (FencedError, InDoubtError, UnavailableError)):
            raise cause
        raise AbortedError(f"{self._place}: aborted, because: {cause}") from cause

    def _give_up(self, error: KafkaError, doing: str) -> NoReturn:
        """Throw the client away and raise what its error leaves certain."""
        self.close()
        place = f"{self._place}: {doing}"
        if error.code() in FENCED:
            raise meaning(error, place)
        raise InDoubtError(
            f"{place}: {error.name()}: {error.str()}; whether the transaction is committed is "
            "unknown: initialise again and read what is committed"
        )

    def _repeat(
        self, call: Callable[[], object], wait_s: float = REQUEST_TIMEOUT_S
    ) -> KafkaError | None:
        """Call; call the same again while that is allowed; returns the error that stays."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                call()
            except KafkaException as raised:
                error = error_of(raised)
                if not error.retriable() or time.monotonic() > deadline:
                    return error
                time.sleep(RETRY_PAUSE_S)
            else:
                return None


def _fatal(raised: BaseException) -> KafkaError:
    """The fatal error that serving callbacks raised.

    The client raises it between two callbacks and calls the next one all the same, which
    Python then reports as a SystemError caused by it.
    """
    if isinstance(raised, KafkaException):
        return error_of(raised)
    if raised.__cause__ is None:
        raise raised
    return _fatal(raised.__cause__)


def _discard(client: Producer) -> None:
    """Drop what a client still holds. Its owner forgets it next, and that frees it.

    Not `close`: that would end an open transaction, wait for brokers and raise what is fatal.
    But what was just sent is waited for, a moment: a client that is freed while it adds a
    partition to its transaction ends the process (an assertion of librdkafka 2.16).
    """
    with suppress(KafkaException, SystemError):  # what is fatal was told to the owner already
        client.flush(DISCARD_S)
    client.purge(in_queue=True, in_flight=True, blocking=False)
