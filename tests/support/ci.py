"""What CI's run is stricter about: there, a test that is skipped has failed."""

from collections.abc import Mapping

import pytest

from tests.support.services import is_ci


def forbid_skip(report: pytest.TestReport | pytest.CollectReport, env: Mapping[str, str]) -> None:
    """Turn a skip into a failure that keeps the reason; an expected failure is no skip."""
    if not is_ci(env) or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"skipped, which CI forbids: {reason}"
