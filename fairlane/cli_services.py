"""Services on the command line: `fairlane ingress | inbox | scheduler | worker | accounting`.

Parsed with argparse, which costs a restart a tenth of what the command-line library does.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.engines import add_options, make
from fairlane.settings import load
from fairlane.token_counts import tokenizer

if TYPE_CHECKING:
    from fairlane.run import Process

#: Workers of one machine are one per lane; more requests in flight than this is a mistake.
SLOTS_MAX = 4_096
_PORT_MAX = 65_535
#: Processes behind one port: more than a machine has cores are of no use.
PROCESSES_MAX = 64
#: A balancer that has not noticed by then will not.
DRAIN_S_MAX = 300


def serve(arguments: list[str]) -> int:
    """Parse the arguments, `[service, option, ...]`, and run the service; returns its exit code.

    Raises FairlaneError for what the user can mend, SystemExit on wrong arguments.
    """
    given = parser().parse_args(arguments)
    settings = load(os.environ, Path.cwd())
    from adapters.logs import StructuredNotes
    from fairlane.run import Process, run_scheduler, run_worker

    facts: dict[str, Any] = {"service": given.service}
    if given.instance:
        facts["instance"] = given.instance
    if getattr(given, "process", None) is not None:
        facts["process"] = given.process
    notes = StructuredNotes(is_json=given.log == "json", **facts)
    process = Process(settings, notes, given.instance, given.metrics_port)
    match given.service:
        case "scheduler":
            return run_scheduler(process)
        case "worker":
            return run_worker(process, given.pool, given.slots, make(given))
        case "accounting":
            from fairlane.run_accounting import run_accounting

            return run_accounting(process)
        case "inbox":
            from fairlane.run_inbox import run_inbox
            from producers.limiting import WhenDown

            return run_inbox(process, WhenDown(given.redis_down))
        case _:
            return _serve_http(process, given)


def _serve_http(process: "Process", given: argparse.Namespace) -> int:
    if given.processes > 1:
        from fairlane.run_processes import run_processes

        same = ["--redis-down", given.redis_down, "--log", given.log]
        same += ["--drain-s", str(given.drain_s)]
        for endpoint, folder in given.tokenizer:
            same += ["--tokenizer", f"{endpoint}={folder}" if folder else endpoint]
        return run_processes(process, given.host, given.port, same, given.processes, given.drain_s)
    from fairlane.run_ingress import Serving, run_ingress
    from producers.limiting import WhenDown

    if given.process is not None:
        from fairlane.run_processes import watch_parent

        watch_parent()
    when_down = WhenDown(given.redis_down)
    tokenizers = tuple(given.tokenizer)
    serving = Serving(given.host, given.port, when_down, given.drain_s, given.process, tokenizers)
    return run_ingress(process, serving)


def parser() -> argparse.ArgumentParser:
    """Parser of the commands."""
    root = argparse.ArgumentParser(prog="fairlane")
    commands = root.add_subparsers(dest="service", required=True)
    _ingress(commands.add_parser("ingress", help="the HTTP API: who may come in"))
    _inbox(commands.add_parser("inbox", help="takes in what tenants put on the bus"))
    _scheduler(commands.add_parser("scheduler", help="a scheduler: who goes next"))
    _worker(commands.add_parser("worker", help="a worker of a pool: who does the work"))
    accounting = commands.add_parser("accounting", help="the accounting: who used what")
    accounting.description = "Count who used what; several share the lanes out."
    for name, command in commands.choices.items():
        _common(command)
        more = "; of several processes each the next one" if name == "ingress" else ""
        command.add_argument(
            "--metrics-port",
            type=_port,
            help=f"serve /metrics on 127.0.0.1 (default: none){more}",
        )
    return root


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--instance",
        help="stable name of this process among its kind: a restart under the same name takes "
        "over at once; without it the group waits for the old one's session to expire",
    )
    command.add_argument(
        "--log", choices=("json", "console"), default="json", help="form of the lines on stderr"
    )


def _ingress(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", help="address to listen on")
    command.add_argument("--port", type=_port, default=8080, help="port to listen on (0: any)")
    command.add_argument(
        "--tokenizer",
        type=tokenizer,
        action="append",
        default=[],
        metavar="ENDPOINT[=FOLDER]",
        help="count its tokens as engine embed does, by the files of a model (default: installed)",
    )
    _redis_down(command)
    command.add_argument(
        "--processes", type=_processes, default=1, help="processes behind the one port"
    )
    command.add_argument(
        "--drain-s",
        type=_drain_s,
        default=0,
        help="at a stop: seconds in which /readyz says so before connections are refused",
    )
    # Which of several it is; they start each other with it.
    command.add_argument("--process", type=_port, default=None, help=argparse.SUPPRESS)


def _inbox(command: argparse.ArgumentParser) -> None:
    command.description = "Take in the inboxes of tenants that have one; several share them out."
    _redis_down(command)


def _redis_down(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--redis-down",
        choices=("degraded", "closed", "open"),
        default="degraded",
        help="without Redis: local limits, let nobody in, or let everybody in",
    )


def _scheduler(command: argparse.ArgumentParser) -> None:
    command.description = "Run a scheduler; several share the shards out."


def _worker(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pool", required=True, help="pool of the policy whose lanes it serves")
    command.add_argument("--slots", type=_slots, default=1, help="batches at once in each lane")
    add_options(command)


def _port(text: str) -> int:
    return _number(text, 0, _PORT_MAX)


def _processes(text: str) -> int:
    return _number(text, 1, PROCESSES_MAX)


def _drain_s(text: str) -> int:
    return _number(text, 0, DRAIN_S_MAX)


def _slots(text: str) -> int:
    return _number(text, 1, SLOTS_MAX)


def _number(text: str, least: int, most: int) -> int:
    if text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in {least}..{most}")
