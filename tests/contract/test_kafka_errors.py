"""What each error of the client leaves certain, and whether the client may go on after it.

The errors are handed in: a broker that answers like this at the right moment can't be had.
"""

from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from adapters.kafka import KafkaLog
from adapters.kafka_client import Settings
from adapters.kafka_members import KafkaMembership
from adapters.kafka_producers import KafkaTransactional
from schemas.log import (
    AbortedError,
    Commit,
    FencedError,
    InDoubtError,
    LogError,
    TooLargeError,
    UnavailableError,
)

Answers = list[KafkaError | None]


def _error(
    code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False
) -> KafkaError:
    return KafkaError(code, "injected", fatal, retriable, abort)


class Client:
    """A client whose answers are given; the last one is repeated."""

    def __init__(self, **answers: Sequence[KafkaError | None]) -> None:
        self.answers: dict[str, Answers] = {name: list(given) for name, given in answers.items()}
        self.calls: list[str] = []
        self.deliveries: Answers = []
        self.reports: list[Callable[[KafkaError | None, object], None]] = []
        self.outstanding = 0

    def _answer(self, name: str) -> None:
        self.calls.append(name)
        answers = self.answers.get(name, [None])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is not None:
            raise KafkaException(answer)

    def begin_transaction(self) -> None:
        self._answer("begin")

    def produce(
        self, topic: str, *, on_delivery: Callable[[KafkaError | None, object], None], **_: object
    ) -> None:
        self._answer("produce")
        self.reports.append(on_delivery)

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        self.calls.append("flush")
        for report, answer in zip(self.reports, self.deliveries, strict=False):
            report(answer, Delivered())
        return self.outstanding

    def send_offsets_to_transaction(self, *_: object) -> None:
        self._answer("offsets")

    def commit_transaction(self, _: float) -> None:
        self._answer("commit")

    def abort_transaction(self, _: float) -> None:
        self._answer("abort")

    def purge(self, **_: object) -> None:
        self.calls.append("purge")


class Delivered:
    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0


class Group:
    def consumer_group_metadata(self) -> object:
        return object()


def _holder(client: Client, *, is_open: bool = True) -> KafkaTransactional:
    settings = Settings("127.0.0.1:1", 6000, 300, {})
    holder = KafkaTransactional(settings, lambda _: Group(), "lane-0")  # type: ignore[arg-type,return-value]
    holder._client = client  # type: ignore[assignment]
    if is_open:
        holder.begin()
        holder.send("t", 0, b"x")
    return holder


FENCED = [
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
]
TIMED_OUT = _error(KafkaError._TIMED_OUT, retriable=True)


@pytest.mark.parametrize("code", FENCED)
@pytest.mark.parametrize("call", ["commit", "abort"])
def test_a_fence_is_certain_and_ends_the_client(code: int, call: str) -> None:
    client = Client(**{call: [_error(code, fatal=True)]})
    holder = _holder(client)
    with pytest.raises(FencedError, match=f"lane-0: {call}"):
        getattr(holder, call)()
    with pytest.raises(LogError, match="init"):
        holder.begin()


@pytest.mark.parametrize(
    "error",
    [
        _error(KafkaError._FATAL, fatal=True),
        _error(KafkaError.UNKNOWN_PRODUCER_ID, abort=True),
        _error(KafkaError._INCONSISTENT, abort=True),
        _error(KafkaError.INVALID_TXN_STATE),
        _error(KafkaError.UNKNOWN),
        _error(KafkaError._TIMED_OUT),
    ],
)
def test_once_asked_for_a_commit_that_fails_is_in_doubt(error: KafkaError) -> None:
    client = Client(commit=[error])
    holder = _holder(client)
    with pytest.raises(InDoubtError, match="initialise again"):
        holder.commit()
    assert "abort" not in client.calls, "an abort would meet whatever became of the commit"
    with pytest.raises(LogError, match="init"):
        holder.begin()


def test_the_same_call_is_repeated_while_that_is_allowed() -> None:
    client = Client(commit=[TIMED_OUT, TIMED_OUT, None], abort=[TIMED_OUT, None])
    holder = _holder(client)
    holder.commit()
    holder.begin()
    holder.abort()
    assert client.calls.count("commit") == 3
    assert client.calls.count("abort") == 2


def test_a_commit_is_repeated_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr("adapters.kafka_producers.time.monotonic", lambda: next(now))
    holder = _holder(Client(commit=[TIMED_OUT]))
    with pytest.raises(InDoubtError):
        holder.commit()


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (_error(KafkaError._MSG_TIMED_OUT), AbortedError),
        (_error(KafkaError.NOT_ENOUGH_REPLICAS, retriable=True), AbortedError),
        (_error(KafkaError.TOPIC_AUTHORIZATION_FAILED), LogError),
        (_error(KafkaError._UNKNOWN_PARTITION), LogError),
    ],
)
def test_a_record_that_did_not_arrive_aborts_before_any_commit(
    failure: KafkaError, expected: type[LogError]
) -> None:
    client = Client()
    client.deliveries = [failure]
    holder = _holder(client)
    with pytest.raises(LogError) as caught:
        holder.commit()
    assert type(caught.value) is expected
    assert client.calls[-2:] == ["flush", "abort"]
    assert "commit" not in client.calls
    client.deliveries = [None]
    holder.begin()
    holder.commit()


