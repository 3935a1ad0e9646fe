"""`fairlane limits`: the counters of the limits."""

import typer

limits = typer.Typer(help="Counters of the limits.", no_args_is_help=True, rich_markup_mode=None)


@limits.command()
def restore() -> None:
    """Raise this month's counters in Redis to what the accounting says was used.

    For a Redis that lost its data; counters that hold more stay as they are.
    """
    from adapters.clock import SystemClock
    from fairlane import limits as restoring
    from fairlane.cli_connect import connected, settings

    url = settings().need_redis()
    with connected() as (log, topics):
        found = restoring.restore(log, topics, url, SystemClock().now_ms())
    print(f"{found.raised} of {found.all} counters raised; the others hold as much already")
    if found.is_behind:
        print("the accounting is behind: run this again when it has caught up (`fairlane usage`)")


@limits.callback()
def _group() -> None:
    """Counters of the limits."""
