"""What the doctor looks at: this machine, the settings, Kafka, Redis, what is published.

What belongs here: asking, with a time limit on every question. What does not: what an answer
means (`fairlane.doctor_checks`). A probe returns what it found or why it found nothing; it
never raises for what is absent, and what it returns holds no secret.
"""

import importlib.util
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from fairlane.doctor_checks import (
    Findings,
    GroupFound,
    Groups,
    KafkaFound,
    Machine,
    PublishedFound,
    RedisFound,
    Where,
)
from fairlane.doctor_topics import TopicFound
from fairlane.settings import STACK_FILE, Settings, SettingsError, load
from schemas.log import LogError
from schemas.policy import Policy, PolicyError
from schemas.topics import Topics

#: Modules that each extra brings; looked for, never imported: some take seconds.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "accounting": ("faust",),
    "embed": ("numpy", "onnx", "onnxruntime", "pyarrow", "safetensors", "tokenizers"),
}
#: One question to Kafka; a cluster that takes longer is no help to anybody.
KAFKA_S = 3.0
#: What the last of several addresses still gets when those before it took all the time.
CONNECT_S_MIN = 0.1
#: One question to Redis.
REDIS_S = 2.0
#: All questions to one of them together, and to this machine (Java is started once).
ALL_S = 6.0
#: Shorter secrets can't be told from words, and hide nothing.
SECRET_CHARS_MIN = 3

T = TypeVar("T")


class Pending(Generic[T]):
    """A call under way in a thread that nobody needs to wait for."""

    def __init__(self, call: Callable[[], T], otherwise: Callable[[str], T]) -> None:
        """Start the call; `otherwise` makes an answer of the reason why there is none."""
        self._otherwise = otherwise
        self._answer: T | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._answer = call()
        except Exception as error:  # noqa: BLE001 - the doctor reports, whatever it is
            self._answer = self._otherwise(f"{type(error).__name__}: {error}")

    def get(self, timeout_s: float) -> T:
        """The answer, or what stands for it when it takes longer than that."""
        self._thread.join(timeout_s)
        if self._answer is None:
            return self._otherwise(f"no answer within {timeout_s:g} s")
        return self._answer


def look(environ: Mapping[str, str], folder: Path) -> Findings:
    """Look at everything; takes ALL_S and a second at most, less when all answers."""
    machine = Pending(lambda: look_at_machine(environ), _no_machine)
    where, settings = look_at_settings(environ, folder)
    if settings is None:
        return Findings(machine.get(ALL_S), where)
    redis = Pending(lambda: look_at_redis(settings), lambda why: RedisFound(error=why))
    kafka, published, groups = _look_at_log(settings)
    return Findings(
        machine.get(ALL_S),
        where,
        kafka,
        redis.get(ALL_S) if settings.redis else None,
        published,
        groups,
    )


def _look_at_log(settings: Settings) -> tuple[KafkaFound, PublishedFound | None, Groups | None]:
    """Kafka first; what is published only when it answers."""
    kafka = Pending(lambda: look_at_kafka(settings), lambda why: KafkaFound(error=why)).get(ALL_S)
    if kafka.error:
        return kafka, None, None
    published = Pending(
        lambda: look_at_published(settings), lambda why: PublishedFound(error=why)
    ).get(KAFKA_S)
    if published.policy is None:
        return kafka, published, None
    groups = names_of_groups(settings.prefix, published.policy)
    members = Pending[Mapping[str, GroupFound] | str](
        lambda: look_at_groups(settings, groups), str
    ).get(KAFKA_S)
    if isinstance(members, str):
        return kafka, published, groups
    return kafka._replace(groups=members), published, groups


def look_at_machine(environ: Mapping[str, str]) -> Machine:
    """Python, the extras, and what the local stack would need."""
    from fairlane.stack_tools import missing

    extras = {name: absent(modules) for name, modules in EXTRAS.items()}
    return Machine(sys.version_info[:3], extras, tuple(missing(environ)), look_at_models())


def look_at_models() -> dict[str, str]:
    """What is wrong with the weights of each model that Fairlane knows; "" for nothing."""
    from fairlane.models import findings, installed
    from workers.engines.weights import MODEL

    folder = installed()
    if folder is None:
        return {MODEL: "its files are not installed"}
    faults = [found.fault for found in findings(folder) if not found.is_right]
    return {MODEL: "; ".join(faults)}


def _no_machine(why: str) -> Machine:
    return Machine(sys.version_info[:3], {}, (f"Java: {why}",), {})


def absent(modules: Iterable[str]) -> tuple[str, ...]:
    """Those modules that can't be imported; none is.

    One that is imported already is there; it may have taken its own description away.
    """
    return tuple(
        name
        for name in modules
        if sys.modules.get(name) is None and importlib.util.find_spec(name) is None
    )


