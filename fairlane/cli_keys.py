"""`fairlane keys`: create, revoke, list."""

from datetime import UTC, datetime
from typing import Annotated

import typer

keys = typer.Typer(help="API keys of tenants.", no_args_is_help=True, rich_markup_mode=None)


@keys.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose requests it lets in.")],
    note: Annotated[str, typer.Option(help="What it is for; shown by list.")] = "",
) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    from adapters.clock import SystemClock
    from fairlane import keys as keeping
    from fairlane.cli_connect import connected

    with connected() as (log, topics):
        print(keeping.create(log, topics, tenant, SystemClock().now_ms(), note))


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as list shows it.")],
) -> None:
    """Revoke a key: within a second it lets nobody in."""
    from adapters.clock import SystemClock
    from fairlane import keys as keeping
    from fairlane.cli_connect import connected

    with connected() as (log, topics):
        found = keeping.revoke(log, topics, key_id, SystemClock().now_ms())
    print(f'revoked: {found.id} of tenant "{found.tenant}", {_time(found.revoked_ms)}')


@keys.command(name="list")
def list_() -> None:
    """List all keys: id, tenant, when created and revoked, note."""
    from fairlane.cli_connect import connected
    from fairlane.publish import published_keys

    with connected() as (log, topics):
        found = published_keys(log, topics)
    print(f"{'id':16}  {'tenant':20}  {'created':20}  {'revoked':20}  note")
    for key in found.values():
        times = f"{_time(key.created_ms):20}  {_time(key.revoked_ms):20}"
        print(f"{key.id:16}  {key.tenant:20}  {times}  {key.note}".rstrip())


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z" if time_ms else "-"
