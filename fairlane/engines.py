"""From command-line options to an engine: which one a worker runs, and with what.

What belongs here: each engine's options, in a group of its own in `--help`, and the one
place that constructs it. Engines are imported when one is wanted and not before: what
another engine needs may not be installed.
"""

import argparse
from typing import TYPE_CHECKING

from fairlane import engines_embed, engines_upstream
from fairlane.engine_import import engine_of

if TYPE_CHECKING:
    from workers.ports import Engine

#: Engines that come with Fairlane; `make` has a branch for each.
NAMES = ("simulated", "embed", "upstream")
#: Far above any sensible count, time or size; what is beyond is a mistake.
_NUMBER_MAX = 1_000_000_000
#: Most components of a simulated vector: that of one text still fits into a result.
_DIMENSIONS_MAX = 8_192


def add_options(command: argparse.ArgumentParser) -> None:
    """Add `--engine` and the options of every engine to a command's parser."""
    command.add_argument(
        "--engine",
        type=_engine,
        default="simulated",
        metavar="ENGINE",
        help=f"what runs the batches: {', '.join(NAMES)}, or module:Name of one's own (default: "
        "simulated)",
    )
    _simulated_options(command.add_argument_group("engine simulated", "takes time, no model"))
    embed = command.add_argument_group("engine embed", "texts to vectors: all-MiniLM-L6-v2")
    engines_embed.add_options(embed)
    engines_upstream.add_options(command.add_argument_group("engine upstream"))


def make(given: argparse.Namespace) -> "Engine":
    """Make the engine that the options name; `given` holds all that `add_options` added.

    Raises FairlaneError for what the user can mend.
    """
    match given.engine:
        case "embed":
            return engines_embed.make(given)
        case "upstream":
            return engines_upstream.make(given)
        case "simulated":
            return _simulated(given)
        case name:
            return engine_of(name)


# --- simulated


def _simulated_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--fixed-ms", type=_natural, default=20, help="time of a batch")
    group.add_argument("--per-token-us", type=_natural, default=50, help="time of a token")
    group.add_argument(
        "--together",
        choices=("sum", "max"),
        default="sum",
        help="requests of a batch one after the other, or abreast",
    )
    group.add_argument("--seed", type=_natural, default=0, help="draws output lengths")
    group.add_argument(
        "--dimensions", type=_dimensions, default=0, help="answers embeddings of so many (0: none)"
    )


def _simulated(given: argparse.Namespace) -> "Engine":
    from workers.engines.simulated import SimulatedEngine, SimulatedSettings, Together

    together = Together(given.together)
    return SimulatedEngine(
        SimulatedSettings(
            given.fixed_ms, given.per_token_us, together, given.seed, given.dimensions
        )
    )


# --- types of options


def _engine(text: str) -> str:
    module, _, attribute = text.partition(":")
    if text in NAMES or (attribute.isidentifier() and module.replace(".", "_").isidentifier()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(NAMES)}, nor a module:Name")


def _natural(text: str) -> int:
    if text.isdecimal() and int(text) <= _NUMBER_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in 0..{_NUMBER_MAX}")


def _dimensions(text: str) -> int:
    if text.isdecimal() and int(text) <= _DIMENSIONS_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in 0..{_DIMENSIONS_MAX}")
