"""Where a process finds its log and its Redis: read once, checked whole, never printed bare.

Two ways: the environment (FAIRLANE_*), or the local stack that `fairlane up` left in
`.fairlane/stack.json` of the working directory. They are not mixed: with FAIRLANE_KAFKA
or FAIRLANE_REDIS set, the local stack is not looked at.

Read with msgspec, not a settings library: importing one takes longer (0.25 s) than all
else that a scheduler does before it connects, and a restart is measured from its start.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from fairlane.errors import FairlaneError
from schemas.policy import NAME_PATTERN, NAME_RULE

ENV_PREFIX = "FAIRLANE_"
STACK_FILE = Path(".fairlane") / "stack.json"
#: Copies of each partition where the address is given; the local stack has one broker.
REPLICATION_DEFAULT = 3
#: Kafka's own limit is 32,767; nobody keeps more copies than this.
REPLICATION_MAX = 15
#: Megabytes of bodies that a scheduler keeps in memory; what is above is read again.
BODIES_MB_DEFAULT = 1_024
#: Requests that may wait in a scheduler before it reads no more: about 6 GB without bodies.
WAITING_MAX_DEFAULT = 8_000_000
#: No machine has more than these.
BODIES_MB_MAX = 1_000_000
WAITING_MAX_MAX = 1_000_000_000

#: Names of client options that are no secret; the values of all others are hidden.
_OPEN_OPTIONS = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms", "client.id"})
#: Settings that Fairlane's guarantees stand on: not to be passed through.
_OWN_OPTIONS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "partitioner",
        "transactional.id",
    }
)
_HIDDEN = "***"
#: Settings that are whole numbers from 1 on, and their limits.
_NUMBERS = {
    "REPLICATION": REPLICATION_MAX,
    "BODIES_MB": BODIES_MB_MAX,
    "WAITING_MAX": WAITING_MAX_MAX,
}


class SettingsError(FairlaneError):
    """The settings are missing or wrong; one line for each fault."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a process needs to know before it connects.

    `kafka` is a list of brokers `host:port,...`; `redis` a URL, empty when not given;
    `kafka_options` go to the Kafka client as they are (security); `replication` is for
    topics that are created. `bodies_mb` and `waiting_max` bound a scheduler's memory.
    """

    kafka: str
    redis: str = ""
    prefix: str = "fairlane"
    kafka_options: dict[str, str] = field(default_factory=dict)
    replication: int = REPLICATION_DEFAULT
    bodies_mb: int = BODIES_MB_DEFAULT
    waiting_max: int = WAITING_MAX_DEFAULT

    def redacted(self) -> dict[str, Any]:
        """Fields for logs and people, without secrets."""
        options = {
            name: value if name in _OPEN_OPTIONS else _HIDDEN
            for name, value in self.kafka_options.items()
        }
        return {
            "kafka": self.kafka,
            "redis": re.sub(r"//.*@", f"//{_HIDDEN}@", self.redis),
            "prefix": self.prefix,
            "kafka_options": options,
            "replication": self.replication,
            "bodies_mb": self.bodies_mb,
            "waiting_max": self.waiting_max,
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.redacted().items())
        return f"Settings({shown})"

    def need_redis(self) -> str:
        """URL of Redis; raises SettingsError when none was given."""
        if not self.redis:
            raise SettingsError(
                "FAIRLANE_REDIS is not set, and this command needs Redis: set it to a URL such as "
                "redis://127.0.0.1:6379/0"
            )
        return self.redis


def load(environ: Mapping[str, str], folder: Path) -> Settings:
    """Settings from the environment, else from the local stack of `folder`.

    Raises SettingsError with every fault, or naming both ways when neither is there.
    """
    given = {
        name: value
        for key in (
            "KAFKA",
            "REDIS",
            "PREFIX",
            "KAFKA_OPTIONS",
            "REPLICATION",
            "BODIES_MB",
            "WAITING_MAX",
        )
        if (value := environ.get(name := ENV_PREFIX + key, "").strip())
    }
    faults: list[str] = []
    values: dict[str, Any] = {}
    if "FAIRLANE_KAFKA" in given:
        values["kafka"] = given["FAIRLANE_KAFKA"]
        values["redis"] = given.get("FAIRLANE_REDIS", "")
    elif "FAIRLANE_REDIS" in given:
        faults.append("FAIRLANE_REDIS is set but FAIRLANE_KAFKA is not: set both, or neither")
    else:
        values = {**_local_stack(folder / STACK_FILE), "replication": 1}
    if not re.fullmatch(r"(rediss?|unix)://\S+|", values.get("redis", "")):
        faults.append("FAIRLANE_REDIS is no URL: redis://[user:password@]host:port/number")
    prefix = given.get("FAIRLANE_PREFIX", "fairlane")
    if not re.fullmatch(NAME_PATTERN, prefix):
        faults.append(f"FAIRLANE_PREFIX {prefix!r} is not valid: {NAME_RULE}")
    values["prefix"] = prefix
    values["kafka_options"] = _options(given.get("FAIRLANE_KAFKA_OPTIONS", "{}"), faults)
    for key, most in _NUMBERS.items():
        if (text := given.get(ENV_PREFIX + key)) is not None:
            values[key.lower()] = _number(ENV_PREFIX + key, text, most, faults)
    if faults:
        raise SettingsError("\n".join(faults))
    return Settings(**values)


def _local_stack(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"kafka": str(found["kafka"]), "redis": str(found["redis_url"])}
    except FileNotFoundError as error:
        raise SettingsError(
            "no Kafka is known: set FAIRLANE_KAFKA (host:port of a broker) and FAIRLANE_REDIS "
            f"(a URL), or run `fairlane up` here, which writes {STACK_FILE} ({path} is not there)"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} is unreadable ({error}): run `fairlane down` and `fairlane up`, or set "
            "FAIRLANE_KAFKA and FAIRLANE_REDIS"
        ) from error


def _options(text: str, faults: list[str]) -> dict[str, str]:
    try:
        options = json.loads(text)
    except ValueError as error:
        faults.append(f"FAIRLANE_KAFKA_OPTIONS is no JSON ({error})")
        return {}
    if not isinstance(options, dict):
        faults.append('FAIRLANE_KAFKA_OPTIONS is no JSON object: {"security.protocol": "SSL"}')
        return {}
    faults += [
        f"FAIRLANE_KAFKA_OPTIONS: {name} is set by Fairlane; leave it out"
        for name in sorted(_OWN_OPTIONS & options.keys())
    ]
    for name, value in options.items():
        if isinstance(value, dict | list) or value is None:
            faults.append(f"FAIRLANE_KAFKA_OPTIONS: {name} must be a string, number or boolean")
    return {name: _word(value) for name, value in options.items()}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(name: str, text: str, most: int, faults: list[str]) -> int:
    if text.isdecimal() and 1 <= int(text) <= most:
        return int(text)
    faults.append(f"{name} is {text!r}; allowed is 1..{most}")
    return most