def test_a_record_that_did_not_arrive_while_fenced_is_a_fence() -> None:
    client = Client(abort=[_error(KafkaError._FENCED, fatal=True)])
    client.deliveries = [_error(KafkaError.INVALID_PRODUCER_EPOCH)]
    with pytest.raises(FencedError):
        _holder(client).commit()


def test_an_abort_that_does_not_end_leaves_doubt() -> None:
    client = Client(abort=[_error(KafkaError.UNKNOWN)])
    client.deliveries = [_error(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(InDoubtError):
        _holder(client).commit()


def test_records_still_on_their_way_leave_doubt() -> None:
    client = Client()
    client.outstanding = 3
    with pytest.raises(InDoubtError, match="took no record"):
        _holder(client).commit()
    assert "commit" not in client.calls


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_error(KafkaError.UNKNOWN_MEMBER_ID, abort=True), LogError),
        (_error(KafkaError.COORDINATOR_NOT_AVAILABLE, abort=True), AbortedError),
        (_error(KafkaError._FENCED, fatal=True), FencedError),
        (_error(KafkaError.INVALID_TXN_STATE, fatal=True), InDoubtError),
    ],
)
def test_positions_that_are_refused(error: KafkaError, expected: type[LogError]) -> None:
    holder = _holder(Client(offsets=[error]))
    with pytest.raises(LogError) as caught:
        holder.send_offsets("g", {("t", 0): Commit(1, "")})
    assert type(caught.value) is expected


def test_a_full_queue_refuses_the_record_and_keeps_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()
    holder = _holder(client)
    now = iter(range(0, 1000, 1))
    monkeypatch.setattr("adapters.kafka_producers.time.monotonic", lambda: next(now))

    def full(*_: object, **__: object) -> None:
        raise BufferError

    with monkeypatch.context() as patch:
        patch.setattr(client, "produce", full)
        with pytest.raises(UnavailableError, match="queue is full"):
            holder.send("t", 0, b"y")
    holder.send("t", 0, b"z")
    holder.commit()
    assert client.calls.count("produce") == 2


def test_a_send_after_a_failure_shows_at_commit() -> None:
    client = Client(produce=[None, _error(KafkaError._STATE)])
    holder = _holder(client)
    holder.send("t", 0, b"y")
    with pytest.raises(AbortedError, match="the transaction has failed"):
        holder.commit()
    assert client.calls[-1] == "abort"


def test_the_cause_is_told_and_not_what_followed_from_it() -> None:
    client = Client()
    client.deliveries = [
        _error(KafkaError._PURGE_QUEUE),
        _error(KafkaError.MSG_SIZE_TOO_LARGE),
        _error(KafkaError._PURGE_INFLIGHT),
    ]
    holder = _holder(client)
    holder.send("t", 0, b"y")
    holder.send("t", 0, b"z")
    with pytest.raises(TooLargeError):
        holder.commit()


def test_a_question_about_a_topic_does_not_create_it() -> None:
    brokers = AdminClient({"test.mock.num.brokers": 1})  # they create topics on demand
    (broker,) = brokers.list_topics(timeout=10).brokers.values()
    log = KafkaLog(f"{broker.host}:{broker.port}")
    assert log.partitions("asked") == 0
    assert log.topics() == []
    log.close()


class Events:
    """A member's client that reports events."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors = list(errors)

    def poll(self, _: float) -> object:
        return Event(self.errors.pop(0)) if self.errors else None

    def close(self) -> None:
        pass


class Event:
    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error


def _member(*errors: KafkaError) -> KafkaMembership:
    member = KafkaMembership(Settings("127.0.0.1:1", 6000, 300, {}), "g", "t", None)
    member.close()
    member._client = Events(*errors)  # type: ignore[assignment]
    return member


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    ],
)
def test_a_member_outlives_what_passes(code: int) -> None:
    member = _member(_error(code))
    assert member.poll(0) is None
    assert member.poll(0) is None


@pytest.mark.parametrize(
    "error",
    [
        _error(KafkaError._TRANSPORT, fatal=True),
        _error(KafkaError.GROUP_AUTHORIZATION_FAILED),
        _error(KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
def test_a_member_ends_with_what_stays(error: KafkaError) -> None:
    member = _member(error)
    for _ in range(2):
        with pytest.raises(LogError, match="group g"):
            member.poll(0)
