"""`fairlane pause` and `fairlane resume`."""

from typing import Annotated

import typer

_Tenant = Annotated[
    str, typer.Argument(metavar="TENANT", help="Whose requests; without it: everybody's.")
]
_Endpoint = Annotated[
    str, typer.Option("--endpoint", help="At this endpoint only; without it: at all of them.")
]


def pause(
    tenant: _Tenant = "",
    endpoint: _Endpoint = "",
    lasts: Annotated[
        str | None, typer.Option("--for", help="How long: 90s, 10m, 2h, 1d, 1h30m.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Until when, ISO 8601 with its zone: 2026-12-01T09:30Z.")
    ] = None,
) -> None:
    """Pick nothing of a tenant, or at an endpoint, until resumed or for a time.

    What waits goes on waiting and may expire; what a worker has is finished; new requests are
    let in and wait. A later pause with the same names takes the place of the earlier.
    """
    from adapters.clock import SystemClock
    from fairlane import pause as pausing
    from fairlane.cli_connect import connected

    end_ms = pausing.end_ms(SystemClock().now_ms(), lasts, until)
    with connected() as (log, topics):
        whose = pausing.pause(log, topics, tenant, endpoint, end_ms)
    when = f"until {pausing.shown_time(end_ms)}" if end_ms else "until it is resumed"
    print(f"paused {when}: {whose}")
    print("what waits goes on waiting and may expire; what workers have is finished")
    print(f"to end it{' sooner' if end_ms else ''}: fairlane resume {_arguments(tenant, endpoint)}")


def resume(tenant: _Tenant = "", endpoint: _Endpoint = "") -> None:
    """End the pause that was given with the same names."""
    from fairlane import pause as pausing
    from fairlane.cli_connect import connected

    with connected() as (log, topics):
        whose = pausing.resume(log, topics, tenant, endpoint)
    print(f"resumed: {whose}")
    print("a pause that was given with other names (of all endpoints, of everybody) stays")


def _arguments(tenant: str, endpoint: str) -> str:
    return " ".join(filter(None, (tenant, endpoint and f"--endpoint {endpoint}")))
