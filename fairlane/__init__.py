"""The face: command line, configuration, local stack, Python client; wires adapters.

The client's names are imported when they are first used: a service needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlane.client import AsyncClient
    from fairlane.client_sync import Client
    from fairlane.client_values import (
        Accepted,
        ClientError,
        ClosedError,
        EndedError,
        Fault,
        Outcome,
        ProtocolError,
        RefusedError,
        Submission,
        UnreachableError,
        Usage,
        WaitTimeoutError,
    )
    from fairlane.errors import FairlaneError
    from schemas.records import End

__all__ = [
    "Accepted",
    "AsyncClient",
    "Client",
    "ClientError",
    "ClosedError",
    "End",
    "EndedError",
    "FairlaneError",
    "Fault",
    "Outcome",
    "ProtocolError",
    "RefusedError",
    "Submission",
    "UnreachableError",
    "Usage",
    "WaitTimeoutError",
]

_PLACES = {
    "AsyncClient": "fairlane.client",
    "Client": "fairlane.client_sync",
    "End": "schemas.records",
    "FairlaneError": "fairlane.errors",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "fairlane.client_values")), name)
