"""Where the tests' Kafka and Redis come from.

Three sources in order: an address in the environment, the local stack, containers. Which one
is a pure choice, so that it can be tested itself. When there is none, a developer's run skips
with the reason and CI's run fails: there a suite that didn't run is no good news.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlane.stack import Addresses, Stack
from fairlane.stack_tools import missing

KAFKA_VARIABLE = "FAIRLANE_TEST_KAFKA"
REDIS_VARIABLE = "FAIRLANE_TEST_REDIS"


class Source(Enum):
    """Where a service comes from, or what its absence means."""

    GIVEN = "an address in the environment"
    LOCAL = "the local stack"
    CONTAINERS = "testcontainers"
    SKIP = "none: skip"
    FAIL = "none, under CI: fail"


class Needs(NamedTuple):
    """What this machine can do: the local stack's missing parts, and whether Docker answers."""

    missing: Sequence[str]
    has_docker: bool


def choose(env: Mapping[str, str], variable: str, needs: Needs) -> Source:
    """The source of the service whose address the variable may give."""
    if env.get(variable):
        return Source.GIVEN
    if needs.missing and needs.has_docker:
        return Source.CONTAINERS
    return choose_own(env, needs)


def choose_own(env: Mapping[str, str], needs: Needs) -> Source:
    """The source of a stack that a test may kill: the local one or none."""
    if not needs.missing:
        return Source.LOCAL
    return Source.FAIL if is_ci(env) else Source.SKIP


def is_ci(env: Mapping[str, str]) -> bool:
    """Whether this is CI's run: CI is set to anything but "", "0" and "false"."""
    return env.get("CI", "").lower() not in ("", "0", "false")


def absence(variable: str | None, needs: Needs) -> str:
    """Why a service isn't there, and each way out; no variable: it must be the test's own."""
    elsewhere = f"set {variable}, start Docker, or " if variable else ""
    lines = "".join(f"\n  - {line}" for line in needs.missing)
    return f"no Kafka and Redis here: {elsewhere}make up for what is missing{lines}"


@functools.cache
def machine() -> Needs:
    """What the machine that runs the tests can do."""
    lines = missing(os.environ)
    if not lines:
        # Docker isn't asked when it doesn't matter: a broken one takes seconds to say no.
        return Needs(lines, has_docker=False)
    from tests.support import containers

    return Needs(lines, containers.docker_answers())


@contextmanager
def local_stack(folder: Path) -> Iterator[Stack]:
    """A stack of this session's own, up; stopped at the end."""
    stack = Stack(folder)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()


class Services:
    """The session's services, each started when first asked for."""

    def __init__(self, folder: Path, env: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._env = env
        self._open = ExitStack()
        self._local: Addresses | None = None

    def kafka(self) -> str:
        """The bootstrap address of a broker."""
        source = self._source(KAFKA_VARIABLE)
        if source is Source.GIVEN:
            return self._env[KAFKA_VARIABLE]
        if source is Source.LOCAL:
            return self._stack().kafka
        from tests.support import containers

        return self._open.enter_context(containers.kafka())

    def redis_url(self) -> str:
        """The URL of a Redis."""
        source = self._source(REDIS_VARIABLE)
        if source is Source.GIVEN:
            return self._env[REDIS_VARIABLE]
        if source is Source.LOCAL:
            return self._stack().redis_url
        from tests.support import containers

        return self._open.enter_context(containers.redis_url())

    def close(self) -> None:
        """Stop what was started."""
        self._open.close()

    def _source(self, variable: str) -> Source:
        source = choose(self._env, variable, machine())
        refuse(source, variable)
        return source

    def _stack(self) -> Addresses:
        if self._local is None:
            stack = self._open.enter_context(local_stack(self._folder))
            self._local = stack.up()
        return self._local


def refuse(source: Source, variable: str | None) -> None:
    """End the test that needs a service which isn't there."""
    if source is Source.SKIP:
        pytest.skip(absence(variable, machine()))
    if source is Source.FAIL:
        pytest.fail(absence(variable, machine()), pytrace=False)
