"""A connection for the length of one command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlane.errors import FairlaneError
from fairlane.settings import Settings, load
from schemas.log import Log, UnavailableError
from schemas.topics import Topics


def settings() -> Settings:
    """Settings of this process. Raises SettingsError."""
    return load(os.environ, Path.cwd())


@contextmanager
def connected() -> Iterator[tuple[Log, Topics]]:
    """Log and topic names as the settings say.

    Raises FairlaneError when the settings are wrong or the log does not answer, LogError.
    """
    from fairlane.run import open_log

    found = settings()
    log = open_log(found)
    try:
        yield log, Topics(found.prefix)
    except UnavailableError as error:
        raise FairlaneError(
            f"Kafka at {found.kafka} does not answer ({error}): see `fairlane status`, or check "
            "FAIRLANE_KAFKA and FAIRLANE_KAFKA_OPTIONS"
        ) from error
    finally:
        log.close()
