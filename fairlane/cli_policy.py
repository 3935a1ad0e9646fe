"""`fairlane policy`: check, apply, show."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from schemas.policy import Policy

policy = typer.Typer(
    help="Tiers, pools, endpoints and tenants.", no_args_is_help=True, rich_markup_mode=None
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML document.")]


@policy.command()
def check(file: _File) -> None:
    """Read a policy file and say all that is wrong with it."""
    from fairlane.policy_file import load

    found = load(file)
    counts = (
        f"{len(items)} {section}"
        for section, items in (
            ("tiers", found.tiers),
            ("pools", found.pools),
            ("endpoints", found.endpoints),
            ("tenants", found.tenants),
        )
    )
    print(f"{file} is valid: {', '.join(counts)}")
    _show_hints(found)


@policy.command()
def apply(
    file: _File,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Check a policy file, show what would change, publish it."""
    from fairlane.cli_connect import connected
    from fairlane.policy_file import load
    from fairlane.publish import publish_policy

    wanted = load(file)
    was_asked = False

    def is_wanted(before: "Policy | None") -> bool:
        nonlocal was_asked
        was_asked = True
        _show_plan(before, wanted)
        _show_hints(wanted)
        return yes or _confirmed()

    with connected() as (log, topics):
        after = publish_policy(log, topics, wanted, is_wanted)
    if after is not None:
        print(f"published as version {after.version}")
    elif was_asked:
        print("nothing published")
        raise typer.Exit(1)
    else:
        print("unchanged: the published policy says the same; nothing published")


@policy.command()
def show(
    as_json: Annotated[bool, typer.Option("--json", help="As published.")] = False,
) -> None:
    """Print the published policy as a document that could be applied."""
    from fairlane.cli_connect import connected
    from fairlane.errors import FairlaneError
    from fairlane.policy_text import to_toml
    from fairlane.publish import published_policy
    from schemas.policy import policy_json

    with connected() as (log, topics):
        found = published_policy(log, topics)
    if found is None:
        raise FairlaneError("no policy is published yet: run `fairlane policy apply FILE`")
    print(policy_json(found).decode() if as_json else to_toml(found))


def _show_plan(before: "Policy | None", wanted: "Policy") -> None:
    from fairlane.policy_plan import plan

    version = before.version if before else 0
    print(f"version {version} -> {version + 1}:" if version else "the first policy:")
    for change in plan(before, wanted):
        print(f"  {change}")


def _show_hints(wanted: "Policy") -> None:
    from fairlane.policy_hints import hints

    for hint in hints(wanted):
        print(f"hint: {hint}")


def _confirmed() -> bool:
    from fairlane.errors import FairlaneError

    if not sys.stdin.isatty():
        raise FairlaneError("nobody to ask here: give --yes to publish this plan")
    return typer.confirm("publish this?")
