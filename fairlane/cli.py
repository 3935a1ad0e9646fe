"""The command line: what each command takes and prints; what it does is elsewhere.

A command imports what it needs when it runs, so that `fairlane --help` is quick. The three
services stand here for the help alone: `fairlane.__main__` hands them off earlier.
"""

import sys
from importlib import import_module
from typing import Annotated

import typer

from fairlane.cli_keys import keys
from fairlane.cli_limits import limits
from fairlane.cli_pause import pause, resume
from fairlane.cli_policy import policy

app = typer.Typer(
    name="fairlane",
    help="Share pools of GPUs fairly between tenants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(policy, name="policy")
app.add_typer(keys, name="keys")
app.add_typer(limits, name="limits")

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print(f"fairlane {version('fairlane')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it, exit.")
    ] = False,
) -> None:
    """Share pools of GPUs fairly between tenants.

    Addresses come from FAIRLANE_KAFKA and FAIRLANE_REDIS, or from the local stack that
    `fairlane up` starts in the working directory.
    """


@app.command()
def up(
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Full JIT and G1: faster, hungrier.")
    ] = False,
) -> None:
    """Start a local Kafka and Redis, without containers."""
    from fairlane.stack import FOLDER, Stack

    found = Stack(FOLDER, say=print).up(benchmark)
    print(f"kafka  {found.kafka}")
    print(f"redis  {found.redis_url}")


@app.command()
def down() -> None:
    """Stop the local stack; its data stays."""
    from fairlane.stack import FOLDER, Stack

    Stack(FOLDER, say=print).down()


@app.command()
def status() -> None:
    """Say whether the local stack runs and answers; exit 1 when it does not."""
    from fairlane.stack import FOLDER, Stack

    found = Stack(FOLDER).status()
    for service in found:
        state = "answers" if service.answers else "runs, no answer" if service.pid else "is down"
        pid = f"pid {service.pid}" if service.pid else "-"
        print(f"{service.name:6} {state:16} {service.address:32} {pid:12} {service.log}")
    if not found.is_up:
        raise typer.Exit(1)


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="With or without the prefix: requests.premium")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="All that is kept, not only what comes.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many records.")] = None,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="Stop at what is the end now.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the records of any topic, readable."""
    from fairlane import tail as reading
    from fairlane.cli_connect import connected

    with connected() as (log, topics):
        name = reading.full_name(log, topics, topic)
        if not from_beginning and not no_follow:
            print(f"waiting for new records of {name}; --from-beginning shows all", file=sys.stderr)
        show = reading.as_json if as_json else reading.as_text
        for record in reading.records(
            log, name, from_beginning=from_beginning, follow=not no_follow, limit=limit
        ):
            print(show(record, topics), flush=True)


@app.command(context_settings=_PASSED_ON)
def submit(context: typer.Context) -> None:
    """Submit many requests from a file; run it again to go on after any stop."""
    _alone("submit", context)


@app.command(context_settings=_PASSED_ON)
def embed(context: typer.Context) -> None:
    """Embed a corpus of texts into vectors; run it again to go on after any stop."""
    from fairlane.embed import main

    raise typer.Exit(main(context.args))


@app.command(context_settings=_PASSED_ON)
def demo(context: typer.Context) -> None:
    """Show a burst next to a small tenant: one queue, tiers alone, and Fairlane."""
    _alone("demo", context)


@app.command(context_settings=_PASSED_ON)
def doctor(context: typer.Context) -> None:
    """Say what is present, what is missing and what to do; exit 1 when something is missing."""
    _alone("doctor", context)


def _alone(name: str, context: typer.Context) -> None:
    """Run `fairlane.<name>.command`, which brings its options with it, and its libraries."""
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    single.command()(import_module(f"fairlane.{name}").command)
    single(context.args, prog_name=f"fairlane {name}")


@app.command(context_settings=_PASSED_ON)
def ingress(context: typer.Context) -> None:
    """Run the HTTP API: who may come in."""
    _hand_off("ingress", context)


@app.command(context_settings=_PASSED_ON)
def scheduler(context: typer.Context) -> None:
    """Run a scheduler: who goes next."""
    _hand_off("scheduler", context)


@app.command(context_settings=_PASSED_ON)
def worker(context: typer.Context) -> None:
    """Run a worker of a pool: who does the work."""
    _hand_off("worker", context)


@app.command(context_settings=_PASSED_ON)
def accounting(context: typer.Context) -> None:
    """Run the accounting: who used what."""
    _hand_off("accounting", context)


@app.command(context_settings=_PASSED_ON)
def inbox(context: typer.Context) -> None:
    """Take in what tenants put into their own topics on the bus."""
    _hand_off("inbox", context)


@app.command(context_settings=_PASSED_ON)
def usage(context: typer.Context) -> None:
    """Show what tenants used, by minute, hour, day or month."""
    _alone("usage", context)


app.command()(pause)
app.command()(resume)


def _hand_off(service: str, context: typer.Context) -> None:
    from fairlane.cli_services import serve

    raise typer.Exit(serve([service, *context.args]))
