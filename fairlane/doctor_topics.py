"""What the doctor thinks of the topics: as they are, against what `schemas.topics` wants.

One verdict for each concern, not for each topic: it names the topics that are not as they
should be. What a broker doesn't tell is not held against it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fairlane.doctor_verdict import Check, missing, ok, unknown, warn
from schemas.log import RECORD_BYTES_MAX, TopicSpec
from schemas.topics import RETENTION_MS

GROUP = "Kafka"
#: What the framing of a batch takes beside the largest record, generously.
FRAMING_BYTES = 10_000
#: Offenders that are named; the rest is counted.
NAMED_MAX = 3
#: Retention without a limit.
FOREVER = -1

APPLY = "fairlane policy apply FILE makes them"


class TopicFound(NamedTuple):
    """A topic as it is: partitions, fewest copies, how many have no leader, its settings."""

    partitions: int
    copies: int
    leaderless: int
    settings: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """A setting as a number; None when it isn't told or is none."""
        text = self.settings.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else None


Pair = tuple[TopicSpec, TopicFound]


def judge_topics(
    specs: Sequence[TopicSpec], topics: Mapping[str, TopicFound], replication: int
) -> Iterator[Check]:
    """One verdict for each concern; `replication` is what new topics get."""
    absent = [spec.name for spec in specs if spec.name not in topics]
    there = [(spec, topics[spec.name]) for spec in specs if spec.name in topics]
    yield _existence(absent, there)
    if not there:
        return
    yield _copies(there, replication)
    if not any(topic.settings for _, topic in there):
        way = "ask as a user with the right DescribeConfigs"
        yield unknown(GROUP, "settings of topics", "the cluster doesn't tell", way)
        return
    yield _insync(there, max(1, replication - 1))
    yield _setting(there, "unclean elections", "off", _is_unclean, _UNCLEAN)
    yield _setting(there, "record size", "large enough", _is_small, _SMALL)
    yield _setting(there, "retention", "as long as needed", _is_short, _SHORT)
    yield _specified(there, "compaction", _COMPACTION, _is_compacted_otherwise)
    yield _setting(there, "timestamps", "as needed", _is_timed_otherwise, _TIMED_OTHERWISE)


def _existence(absent: list[str], there: Sequence[Pair]) -> Check:
    if absent:
        return missing(GROUP, "topics", f"not there: {_some(absent)}", APPLY)
    shaped = [
        f"{spec.name} has {topic.partitions} partitions instead of {spec.partitions}"
        for spec, topic in there
        if topic.partitions != spec.partitions
    ]
    if shaped:
        way = "use another prefix, or the topology that they were made with"
        return missing(GROUP, "topics", _some(shaped), way)
    dark = [spec.name for spec, topic in there if topic.leaderless]
    if dark:
        way = "start the brokers that hold them"
        return missing(GROUP, "topics", f"partitions without a leader: {_some(dark)}", way)
    return ok(GROUP, "topics", f"{len(there)}, all that are needed")


def _copies(there: Sequence[Pair], replication: int) -> Check:
    fewer = [
        f"{spec.name} has {topic.copies}" for spec, topic in there if topic.copies < replication
    ]
    if fewer:
        way = "kafka-reassign-partitions.sh gives them more"
        return warn(GROUP, "copies", f"fewer than {replication}: {_some(fewer)}", way)
    if replication == 1:
        return ok(GROUP, "copies", "1 of each, as set: a lost disk is lost data")
    return ok(GROUP, "copies", f"{replication} or more of each")


def _insync(there: Sequence[Pair], wanted: int) -> Check:
    name = "min.insync.replicas"
    blocked = [
        spec.name for spec, topic in there if (topic.number(name) or 0) > max(1, topic.copies)
    ]
    if blocked:
        way = f"kafka-configs.sh --alter --add-config {name}={wanted}"
        return missing(GROUP, "copies in sync", f"more than there are: {_some(blocked)}", way)
    fewer = [spec.name for spec, topic in there if (topic.number(name) or wanted) < wanted]
    if fewer:
        way = f"kafka-configs.sh --alter --add-config {name}={wanted}"
        return warn(GROUP, "copies in sync", f"{name} below {wanted}: {_some(fewer)}", way)
    return ok(GROUP, "copies in sync", f"{name} is {wanted} or more")


def _setting(
    there: Sequence[Pair],
    name: str,
    well: str,
    is_wrong: Callable[[TopicSpec, TopicFound], bool],
    words: tuple[str, str],
) -> Check:
    wrong = [spec.name for spec, topic in there if is_wrong(spec, topic)]
    if not wrong:
        return ok(GROUP, name, well)
    found, way = words
    return warn(GROUP, name, f"{found}: {_some(wrong)}", f"kafka-configs.sh --alter: {way}")


def _is_unclean(_: TopicSpec, topic: TopicFound) -> bool:
    return topic.settings.get("unclean.leader.election.enable") == "true"


_UNCLEAN = (
    "a broker that lags may lead, and what it lacks is lost",
    "unclean.leader.election.enable=false",
)


def _is_small(_: TopicSpec, topic: TopicFound) -> bool:
    most = topic.number("max.message.bytes")
    return most is not None and most < RECORD_BYTES_MAX + FRAMING_BYTES


_SMALL = (
    f"records of {RECORD_BYTES_MAX} bytes are refused",
    f"max.message.bytes={RECORD_BYTES_MAX + FRAMING_BYTES} or more",
)


def _is_short(spec: TopicSpec, topic: TopicFound) -> bool:
    has, wants = topic.number("retention.ms"), spec.config.get("retention.ms")
    return wants is not None and has is not None and has != FOREVER and has < int(wants)


_SHORT = (
    "dropped before all have read it",
    f"retention.ms={RETENTION_MS}, for decisions and dead {2 * RETENTION_MS}",
)


#: Settings of which the topic's own spec says what they must be.
_COMPACTION = ("cleanup.policy", "min.compaction.lag.ms")
_BROKERS = {"cleanup.policy": "delete", "min.compaction.lag.ms": "0"}


def _is_compacted_otherwise(name: str, has: str, wants: str) -> bool:
    if name == "cleanup.policy":
        return has != wants
    return has.isdecimal() and int(has) < int(wants)


def _specified(
    there: Sequence[Pair],
    name: str,
    settings: Sequence[str],
    is_wrong: Callable[[str, str, str], bool],
) -> Check:
    """Topics whose settings are not their spec's, each with the way that is its own."""
    wrong: dict[str, list[str]] = {}
    for spec, topic in there:
        for setting in settings:
            wants = spec.config.get(setting, _BROKERS[setting])
            if is_wrong(setting, topic.settings.get(setting, wants), wants):
                wrong.setdefault(f"{setting}={wants}", []).append(spec.name)
    if not wrong:
        return ok(GROUP, name, "as needed")
    names = list(dict.fromkeys(name for names in wrong.values() for name in names))
    found = f"what is still valid is dropped, or what must stay is merged: {_some(names)}"
    ways = [f"{setting} for {_some(names)}" for setting, names in wrong.items()]
    return warn(GROUP, name, found, f"kafka-configs.sh --alter: {'; '.join(ways)}")


def _is_timed_otherwise(spec: TopicSpec, topic: TopicFound) -> bool:
    name = "message.timestamp.type"
    return name in spec.config and topic.settings.get(name, spec.config[name]) != spec.config[name]


_TIMED_OTHERWISE = (
    "the time of a request is its sender's",
    "message.timestamp.type=LogAppendTime",
)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    rest = len(names) - NAMED_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown
