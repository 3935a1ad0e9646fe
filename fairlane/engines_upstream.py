"""Options of the engine `upstream`, and the engine made of them.

The server's key comes from the environment alone: a command line is for everybody to read.
"""

import argparse
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from workers.engines.upstream import UpstreamEngine

#: The server's key, where it wants one.
KEY_VARIABLE = "FAIRLANE_UPSTREAM_KEY"
#: More tries than this keep a slot from other requests and help no one.
_TRIES_MAX = 100
#: The longest patience that can be asked for, seconds.
_SECONDS_MAX = 86_400

_ROUTES = {"auto": "", "chat": "/v1/chat/completions", "completions": "/v1/completions"}
_ROUTES["embeddings"] = "/v1/embeddings"


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options to a group of a command's parser."""
    group.description = f"calls a server of OpenAI's interface; its key: ${KEY_VARIABLE}"
    group.add_argument("--upstream-url", help="where the server is: http://host:port")
    group.add_argument(
        "--upstream-route",
        type=_route,
        default="auto",
        help="auto (default: by the body), chat, completions, embeddings, or a path: /v1/rerank",
    )
    group.add_argument(
        "--upstream-model", default="", help="filled in when a body names no model itself"
    )
    group.add_argument(
        "--upstream-tries", type=_tries, default=3, help="calls of a request before it has failed"
    )
    group.add_argument(
        "--upstream-connect-s", type=_seconds, default=5, help="longest wait for a connection"
    )
    group.add_argument(
        "--upstream-between-s",
        type=_seconds,
        default=120,
        help="longest silence in an answer, the wait for its first byte included",
    )
    group.add_argument(
        "--upstream-whole-s", type=_seconds, default=600, help="longest time of one call"
    )


def make(given: argparse.Namespace) -> "UpstreamEngine":
    """Make the engine. Raises FairlaneError for what the user can mend."""
    from adapters.clock import SystemClock
    from workers.engines.upstream import UpstreamEngine, UpstreamSettings

    settings = UpstreamSettings(
        _address(given.upstream_url or ""),
        given.upstream_route,
        given.upstream_model,
        given.upstream_tries,
        given.upstream_connect_s,
        given.upstream_between_s,
        given.upstream_whole_s,
    )
    key = os.environ.get(KEY_VARIABLE, "")
    if not (key.isascii() and key.isprintable()):
        raise FairlaneError(f"{KEY_VARIABLE} holds what no HTTP header may; set the key alone")
    return UpstreamEngine(settings, SystemClock(), key)


def _address(url: str) -> str:
    """Scheme, host and port, and a path before `/v1` where there is one."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FairlaneError(
            "the engine upstream needs --upstream-url http://host:port (without /v1/...)"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise FairlaneError(
            f"--upstream-url takes no user, password or query; put the key into {KEY_VARIABLE}"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _route(text: str) -> str:
    if text in _ROUTES:
        return _ROUTES[text]
    if text.startswith("/") and text.isascii() and text.isprintable() and " " not in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_ROUTES)}, and no /path")


def _tries(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= _TRIES_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in 1..{_TRIES_MAX}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds <= _SECONDS_MAX:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to {_SECONDS_MAX}")