def look_at_settings(environ: Mapping[str, str], folder: Path) -> tuple[Where, Settings | None]:
    """Where Kafka and Redis are said to be, and the settings unless they are wrong."""
    try:
        found = load(environ, folder)
    except SettingsError as error:
        return Where(error=str(error)), None
    shown = found.redacted()
    source = "the environment" if environ.get("FAIRLANE_KAFKA") else str(STACK_FILE)
    return (
        Where(source, shown["kafka"], shown["redis"], shown["prefix"], shown["replication"]),
        found,
    )


def look_at_kafka(settings: Settings) -> KafkaFound:
    """The cluster, and the topics of the prefix with their settings."""
    # The client goes on trying what is refused, and says less about it.
    refused = unreachable(settings.kafka, KAFKA_S)
    if refused:
        return KafkaFound(error=refused)
    from adapters.kafka_admin import KafkaAdmin

    try:
        admin = KafkaAdmin(settings.kafka, KAFKA_S, **settings.kafka_options)
        cluster = admin.cluster()
    except LogError as error:
        return KafkaFound(error=scrubbed(str(error), settings))
    ours = [name for name in cluster.topics if name.startswith(f"{settings.prefix}.")]
    try:
        told = admin.settings(ours)
    except LogError:  # a right of its own, which a user who may read and write need not have
        told = {}
    topics = {name: TopicFound(*cluster.topics[name], told.get(name, {})) for name in ours}
    return KafkaFound(cluster.id, cluster.brokers, topics)


def unreachable(addresses: str, timeout_s: float) -> str:
    """Why none of `host:port,...` takes a connection; "" when one does."""
    deadline = time.monotonic() + timeout_s
    faults = []
    for address in addresses.split(","):
        host, _, port = address.strip().rpartition(":")
        left_s = max(CONNECT_S_MIN, deadline - time.monotonic())
        try:
            socket.create_connection((host.strip("[]"), int(port)), left_s).close()
        except (OSError, ValueError) as error:
            faults.append(f"{address.strip()}: {error}")
        else:
            return ""
    return "; ".join(faults)


def names_of_groups(prefix: str, policy: Policy) -> Groups:
    """The groups that the services of a deployment join."""
    from accounting.names import group
    from workers.names import members

    topics = Topics(prefix)
    return Groups(
        ingress=f"{prefix}.index.members",
        scheduler=f"{prefix}.schedulers",
        accounting=group(topics),
        workers={pool.name: members(topics, pool.name) for pool in policy.pools},
        inbox=f"{prefix}.inbox.members",
    )


def look_at_groups(settings: Settings, groups: Groups) -> Mapping[str, GroupFound] | str:
    """Live members by group; or why the cluster doesn't tell."""
    from adapters.kafka_admin import KafkaAdmin

    once = (groups.ingress, groups.scheduler, groups.accounting, groups.inbox)
    names = [name for name in (*once, *groups.workers.values()) if name]
    try:
        admin = KafkaAdmin(settings.kafka, KAFKA_S, **settings.kafka_options)
        return {name: GroupFound(*facts) for name, facts in admin.groups(names).items()}
    except LogError as error:
        return scrubbed(str(error), settings)


def look_at_redis(settings: Settings) -> RedisFound:
    """The server, what it evicts and keeps, how far away it is."""
    from adapters.redis_probe import look as ask
    from schemas.front import StoreDownError

    try:
        return RedisFound(*ask(settings.redis, REDIS_S))
    except StoreDownError as error:
        return RedisFound(error=scrubbed(str(error), settings))


def look_at_published(settings: Settings) -> PublishedFound:
    """The published policy, and how many keys let somebody in."""
    from fairlane.publish import published_keys, published_policy
    from fairlane.run import open_log

    topics = Topics(settings.prefix)
    log = open_log(settings)
    try:
        policy = published_policy(log, topics)
        keys = published_keys(log, topics)
    except (LogError, PolicyError) as error:
        return PublishedFound(error=scrubbed(str(error), settings))
    finally:
        log.close()
    return PublishedFound(policy, sum(not key.revoked_ms for key in keys.values()))


def scrubbed(text: str, settings: Settings) -> str:
    """A message of a client with everything secret of the settings taken out."""
    shown = settings.redacted()["kafka_options"]
    secrets = [value for name, value in settings.kafka_options.items() if shown[name] != value]
    login = re.match(r"[a-z]+://(?:([^:]*):)?(.*)@", settings.redis)
    if login:
        secrets += [part for part in login.groups() if part]
    for secret in secrets:
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, "***")
    return text
