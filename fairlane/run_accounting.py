"""Process wiring of the accounting: `fairlane accounting`.

Its loop is Faust's own, so it has a start and an end of its own too. Whatever ends it, the
process ends: Faust's threads may wait for a broker that is gone, and nothing is lost with
them, because what was not stored is read again. When other pools are to be counted, the
process starts itself again in place.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from adapters.clock import SystemClock
from fairlane.accounting_lanes import lanes_to_count, note_losses
from fairlane.errors import FairlaneError
from fairlane.publish import published_policy
from fairlane.run import (
    EXIT_CLEAN,
    EXIT_FAILED,
    EXIT_HALTED,
    Meter,
    Process,
    open_log,
    open_meter,
    stop_on_signals,
)
from schemas.codec import DecodeError
from schemas.log import Log, LogError
from schemas.policy import Policy, PolicyError

if TYPE_CHECKING:
    from accounting.app import Accounting, AccountingSettings, Ending

#: How long a stop may take before the process ends as it is.
GRACE_S = 8.0
#: How often the policy is looked for when there is none.
LOOK_S = 1.0
_NO_POLICY = "no policy is published yet: run 'fairlane policy apply FILE'"


class AccountingError(FairlaneError):
    """The accounting can't start; the message says what to do."""


def run_accounting(process: Process) -> int:
    """Run the accounting until it is told to stop; returns the exit code, or doesn't return.

    Raises FairlaneError for what the user can mend.
    """
    need_faust()
    notes = process.notes
    stop = stop_on_signals()
    _end_after_stop(stop)
    notes.info("starting")
    try:
        log = open_log(process.settings)
        policy = _wait_for_policy(process, log, stop)
        if policy is None:
            return EXIT_CLEAN
        lanes = _prepare(process, log, policy)
        meter = open_meter(process.metrics_port)
        now_ms = SystemClock().now_ms()
        note_losses(log, process.topics, lanes, now_ms, notes, meter)
        application = _application(process, log, policy, lanes, meter)
        application.run(stop, _lanes_now(process, log, lanes), lambda end: _leave(process, end))
    except LogError as error:
        notes.error("the log failed", detail=str(error), exc_info=False)
        _end(EXIT_FAILED)
    except DecodeError as error:
        detail = f"{error.place}: {error.detail}; upgrade the accounting"
        notes.error("halted", detail=detail, exc_info=False)
        _end(EXIT_HALTED)
    raise AssertionError


def _leave(process: Process, ending: "Ending") -> None:
    """End this process, or make it begin again."""
    from accounting.app import Ending

    if ending is Ending.POOLS_CHANGED:
        process.notes.info("the policy has other pools: starting again")
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - what started this process
    if ending is Ending.STOPPED:
        process.notes.info("stopped")
    codes = {Ending.STOPPED: EXIT_CLEAN, Ending.HALTED: EXIT_HALTED}
    _end(codes.get(ending, EXIT_FAILED))


def need_faust() -> None:
    """Raise AccountingError when the extra is not installed."""
    from importlib.util import find_spec

    if "faust" not in sys.modules and find_spec("faust") is None:
        raise AccountingError(
            "the accounting needs Faust, which is not installed: pip install 'fairlane[accounting]'"
        )


def _prepare(process: Process, log: Log, policy: Policy) -> dict[str, int]:
    """Make the topics that are missing; returns the lanes of each pool to be counted."""
    lanes = lanes_to_count(log, process.topics, policy)
    sums = [process.topics.usage_spec(pool, count) for pool, count in lanes.items()]
    known = {spec.name for spec in process.topics.of(policy)}
    log.ensure_topics(
        [*process.topics.of(policy), *(spec for spec in sums if spec.name not in known)]
    )
    return lanes


def _application(
    process: Process, log: Log, policy: Policy, lanes: dict[str, int], meter: Meter
) -> "Accounting":
    from accounting.app import Accounting
    from accounting.credentials import CredentialsError, credentials

    settings = process.settings
    try:
        mapped = credentials(settings.kafka_options)
    except CredentialsError as error:
        raise AccountingError(f"FAIRLANE_KAFKA_OPTIONS: {error}") from error
    if mapped.ignored:
        process.notes.info("options of the other Kafka client", ignored=list(mapped.ignored))
    _quiet_libraries(process)
    return Accounting(
        _settings(process, policy, lanes, mapped.credentials),
        log,
        SystemClock(),
        meter,
        process.notes,
    )


def _settings(
    process: Process, policy: Policy, lanes: dict[str, int], credentials: object
) -> "AccountingSettings":
    from accounting.app import AccountingSettings

    return AccountingSettings(
        kafka=process.settings.kafka,
        topics=process.topics,
        lanes=lanes,
        buckets=policy.topology.buckets,
        instance=process.instance,
        credentials=credentials,
    )


def _wait_for_policy(process: Process, log: Log, stop: threading.Event) -> Policy | None:
    """Published policy, waited for; None when told to stop before there is one."""
    is_told = False
    while not stop.is_set():
        if (policy := published_policy(log, process.topics)) is not None:
            return policy
        if not is_told:
            process.notes.info(_NO_POLICY)
            is_told = True
        stop.wait(LOOK_S)
    return None


def _lanes_now(process: Process, log: Log, first: dict[str, int]) -> Callable[[], dict[str, int]]:
    """Function that says the lanes of each pool as they are now; the last known in doubt."""
    known = first

    def lanes_now() -> dict[str, int]:
        nonlocal known
        try:
            policy = published_policy(log, process.topics)
            if policy is not None:
                known = lanes_to_count(log, process.topics, policy)
        except (LogError, PolicyError) as error:
            process.notes.warning("the policy can't be read", detail=str(error))
        return known

    return lanes_now


def _quiet_libraries(process: Process) -> None:
    """What Faust and its client say comes with our notes, from warnings up."""
    import logging

    process.notes.follow_logging()
    logging.getLogger().setLevel(logging.WARNING)
    # It warns whenever a slice takes longer to store than the pause between two.
    logging.getLogger("mode.timers").setLevel(logging.ERROR)


def _end_after_stop(stop: threading.Event) -> None:
    """Thread that ends the process some time after `stop`, whatever it waits for."""

    def watch() -> None:
        stop.wait()
        time.sleep(GRACE_S)
        _end(EXIT_CLEAN)

    threading.Thread(target=watch, name="end-after-stop", daemon=True).start()


def _end(code: int) -> None:
    """End the process now: threads of Faust would hold it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
