"""The engine `embed` on the command line: its options, and how it is made from them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from workers.ports import Engine

#: More threads than this are a mistake.
THREADS_MAX = 256
#: What the extra `embed` brings for the engine.
_EXTRA = frozenset({"numpy", "onnx", "onnxruntime", "safetensors", "tokenizers"})


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the engine's options to its group."""
    group.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="folder of the model's files (default: installed)",
    )
    group.add_argument(
        "--threads", type=_threads, metavar="N", help="default: the processors it may use"
    )


def make(given: argparse.Namespace) -> "Engine":
    """Make the engine from its options; raises as `load` does."""
    return load(given.model, given.threads)


def load(model: Path | None = None, threads: int | None = None) -> "Engine":
    """Load the model from a folder (None: the installed one); takes a second or two.

    Raises FairlaneError when the extra is not installed, or a file of the model is missing
    or not the model's.
    """
    from fairlane.models import folder
    from workers.engines.weights import ModelError

    try:
        from workers.engines.embed import EmbedEngine
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise FairlaneError(
            f"the engine embed needs {error.name}: pip install 'fairlane[embed]'"
        ) from error
    try:
        return EmbedEngine(folder(model), threads)
    except ModelError as error:
        raise FairlaneError(str(error)) from error


def _threads(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= THREADS_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no integer in 1..{THREADS_MAX}")
