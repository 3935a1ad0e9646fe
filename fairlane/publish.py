"""Policy, keys and what operators tell the scheduler, on their topics: read, compare, publish.

The first two topics are small and compacted: the latest record of a key is what counts. A policy is
published in a transaction under one fixed id, taken over BEFORE the published one is read:
of two who apply at once, the first to be overtaken is fenced and publishes nothing.
"""

from collections.abc import Callable, Iterator

import msgspec

from fairlane.errors import FairlaneError
from fairlane.policy_plan import forbidden
from schemas.codec import DecodeError, decode_value, encode
from schemas.log import FencedError, Log, LogError, Record, UnavailableError
from schemas.policy import POLICY_KEY, Policy, PolicyError, decode_policy, encode_policy
from schemas.records import ApiKey, ControlRecord
from schemas.topics import Topics

#: Records asked for in one poll of a small topic.
_POLL_RECORDS = 1_000
_POLL_SECONDS = 0.5
#: Empty polls in a row before a log that stopped answering is given up.
_EMPTY_POLLS_MAX = 60
_FLUSH_SECONDS = 30.0


class PublishError(FairlaneError):
    """Nothing was published; the message says why and what to do."""


def read_whole(log: Log, topic: str) -> Iterator[Record]:
    """Every record of partition 0 of a topic up to its end now; none if it doesn't exist.

    Raises UnavailableError when the log stops answering before the end.
    """
    if not log.partitions(topic):
        return
    partition = (topic, 0)
    reader = log.reader()
    try:
        bounds = reader.bounds(partition)
        reader.assign({partition: bounds.low})
        empty = 0
        while not reader.reached(partition, bounds.end):
            records = reader.poll(_POLL_RECORDS, _POLL_SECONDS)
            yield from (record for record in records if record.offset < bounds.end)
            empty = 0 if records else empty + 1
            if empty > _EMPTY_POLLS_MAX:
                raise UnavailableError(f"{topic}: no record arrives and its end is not reached")
    finally:
        reader.close()


def published_policy(log: Log, topics: Topics) -> Policy | None:
    """Latest published policy; None when there is none. Raises PolicyError if unreadable."""
    latest: Record | None = None
    for record in read_whole(log, topics.policy):
        if record.key == POLICY_KEY:
            latest = record
    if latest is None:
        return None
    try:
        return decode_policy(latest.value)
    except PolicyError as error:
        raise PolicyError([f"{latest.place}: {fault}" for fault in error.faults]) from error


def publish_policy(
    log: Log,
    topics: Topics,
    policy: Policy,
    is_wanted: Callable[[Policy | None], bool] = lambda _: True,
) -> Policy | None:
    """Publish a checked policy as the next version and create its topics.

    Returns the policy as published, or None when the published one says the same already
    or `is_wanted`, asked with the published one, says no.

    Raises PolicyError when it may not follow the published one, PublishError when somebody
    else published meanwhile, LogError when the log can't do it.
    """
    log.ensure_topics(topics.base())
    producer = log.transactional(f"{topics.prefix}.policy")
    try:
        producer.init()
        before = published_policy(log, topics)
        if before is not None and is_same(before, policy):
            log.ensure_topics(topics.of(policy))  # somebody may have deleted one
            return None
        reasons = forbidden(before, policy)
        if reasons:
            raise PolicyError(reasons)
        if not is_wanted(before):
            return None
        log.ensure_topics(topics.of(policy))
        after = msgspec.structs.replace(policy, version=before.version + 1 if before else 1)
        offsets: list[int | None] = []
        producer.begin()
        producer.send(
            topics.policy,
            0,
            encode_policy(after),
            key=POLICY_KEY,
            on_delivery=lambda offset, _: offsets.append(offset),
        )
        producer.commit()
        _await_visible(log, topics.policy, offsets[0])
    except FencedError as error:
        raise PublishError(
            "another policy was applied meanwhile: nothing published; look at it with "
            "`fairlane policy show` and apply again"
        ) from error
    finally:
        producer.close()
    return after


def _await_visible(log: Log, topic: str, offset: int | None) -> None:
    """Wait until a committed record can be read: its markers come after the commit returns."""
    if offset is None:
        raise LogError(f"{topic}: committed, but the record was not delivered: apply again")
    reader = log.reader()
    try:
        reader.assign({(topic, 0): offset})
        for _ in range(_EMPTY_POLLS_MAX):
            if reader.poll(1, _POLL_SECONDS):
                return
    finally:
        reader.close()
    raise UnavailableError(f"{topic}[0]@{offset}: committed, but it does not become visible")


def is_same(published: Policy, policy: Policy) -> bool:
    """Tell whether two policies differ in nothing but the version."""
    return msgspec.structs.replace(policy, version=published.version) == published


def published_keys(log: Log, topics: Topics) -> dict[str, ApiKey]:
    """All keys by id, the revoked ones too; records that can't be read are passed over."""
    keys: dict[str, ApiKey] = {}
    for record in read_whole(log, topics.keys):
        try:
            key: ApiKey = decode_value(record, ApiKey)
        except DecodeError:
            continue
        keys[key.id] = key
    return keys


def publish_key(log: Log, topics: Topics, key: ApiKey) -> None:
    """Publish a key's record; returns when the log has it. Raises LogError when it hasn't."""
    log.ensure_topics(topics.base())
    _deliver(log, topics.keys, {0: encode(key)}, key.id.encode())


def publish_control(log: Log, topics: Topics, record: ControlRecord, shards: int) -> None:
    """Tell every shard; returns when the log has all. Raises LogError when it may not have."""
    _deliver(log, topics.control, dict.fromkeys(range(shards), encode(record)), None)


def _deliver(log: Log, topic: str, values: dict[int, bytes], key: bytes | None) -> None:
    """Publish one record in each of some partitions of a topic, and wait for all of them."""
    outcomes: list[LogError | None] = []
    producer = log.producer()
    try:
        for partition, value in values.items():
            producer.send(
                topic,
                partition,
                value,
                key=key,
                on_delivery=lambda _, error: outcomes.append(error),
            )
        producer.flush(_FLUSH_SECONDS)
    finally:
        producer.close()
    for error in outcomes:
        if error is not None:
            raise error
    if len(outcomes) < len(values):
        raise UnavailableError(f"{topic}: not confirmed within {_FLUSH_SECONDS:.0f} s")
