"""Fixtures and habits of every suite: services, markers by folder, profiles of hypothesis."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

import hatch_build
from fairlane.stack import Stack
from tests.support.ci import forbid_skip
from tests.support.services import (
    Services,
    choose_own,
    is_ci,
    local_stack,
    machine,
    refuse,
)

TESTS = Path(__file__).parent

if hatch_build.is_stale():
    pytest.exit("scheduler/core is compiled from older files: make compile, or make pure", 4)
#: Folders whose name is a marker; `support` holds no tests.
SUITES = ("architecture", "contract", "integration", "property", "simulation", "unit")

# An example's time says more about this machine than about the code: no deadline.
hypothesis.settings.register_profile("dev", deadline=None, max_examples=100)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=300, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if is_ci(os.environ) else "dev")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the folder it lives in."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in SUITES:
            message = f"{item.nodeid}: tests live in one of {', '.join(SUITES)}"
            raise pytest.UsageError(message)
        item.add_marker(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    forbid_skip(report, os.environ)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    forbid_skip(report, os.environ)
    return report


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The session's Kafka and Redis; nothing starts before it is asked for."""
    found = Services(tmp_path_factory.mktemp("stack"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def kafka_bootstrap(services: Services) -> str:
    """The bootstrap address of a real Kafka."""
    return services.kafka()


@pytest.fixture(scope="session")
def redis_url(services: Services) -> str:
    """The URL of a real Redis."""
    return services.redis_url()


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    """A Kafka and a Redis of this test's own, up; it may kill them."""
    refuse(choose_own(os.environ, machine()), None)
    with local_stack(tmp_path / "stack") as stack:
        yield stack
