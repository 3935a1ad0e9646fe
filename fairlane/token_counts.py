"""Tokenizers at the door: `fairlane ingress --tokenizer ENDPOINT[=FOLDER]`.

A request's tokens are then known before it runs, as the engine `embed` will count them: what is
charged, what is waited for and what is used are the same number.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fairlane.errors import FairlaneError


class Tokenizer(NamedTuple):
    """Whose tokens are counted, by the files of which folder; None: the installed ones."""

    endpoint: str
    folder: Path | None


def tokenizer(text: str) -> Tokenizer:
    """Read the option; raises argparse.ArgumentTypeError."""
    endpoint, _, folder = text.partition("=")
    if not endpoint:
        raise argparse.ArgumentTypeError(f"{text!r} names no endpoint: ENDPOINT or ENDPOINT=FOLDER")
    return Tokenizer(endpoint, Path(folder) if folder else None)


def load(wanted: Iterable[Tokenizer]) -> dict[str, Callable[[str], int]]:
    """Load the tokenizers, by endpoint.

    Raises FairlaneError when the extra is not installed, or a file is missing or another one.
    """
    return {each.endpoint: _load(each.folder) for each in wanted}


def _load(model: Path | None) -> Callable[[str], int]:
    from fairlane.models import folder
    from workers.engines import weights

    try:
        from workers.engines.embed import TOKENS_MAX
        from workers.engines.wordpieces import WordPieces
    except ModuleNotFoundError as error:
        raise FairlaneError(
            f"a tokenizer needs {error.name}: pip install 'fairlane[embed]'"
        ) from error
    try:
        pieces = WordPieces(weights.read(folder(model), weights.TOKENIZER), TOKENS_MAX)
    except weights.ModelError as error:
        raise FairlaneError(str(error)) from error
    return lambda text: len(pieces.of(text)[0])
